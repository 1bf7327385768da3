"""Reading without torch: the reader and the card that model files carry."""
