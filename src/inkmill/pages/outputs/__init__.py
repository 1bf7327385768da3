"""Pages as the files that other programs read."""
