"""Mixup and CutMix: a training image with a part of another one of its batch, and labels in the same shares.

Like every augmentation they are numbers of (seed, epoch, index), sampled on the host and applied on the training
device after all others, so that every loader and engine gives the same. The other image is the one before in the
batch, which the order has shuffled.

    mixup    Zhang et al. 2018: both images are blended; the share is of Beta(alpha, alpha)
    cutmix   Yun et al. 2019: a rectangle of the other image is pasted; its area is of Beta(alpha, alpha)
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import sample_states, stream_ids, stream_offsets, uniforms

if TYPE_CHECKING:
    from torch import Tensor

_OP = 900_000  # beyond the numbers of any list of ops, whose random numbers are others
_QUANTILES = 4096


def sample_mixing(mixup: float, cutmix: float, seed: int, epoch: int, index: NDArray[np.int64]) -> NDArray[np.float32]:
    """Sample what is taken of the other image.

    Args:
        mixup, cutmix: alpha of each, 0 for none; where both are wanted each image gets one of them, by a fair coin.
        seed: of the run.
        epoch: another one gives other numbers.
        index: int64 (B,), positions of the samples in the source.

    Returns:
        float32 (B, 5): share in 0..1 with which the other image is blended in; left, top, right, bottom of the
        rectangle that is pasted, in 0..1 of the image. Only one of the two is not empty.
    """
    states = sample_states(seed, epoch, np.asarray(index, np.int64))
    coin, share, x, y = uniforms(states, stream_offsets(stream_ids(_OP, 4)))
    cut = coin < 0.5 if mixup and cutmix else np.full(len(coin), bool(cutmix))
    numbers = np.zeros((len(coin), 5), np.float32)
    if mixup:
        numbers[:, 0] = np.where(cut, 0.0, _beta(mixup, share))
    if cutmix:
        # The rectangle has the image's aspect ratio; where it sticks out it is clipped, as in the paper.
        half = np.sqrt(_beta(cutmix, share)) / 2
        sides = np.stack([x - half, y - half, x + half, y + half], axis=1).clip(0, 1)
        numbers[:, 1:] = np.where(cut[:, None], sides, 0.0)
    return numbers


def mix(images: Tensor, labels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return images with a part of the one before in the batch, and their labels in the shares of the pixels.

    Args:
        images: uint8 (B, H, W, C).
        labels: float (B, classes): 1 present, 0 absent, -1 unknown.
        numbers: float32 (B, 5) of `sample_mixing`, on the images' device.

    Returns:
        uint8 (B, H, W, C) and float (B, classes); a class that is unknown in either image stays unknown.
    """
    import torch

    if len(images) < 2:
        return images, labels
    # 1. How much of the other image each pixel gets.
    height, width = images.shape[1:3]
    blend, left, top, right, bottom = numbers.T[:, :, None, None]
    row = ((torch.arange(height, device=images.device) + 0.5) / height)[:, None]
    column = ((torch.arange(width, device=images.device) + 0.5) / width)[None, :]
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    share = torch.where(inside, torch.ones_like(blend), blend)
    # 2. Pixels and labels in these shares.
    other = images.roll(1, 0).float()
    mixed = torch.lerp(images.float(), other, share[..., None]).add_(0.5).to(torch.uint8)
    part = share.mean(dim=(1, 2))[:, None]
    others = labels.roll(1, 0)
    known = (labels >= 0) & (others >= 0)
    blended = torch.where(known, torch.lerp(labels, others, part), torch.full_like(labels, -1))
    return mixed, torch.where(part > 0, blended, labels)


def _beta(alpha: float, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers of Beta(alpha, alpha) for uniform ones, by its inverse distribution."""
    quantiles = _beta_quantiles(alpha)
    return np.interp(u, np.linspace(0, 1, len(quantiles)), quantiles)


@lru_cache(maxsize=8)
def _beta_quantiles(alpha: float) -> NDArray[np.float64]:
    """Return the inverse of the distribution on a grid; by symmetry and a fixed sample it is the same everywhere."""
    some = np.random.default_rng(0).beta(alpha, alpha, 16 * _QUANTILES)
    return np.asarray(np.quantile(np.concatenate([some, 1 - some]), np.linspace(0, 1, _QUANTILES)))
