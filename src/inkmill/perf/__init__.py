"""Why training is slow: measured while it runs."""
