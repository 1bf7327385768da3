"""Thin-plate-spline rectifier (RARE, Shi et al. 2016, arXiv:1603.03915; STN, Jaderberg et al. 2015).

A small network places control points along both edges of the text; the spline through them says, for each output pixel,
where in the input to look. The grid spans pixel centres from corner to corner (align_corners), so control points on
their base positions give the input back exactly. Output size = input size, fixed when built.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.errors import ConfigError
from inkmill.nn.backbones.blocks import conv_bn_relu
from inkmill.nn.init import initialise

Points = NDArray[np.float64]


def base_points(num_fiducial: int) -> Points:
    """Return the (num_fiducial, 2) x, y positions on the straightened text, in [-1, 1]: top edge, then bottom edge.

    Raises:
        ConfigError: an odd number of points, or fewer than four.
    """
    if num_fiducial < 4 or num_fiducial % 2:
        raise ConfigError(
            f"model.num_fiducial must be even and at least 4 (half the points lie on each edge of the text), "
            f"not {num_fiducial}: set model.num_fiducial=20, for example"
        )
    x = np.linspace(-1, 1, num_fiducial // 2)  # half of the points on each edge
    return np.concatenate([np.stack([x, np.full_like(x, -1)], 1), np.stack([x, np.full_like(x, 1)], 1)])


def _radial(a: Points, b: Points) -> Points:
    """Return r^2 log r between the points of a and b, the kernel of the thin plate; 0 where they meet."""
    squared = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    kernel: Points = 0.5 * squared * np.log(np.where(squared == 0, 1, squared))
    return kernel


def spline_matrix(num_fiducial: int, height: int, width: int) -> NDArray[np.float32]:
    """Return the (height*width, num_fiducial) matrix that takes control points to sampling positions.

    Everything about the spline but the points is fixed, so its linear system is solved once, in float64.
    """
    # 1. The spline's linear system: its values at the base points, and no bending from the affine part.
    base = base_points(num_fiducial)
    affine = np.concatenate([np.ones((num_fiducial, 1)), base], axis=1)
    system = np.zeros((num_fiducial + 3, num_fiducial + 3))
    system[:num_fiducial, :3], system[:num_fiducial, 3:] = affine, _radial(base, base)
    system[num_fiducial:, 3:] = affine.T

    # 2. Every pixel's features, times the solved system: one matrix from points to positions.
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    pixels = np.stack([x.ravel(), y.ravel()], axis=1)
    features = np.concatenate([np.ones((len(pixels), 1)), pixels, _radial(pixels, base)], axis=1)
    matrix: NDArray[np.float32] = (features @ np.linalg.inv(system)[:, :num_fiducial]).astype(np.float32)
    return matrix


class TPS(nn.Module):
    """Straighten text: (B, C, H, W) to the same shape, sampled bilinearly, the border repeated outside the input.

    Raises:
        ConfigError: num_fiducial is odd or below four.
    """

    matrix: Tensor
    float_parts = ("hidden", "points")  # they place points to fractions of a pixel, which needs 32 bits

    def __init__(self, num_fiducial: int, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.size = (height, width)
        # Not saved: it follows from the sizes, and weights then fit a model of another input size.
        self.register_buffer("matrix", torch.from_numpy(spline_matrix(num_fiducial, height, width)), persistent=False)
        self.localisation = nn.Sequential(
            *(conv_bn_relu(channels, 64), nn.MaxPool2d(2), conv_bn_relu(64, 128), nn.MaxPool2d(2)),
            *(conv_bn_relu(128, 256), nn.MaxPool2d(2), conv_bn_relu(256, 512)),
        )
        self.hidden = nn.Sequential(nn.Linear(512, 256), nn.ReLU(inplace=True))
        self.points = nn.Linear(256, 2 * num_fiducial)
        initialise(self)
        self._start_as_in_rare(num_fiducial)

    def _start_as_in_rare(self, num_fiducial: int) -> None:
        """First guess of fig. 6a of RARE: both edges slope, so that gradients tell the two apart from the start."""
        x = np.linspace(-1, 1, num_fiducial // 2)
        slope = np.linspace(0, -1, num_fiducial // 2)
        points = np.concatenate([np.stack([x, slope], 1), np.stack([x, slope[::-1] * -1], 1)])
        nn.init.zeros_(self.points.weight)
        with torch.no_grad():  # copied, not replaced: the model may be built without memory, to ask for its shapes
            self.points.bias.copy_(torch.from_numpy(points.astype(np.float32).ravel()))

    def control_points(self, images: Tensor) -> Tensor:
        """Return the (B, num_fiducial, 2) points, x and y in [-1, 1] of the input."""
        features = self.localisation(images).mean(dim=(2, 3))  # any input size
        with torch.autocast(images.device.type, enabled=False):
            points: Tensor = self.points(self.hidden(features.to(self.points.weight.dtype)))
        return points.view(images.shape[0], points.shape[1] // 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return the straightened images."""
        # Points and grid are 32-bit whatever the training precision: bf16 cannot tell neighbouring pixels of a
        # 200-pixel line apart.
        points = self.control_points(images).to(self.matrix.dtype)
        with torch.autocast(images.device.type, enabled=False):
            grid = (self.matrix @ points).view(images.shape[0], *self.size, 2)
            sampled = F.grid_sample(images.to(grid.dtype), grid, padding_mode="border", align_corners=True)
        return sampled.to(images.dtype)
