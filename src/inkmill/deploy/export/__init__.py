"""Export: readers for other programs, and for installs without torch."""
