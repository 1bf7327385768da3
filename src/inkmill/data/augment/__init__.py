"""Random augmentation as numbers: a spec is sampled into parameters, and engines apply the parameters to images."""

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment.albumentations import AlbumentationsPipeline
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.cpu import apply_cv
from inkmill.data.augment.params import AugmentParams, DeferredAugmentation, ParamLayout
from inkmill.data.augment.polygons import move_polygons

__all__ = [
    "AlbumentationsPipeline",
    "AugmentParams",
    "Augmentation",
    "DeferredAugmentation",
    "ParamLayout",
    "apply_cv",
    "apply_deferred",
    "apply_torch",
    "move_polygons",
    "open_augmentation",
]


def open_augmentation(spec: AugmentationSpec) -> Augmentation | AlbumentationsPipeline:
    """Return the random ops that a spec describes, or the pipeline that it names.

    Raises:
        ConfigError: an op, key, value or preset that does not exist; a file that holds no pipeline.
        MissingExtraError: a pipeline is named, and Albumentations is not installed.
    """
    if spec.albumentations:
        return AlbumentationsPipeline.from_file(spec.albumentations)
    return Augmentation.from_spec(spec)


def __getattr__(name: str) -> object:
    if name == "apply_torch":  # torch is an optional package
        from inkmill.data.augment.torch_passes import apply_torch

        return apply_torch
    if name == "apply_deferred":
        from inkmill.data.augment.gpu import apply_deferred

        return apply_deferred
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
