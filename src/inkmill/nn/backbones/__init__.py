"""Backbones by name: our own in a registry, every other name is looked up in timm."""

from inkmill.config.model import ModelSpec
from inkmill.nn.backbones import convmix, fan, resnet, svtr, tiny, vgg  # noqa: F401 - each file adds its backbones
from inkmill.nn.backbones.base import BACKBONES, Backbone, Limits
from inkmill.nn.backbones.timm import TimmBackbone, is_timm_model

__all__ = ["BACKBONES", "Backbone", "Limits", "build_backbone"]


def build_backbone(spec: ModelSpec, keep_width: bool = True) -> Backbone:
    """Return the backbone that `spec.backbone` names.

    Args:
        spec: name and input.
        keep_width: give a timm model the strides of a text reader; else it is as timm made it.

    Raises:
        ConfigError: unknown name, or an input size that it cannot take.
    """
    if is_timm_model(spec.backbone):
        return TimmBackbone(spec, keep_width)
    backbone = BACKBONES.get(spec.backbone)(spec)
    backbone.limits.check(spec.backbone, spec.input_height, spec.input_width)
    return backbone
