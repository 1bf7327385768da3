"""The detector: a picture to a map that says how surely each place is in the middle of a text.

    images (B, C, H, W)
      encoder        four maps, 1/4 to 1/32           encoders.py
      pyramid        each map sees the coarser ones; all four side by side at 1/4 (Lin et al. 2017)
      heads          probability and, in training only, threshold: (B, H/2, W/2) each (Liao et al. 2020, "DB")

The heads work at half of the picture's size: maps of a quarter cost half of the tight boxes, and whole ones cost four
times the memory. What is between their pixels is linear, and the targets are made for that (targets.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.config.model import ModelSpec
from inkmill.data.types import Batch
from inkmill.errors import ConfigError
from inkmill.nn.backbones.base import Backbone, Limits
from inkmill.nn.init import initialise
from inkmill.nn.simulate import simulate_int8
from inkmill.tasks.detection.decode import PROBABILITIES
from inkmill.tasks.detection.encoders import REDUCTIONS, build_encoder, conv_norm
from inkmill.tasks.detection.losses import LossName, detection_loss
from inkmill.tasks.detection.targets import MapOptions, move_points, picture_of, text_maps
from inkmill.tasks.model import TaskModel, Tensors, to_device

STRIDE = 2
"""Pixels of the picture that a pixel of the maps covers, along each side."""


class Pyramid(Backbone):
    """Encoder and pyramid: (B, input_channel, H, W) to (B, out_channels, H / 4, W / 4); H and W multiples of 32."""

    limits = Limits(min_height=64, min_width=64, multiple=REDUCTIONS[-1])

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.encoder, width = build_encoder(spec)
        parts = len(REDUCTIONS)
        self.lateral = nn.ModuleList(conv_norm(channels, width, 1) for channels in self.encoder.channels)
        self.smooth = nn.ModuleList(conv_norm(width, width // 4) for _ in range(parts))
        self.out_channels = parts * (width // 4)
        for part in (self.lateral, self.smooth):
            initialise(part)

    def forward(self, images: Tensor) -> Tensor:
        """Return the map of `images`."""
        maps = [lateral(one) for lateral, one in zip(self.lateral, self.encoder(images), strict=True)]
        # 1. From coarse to fine, each map adds what the one above it saw.
        for fine in range(len(maps) - 2, -1, -1):
            maps[fine] = maps[fine] + F.interpolate(maps[fine + 1], scale_factor=2.0, mode="nearest")
        # 2. All of them at the size of the finest.
        smoothed = [smooth(one) for smooth, one in zip(self.smooth, maps, strict=True)]
        sized = [F.interpolate(one, scale_factor=2.0**n, mode="nearest") for n, one in enumerate(smoothed[1:], 1)]
        return torch.cat([smoothed[0], *sized], dim=1)


class MapHead(nn.Module):
    """(B, C, H, W) to logits (B, 1, 2 H, 2 W)."""

    float_parts = ("last",)  # its outputs are looked at between their steps

    def __init__(self, channels: int, width: int, bias: float) -> None:
        super().__init__()
        self.first = conv_norm(channels, 2 * width)
        self.larger = nn.ConvTranspose2d(2 * width, width, 2, 2, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        initialise(self)
        # Unsure at the start: logits about the bias, for most of a picture is ground, whose loss would drown the rest.
        nn.init.normal_(self.last.weight, std=0.01)
        nn.init.constant_(self.last.get_parameter("bias"), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.last(F.relu(self.norm(self.larger(self.first(x)))))
        return out


class Detector(TaskModel):
    """A detector.

    Args:
        spec: backbone and input; text's own keys (TPS, sequence, prediction) have no effect.
        maps: how its targets are made.
        loss: of the probability map.

    Raises:
        ConfigError: an unknown backbone, or an input size that it cannot take.
    """

    training_parts = ("threshold",)

    def __init__(self, spec: ModelSpec, maps: MapOptions, loss: LossName) -> None:
        super().__init__()
        if spec.TPS:
            raise ConfigError("model.TPS straightens a line of text; a detector has no use for it: leave it out")
        self.spec, self.maps, self._loss = spec, maps, loss
        self.backbone = Pyramid(spec)
        self.backbone.limits.check(spec.backbone, spec.input_height, spec.input_width)
        self.rectifier: nn.Module = nn.Identity()
        width = max(8, self.backbone.out_channels // 4)
        self.probability = MapHead(self.backbone.out_channels, width, bias=-3.0)
        self.threshold = MapHead(self.backbone.out_channels, width, bias=0.0)
        if spec.quantize:
            simulate_int8(self)

    def features(self, images: Tensor) -> Tensor:
        """Return the pyramid's map of (B, C, H, W) images: (B, channels, H / 4, W / 4)."""
        found: Tensor = self.backbone(images)
        return found

    def forward(self, images: Tensor, *taught: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of probability and threshold: (B, H / 2, W / 2) each."""
        found = self.features(images)
        return self.probability(found)[:, 0], self.threshold(found)[:, 0]

    def to_targets(self, encoded: tuple[NDArray[Any], ...], batch: Batch, images: Tensor) -> Tensors:
        """Return the maps of a batch, float32 (B, 3, H / 2, W / 2), made on the images' device.

        Args:
            encoded: points, starts, pictures, ignore; see `Detection.encode`.
            batch: where its regions are in pixels of the pictures, `matrix` leads to those of the input.
            images: the network's input.
        """
        size, matrix = (images.shape[2], images.shape[3]), batch.matrix
        make = maps_on_gpu if images.device.type == "cuda" else maps_on_cpu
        return (make(encoded, matrix, size, self.maps, images.device),)

    def loss(self, outputs: tuple[Tensor, Tensor], targets: Tensors) -> Tensor:
        """See TaskModel.loss; targets are the maps."""
        return detection_loss(*outputs, targets[0], self._loss)

    def outputs(self, images: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See TaskModel.outputs."""
        return {PROBABILITIES: self.probability(self.features(images))[:, 0].float().sigmoid()}

    def outputs_and_loss(
        self, images: Tensor, targets: Tensors, names: tuple[str, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """See TaskModel.outputs_and_loss."""
        found = self(images)
        return {PROBABILITIES: found[0].float().sigmoid()}, self.loss(found, targets)

    def feature_axes(self) -> dict[str, int]:
        """See Network.feature_axes."""
        return {"probability.first.0.weight": 1, "threshold.first.0.weight": 1}

    def described(self) -> str:
        """Return backbone and neck."""
        return f"{self.spec.backbone} + pyramid of {self.backbone.out_channels} channels"

    def probe(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """See Network.probe."""
        return self.full_pass(images), (len(images), *(side // STRIDE for side in images.shape[2:]))

    def full_pass(self, images: Tensor) -> Tensor:
        """See Network.full_pass; what reading gives, without the threshold."""
        found: Tensor = self.probability(self.features(images))[:, 0]
        return found


def maps_on_cpu(
    encoded: tuple[NDArray[Any], ...], matrix: Any, size: tuple[int, int], options: MapOptions, device: torch.device
) -> Tensor:
    """Return the maps of a batch, made by NumPy; arguments as of `maps_on_gpu`."""
    points, starts, pictures, ignore = encoded
    if matrix is not None:
        points = move_points(points, picture_of(starts, pictures), np.asarray(matrix, np.float64))
    return torch.from_numpy(text_maps(points, starts, pictures, ignore, size, options)).to(device)


def maps_on_gpu(
    encoded: tuple[NDArray[Any], ...], matrix: Any, size: tuple[int, int], options: MapOptions, device: torch.device
) -> Tensor:
    """Return the maps of a batch, made on a GPU and not waited for.

    Args:
        encoded: points, starts, pictures, ignore; see `Detection.encode`.
        matrix: (B, 3, 3), array or tensor, from pixels of the pictures to those of the input; None: they are the same.
        size: height and width of the input.
        options: how.
        device: the GPU.
    """
    from inkmill.kernels import text_maps as kernels

    points, starts, pictures, ignore = (to_device(array, device) for array in encoded)
    with torch.cuda.device(device):
        if matrix is not None:
            rows = to_device(picture_of(encoded[1], encoded[2]), device)
            matrix = matrix if isinstance(matrix, Tensor) else to_device(np.asarray(matrix, np.float32), device)
            points = kernels.move_points(points, rows, matrix)
        shrinks, share = options.rule == "shrink", options.share
        least = (options.min_height, options.min_visible, options.stride)
        return kernels.text_maps(points, starts, pictures, ignore, size, shrinks, share, *least)
