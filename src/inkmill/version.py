"""The version, where every part can have it without importing the package's front."""

__version__ = "0.1.0"
