"""Characters: which ones a reader knows, how labels are normalised, and how strings become classes."""
