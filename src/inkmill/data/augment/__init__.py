"""Random changes to training images, as numbers: a spec is drawn into a table, and engines apply the table."""

from inkmill.data.augment.apply_cv import apply_cv
from inkmill.data.augment.draw import Augmentation
from inkmill.data.augment.polygons import move_polygons
from inkmill.data.augment.table import Layout, Table

__all__ = ["Augmentation", "Layout", "Table", "apply_cv", "apply_torch", "move_polygons"]


def __getattr__(name: str) -> object:
    if name == "apply_torch":  # torch is an optional package
        from inkmill.data.augment.apply_torch import apply_torch

        return apply_torch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
