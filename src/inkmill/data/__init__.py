"""Data: formats and sources, order, fit, augmentation, kept pictures, loaders, conversion, checks. Needs no torch."""
