"""How well a model reads: numbers from truths and predictions, without torch."""
