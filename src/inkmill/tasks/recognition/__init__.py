"""Recognition: an image of one word or line to its text."""
