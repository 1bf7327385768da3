"""Data: formats and sources, order, fit, augmentation, cached pictures, loaders, conversion, checks. Needs no torch."""
