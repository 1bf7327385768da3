"""Any timm encoder as a backbone, its strides changed so that text keeps its time steps.

Image classifiers shrink the width 32 times: a 128-pixel line would leave 4 steps, useless for reading. So whatever
would shrink the width beyond 4 times gets a width stride of 1 (its height stride stays), and the patches of a vision
transformer become 4 pixels wide. Weights keep their shapes, or are resampled by timm, so pretrained ones still load.
Where that is not possible (merging by reshaping, as Swin's), the deepest level with at least width / 8 steps is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError, MissingExtraError
from inkmill.nn.backbones.base import BACKBONES, Backbone
from inkmill.nn.backbones.blocks import LayerNorm2d
from inkmill.registry import suggest

WIDTH_REDUCTION = 4
_PROBE_WIDTH = 256
_Strided = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


def is_timm_model(name: str) -> bool:
    """Return whether timm knows the model `name`; names that are not ours are looked up there.

    Raises:
        ConfigError: neither ours nor timm's; the message names the nearest of both.
        MissingExtraError: timm is not installed.
    """
    if name in BACKBONES:
        return False
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError("timm", "train", f"backbone {name!r}, which is none of {BACKBONES.names()},") from error
    if timm.is_model(name):
        return True
    hint = suggest(name, BACKBONES.names()) or suggest(name, timm.list_models())
    raise ConfigError(
        f"unknown model.backbone {name!r}{hint}; known: {', '.join(BACKBONES.names())}, and every model of timm"
    )


def _create(spec: ModelSpec, **options: Any) -> nn.Module:
    """Build timm's feature extractor, with a free image size where the family asks for one."""
    import timm

    options |= {"features_only": True, "in_chans": spec.input_channel}
    try:
        model: nn.Module = timm.create_model(spec.backbone, dynamic_img_size=True, **options)
    except TypeError:  # convolutional families take any size and know no such option
        model = timm.create_model(spec.backbone, **options)
    return model


def _patch_size(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return timm's option for patches 4 pixels wide, or none where there are no wider patches."""
    embed = getattr(getattr(model, "model", None), "patch_embed", None)
    size = getattr(embed, "patch_size", None)
    return {"patch_size": (size[0], WIDTH_REDUCTION)} if size and size[1] > WIDTH_REDUCTION else {}


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _keep_width(model: nn.Module, images: Tensor) -> None:
    """Lower the width strides by which `images` would shrink more than WIDTH_REDUCTION times.

    Which layers those are is seen by running the model once: order of definition says nothing about parallel branches.
    """

    def look(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        widths[part] = inputs[0].shape[3]

    widths: dict[nn.Module, int] = {}
    hooks = [part.register_forward_pre_hook(look) for part in model.modules() if isinstance(part, _Strided)]
    model(images)
    for hook in hooks:
        hook.remove()
    for part, width in widths.items():
        # How much narrower this layer may still make the map; what came before it has used up the rest.
        down, across = _both(part.stride)  # type: ignore[arg-type]
        allowed = max(1, round(WIDTH_REDUCTION * width / images.shape[3]))
        if across <= allowed:
            continue
        kernel = _both(part.kernel_size)  # type: ignore[arg-type]
        if not isinstance(part, nn.Conv2d) and kernel[1] == across:
            part.kernel_size = (kernel[0], allowed)  # type: ignore[assignment]  # a pooling without overlap stays without
        part.stride = (down, allowed)  # type: ignore[assignment]


def _as_bchw(feature: Tensor, channels: int) -> Tensor:
    """Some families (Swin) hand out BHWC."""
    return feature if feature.shape[1] == channels else feature.permute(0, 3, 1, 2)


class TimmBackbone(Backbone):
    """(B, 1|3, H, W) to (B, its own channels, about H / 32, about W / 4), layer-normed over the channels.

    Args:
        spec: name and input.
        keep_width: change the strides as above; else the deepest level as timm made it, about W / 32.

    Raises:
        ConfigError: the model gives no feature maps, cannot take the input size, or its weights cannot be had.
    """

    def __init__(self, spec: ModelSpec, keep_width: bool = True) -> None:
        super().__init__()
        try:
            level, patch = self._plan(spec) if keep_width else (-1, {})
            self.encoder = _create(spec, out_indices=(level,), pretrained=spec.backbone_pretrained, **patch)
            if keep_width:
                self._adapt(self.encoder, spec)
        except Exception as error:  # timm and its models raise whatever they like: say which model and size it was
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"timm's {spec.backbone} cannot be the backbone of a {spec.input_height}x{spec.input_width} input "
                f"with model.backbone_pretrained={spec.backbone_pretrained}: {reason}"
            ) from error
        self.out_channels = int(self.encoder.feature_info.channels()[0])  # type: ignore[union-attr, operator]
        self.norm = LayerNorm2d(self.out_channels)

    @staticmethod
    def _probe(spec: ModelSpec) -> Tensor:
        return torch.zeros(1, spec.input_channel, spec.input_height, _PROBE_WIDTH)

    @classmethod
    def _adapt(cls, model: nn.Module, spec: ModelSpec) -> list[Tensor]:
        """Change the strides of `model`; return what it gives for the probe."""
        model.eval()
        with torch.no_grad():
            _keep_width(model, cls._probe(spec))
            features: list[Tensor] = model(cls._probe(spec))
        model.train()
        return features

    @classmethod
    def _plan(cls, spec: ModelSpec) -> tuple[int, dict[str, tuple[int, int]]]:
        """Return which level to take, and the option for narrow patches."""
        # A first model shows whether there are patches to narrow, a second its levels.
        patch = _patch_size(_create(spec))
        model = _create(spec, **patch)
        info: Any = model.feature_info
        features = [_as_bchw(f, c) for f, c in zip(cls._adapt(model, spec), info.channels(), strict=True)]
        widths = [feature.shape[3] for feature in features]
        enough = [n for n, width in enumerate(widths) if width >= _PROBE_WIDTH // 8 - 1]
        # The deepest level that keeps enough time steps; where none does, the widest.
        chosen = enough[-1] if enough else widths.index(max(widths))
        return int(info.out_indices[chosen]), patch

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature map of `images`."""
        feature: Tensor = self.encoder(images)[0]
        out: Tensor = self.norm(_as_bchw(feature, self.out_channels))
        return out
