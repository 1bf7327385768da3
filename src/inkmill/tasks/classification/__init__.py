"""Classification: one label an image, or any number of them."""
