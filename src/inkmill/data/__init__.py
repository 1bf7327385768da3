"""Data: formats and sources, order, fit, augmentation, kept pictures, loaders, conversion and checks; no torch needed."""
