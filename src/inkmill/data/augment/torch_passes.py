"""The torch engine: the passes over a batch's pixels, whole batches at a time.

The functions below are the reference, which runs everywhere. On a GPU, Triton kernels with the same arguments take the
place of those in `_KERNELS`: removing a kernel is removing its file in `inkmill.kernels` and its entry there.

Everything is written for `torch.compile`: shapes and passes are fixed by the parameters' layout, so a spec needs one
compilation for each size of batch. Warp, colour with noise, and cutouts are one pass each over the whole batch. Blur
and JPEG run on the images that need them, gathered into a block; the pass after them reads each image from where it
lies. Between the passes a pixel takes two bytes on a GPU (four on a CPU), and from colour on one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.params import LUMA, AugmentParams, ParamLayout
from inkmill.data.augment.random_numbers import NOISE_UNIT, noise_ring
from inkmill.errors import MissingExtraError

try:
    import torch
    from torch import Tensor

    from inkmill.data.augment.detail import move, shrink
    from inkmill.data.augment.jpeg import cosine_transform, jpeg_marks, quantisation_steps
except ImportError:
    raise MissingExtraError("torch", "train", "augmentation with torch") from None

_KERNELS: dict[str, Callable[..., Tensor]] = {}
try:  # Triton comes with torch where there are GPUs, except on Windows
    from inkmill.kernels.blur import blur as blur_kernel
    from inkmill.kernels.finish import finish as finish_kernel
    from inkmill.kernels.shade import shade as shade_kernel
    from inkmill.kernels.warp import warp as warp_kernel
except ImportError:
    pass
else:
    _KERNELS = {"warp": warp_kernel, "blur": blur_kernel, "shade": shade_kernel, "finish": finish_kernel}

Rows = Mapping[str, Tensor | None]
"""For each pass of the layout's `shares` the images that it runs on, int64; None for all."""

Constants = tuple[Tensor, Tensor, Tensor]
"""The noise ring, JPEG's cosine transform and its quantisation steps, on the device."""

_RED, _GREEN, _BLUE = (float(weight) for weight in LUMA)


def apply_torch(images: Tensor, params: AugmentParams) -> Tensor:
    """Apply augmentation parameters to a batch, not compiled; `gpu.apply_deferred` is the fast way on a GPU.

    Args:
        images: uint8 (B, H, W, C), RGB or gray, on any device; not changed.
        params: sampled for this batch and size.

    Returns:
        uint8 (B, H, W, C) on the same device.

    Raises:
        ValueError: batch and parameters do not belong together.
    """
    params.check_images(tuple(images.shape))
    layout, device = params.layout, images.device
    if not layout.passes:
        return images.clone()
    rows = {name: _on(np.flatnonzero(params.values[:, layout.start(name)] > 0), device) for name in layout.shares}
    # Triton starts kernels on the current device, which need not be the images'.
    with torch.no_grad(), torch.cuda.device(device) if images.is_cuda else nullcontext():
        every = torch.arange(len(images), device=device)
        return run_passes(images, every, _on(params.values, device), rows, constants_on(device), layout)


def _on(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


def run_passes(
    images: Tensor, index: Tensor, values: Tensor, rows: Rows, constants: Constants, layout: ParamLayout
) -> Tensor:
    """Run the passes that a layout asks for.

    Args:
        images: uint8 (N, H, W, C).
        index: int64 (B,), which of the images are the batch; they are fetched where they lie.
        values: float32 (B, layout.size).
        rows: which images of the batch the expensive passes run on.
        constants: `constants_on` the images' device.
        layout: what the columns are.

    Returns:
        uint8 (B, H, W, C).
    """
    values = values.contiguous()
    run = _ON_GPU if images.is_cuda else _REFERENCE
    # 1. Resolution that was never there.
    if "shrink" in layout.passes:
        images, index = shrink_some(images[index], values, rows, layout), torch.arange(len(index), device=index.device)
    # 2. Each pixel from its place in the input.
    if "warp" in layout.passes:
        pixels = run["warp"](images, index, values, layout.start("space"), layout.start("waves"), layout.waves)
    else:
        pixels = images[index]
    return run_later_passes(pixels, values, rows, constants, layout)


def shrink_some(pixels: Tensor, values: Tensor, rows: Rows, layout: ParamLayout) -> Tensor:
    """Take resolution from the images of a batch that are to lose it, uint8 (B, H, W, C)."""
    if not _any(rows["shrink"]):
        return pixels
    return _replaced(pixels, rows["shrink"], shrink(pixels, rows["shrink"], values, layout.start("shrink")))


def run_later_passes(pixels: Tensor, values: Tensor, rows: Rows, constants: Constants, layout: ParamLayout) -> Tensor:
    """Run the passes after the warp.

    Args:
        pixels: uint8 or floats (B, H, W, C), warped.
        values, rows, constants, layout: see `run_passes`.

    Returns:
        uint8 (B, H, W, C).
    """
    ring, transform, steps = constants
    values = values.contiguous()
    run = _ON_GPU if pixels.is_cuda else _REFERENCE
    # 3. Motion and light.
    if {"motion", "light", "blur"} & set(layout.passes):
        pixels = pixels.to(torch.float16 if pixels.is_cuda else torch.float32)
    if "motion" in layout.passes and _any(rows["motion"]):
        start, radius = layout.start("motion"), layout.motion_radius
        pixels = _replaced(pixels, rows["motion"], move(pixels, rows["motion"], values, start, radius))
    if "light" in layout.passes:
        pixels = light(pixels, values, layout.start("light"))
    # 4. Blur, into a block beside the batch.
    blurred, place = None, None
    if "blur" in layout.passes and _any(rows["blur"]):
        blurred = run["blur"](pixels, rows["blur"], values, layout.start("blur"), layout.blur_radius)
        place = _places(rows["blur"], pixels)
    # 5. Colour and noise; what left whole shades is rounded to them.
    if pixels.dtype != torch.uint8 or "colour" in layout.passes or "noise" in layout.passes:
        colour, noise = layout.start("colour"), layout.start("noise")
        pixels = run["shade"](pixels, blurred, place, values, ring, colour, noise, NOISE_UNIT, (_RED, _GREEN, _BLUE))
    # 6. JPEG, into a block as well, and the rectangles that cover the image.
    marked, place = None, None
    if "jpeg" in layout.passes and _any(rows["jpeg"]):
        marked = _jpeg(pixels, rows["jpeg"], values[:, layout.start("jpeg")], transform, steps)
        place = _places(rows["jpeg"], pixels)
    if marked is not None or "cutouts" in layout.passes:
        pixels = run["finish"](pixels, marked, place, values, layout.start("cutouts"), layout.cutouts)
    return pixels


def _any(rows: Tensor | None) -> bool:
    return rows is None or len(rows) > 0


def _replaced(pixels: Tensor, rows: Tensor | None, block: Tensor) -> Tensor:
    """Return a batch in which a block takes the place of some images, or of all where rows is None."""
    return block if rows is None else pixels.index_copy(0, rows, block)


def _places(rows: Tensor | None, pixels: Tensor) -> Tensor | None:
    """Return for each image of the batch which of `rows` it is, int64 (B,), -1 for none; None if rows are all."""
    if rows is None:
        return None
    places = torch.full((len(pixels),), -1, device=pixels.device)
    return places.index_copy(0, rows, torch.arange(len(rows), device=pixels.device))


def _jpeg(pixels: Tensor, rows: Tensor | None, quality: Tensor, transform: Tensor, steps: Tensor) -> Tensor:
    if rows is not None:
        pixels, quality = pixels[rows], quality[rows]
    marked = jpeg_marks(pixels.float(), quality, transform, steps).round().to(torch.uint8)
    return torch.where((quality > 0)[:, None, None, None], marked, pixels)


@lru_cache(maxsize=8)
def constants_on(device: torch.device) -> Constants:
    """Return what the passes read on a device: the noise ring, JPEG's cosine transform and quantisation steps."""
    return _on(noise_ring().copy(), device), cosine_transform().to(device), quantisation_steps().to(device)


def warp(images: Tensor, index: Tensor, values: Tensor, space: int, waves: int, wave_count: int) -> Tensor:
    """Fetch each output pixel from its place in the input, bilinear, borders repeated.

    Args:
        images: uint8 (N, H, W, C).
        index: int64 (B,), which of the images.
        values: float32 (B, columns).
        space, waves: first columns of these parts, -1 where they are absent.
        wave_count: number of waves.

    Returns:
        Floats (B, H, W, C).
    """
    batch, (height, width) = len(index), images.shape[1:3]
    x = torch.arange(width, device=images.device, dtype=torch.float32)[None, None, :].expand(batch, height, width)
    y = torch.arange(height, device=images.device, dtype=torch.float32)[None, :, None].expand(batch, height, width)
    # 1. Where each output pixel comes from: the waves, then the matrix in homogeneous coordinates.
    moved_x, moved_y = x, y
    for k in range(wave_count):
        shift_x, shift_y, frequency_x, frequency_y, phase = _columns(values, waves + 5 * k, 5)
        sine = torch.sin(frequency_x * x + frequency_y * y + phase)
        moved_x, moved_y = moved_x + shift_x * sine, moved_y + shift_y * sine
    x, y = moved_x, moved_y
    if space >= 0:
        m = _columns(values, space, 9)
        w = m[6] * x + m[7] * y + m[8]
        x, y = (m[0] * x + m[1] * y + m[2]) / w, (m[3] * x + m[4] * y + m[5]) / w
    # 2. What is there: the four pixels around, weighted.
    source_x, source_y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    left, top = source_x.floor(), source_y.floor()
    right_share, low_share = (source_x - left)[..., None], (source_y - top)[..., None]
    x0, y0 = left.int(), top.int()
    x1, y1 = (x0 + 1).clamp(max=width - 1), (y0 + 1).clamp(max=height - 1)
    image = index[:, None, None]
    upper = torch.lerp(images[image, y0, x0].float(), images[image, y0, x1].float(), right_share)
    lower = torch.lerp(images[image, y1, x0].float(), images[image, y1, x1].float(), right_share)
    return torch.lerp(upper, lower, low_share)


def _columns(values: Tensor, first: int, count: int) -> tuple[Tensor, ...]:
    """Return some columns of (B, columns) for arithmetic with (B, H, W): each (B, 1, 1)."""
    return values[:, first : first + count, None, None].unbind(1)


def light(pixels: Tensor, values: Tensor, column: int) -> Tensor:
    """Multiply brightness by a ramp across each image, and cut it to 0..255: floats (B, H, W, C) of the same dtype."""
    height, width = pixels.shape[1:3]
    x = ((torch.arange(width, device=pixels.device) + 0.5) * 2 / width - 1)[None, None, :]
    y = ((torch.arange(height, device=pixels.device) + 0.5) * 2 / height - 1)[None, :, None]
    across, down = _columns(values, column, 2)
    return (pixels * (1 + across * x + down * y)[..., None]).clamp(0, 255).to(pixels.dtype)


def blur(pixels: Tensor, rows: Tensor | None, values: Tensor, column: int, radius: int) -> Tensor:
    """Blur some images: a Gaussian, cut at 3 sigma, borders repeated.

    Two matrix products, which take the same time for any sigma.

    Args:
        pixels: floats (B, H, W, C).
        rows: int64 (n,), which images; None for all.
        values: float32 (B, columns).
        column: where sigma is.
        radius: of the largest kernel in pixels.

    Returns:
        Floats (n, H, W, C).
    """
    sigma = values[:, column, None]
    if rows is not None:
        pixels, sigma = pixels[rows], sigma[rows]
    batch, height, width, channels = pixels.shape
    across, down = (_blurring(sigma, size, radius).to(pixels.dtype) for size in (width, height))
    sideways = pixels.permute(0, 2, 1, 3).reshape(batch, width, height * channels)
    sideways = torch.bmm(across, sideways).reshape(batch, width, height, channels)
    upright = sideways.permute(0, 2, 1, 3).reshape(batch, height, width * channels)
    return torch.bmm(down, upright).reshape(batch, height, width, channels)


def _blurring(sigma: Tensor, size: int, radius: int) -> Tensor:
    """Return (B, size, size) from (B, 1): a Gaussian in each row; what reaches beyond the border falls on its pixel."""
    taps = torch.arange(-radius, radius + 1, device=sigma.device)
    weights = torch.exp(-0.5 * (taps / sigma.clamp(min=1e-3)) ** 2) * (taps.abs() <= torch.ceil(3 * sigma))
    weights = weights / weights.sum(dim=1, keepdim=True)
    places = (torch.arange(size, device=sigma.device)[:, None] + taps).clamp(0, size - 1)
    shape = len(sigma), *places.shape
    matrix = torch.zeros(len(sigma), size, size, device=sigma.device)
    return matrix.scatter_add(2, places.expand(shape), weights[:, None].expand(shape))


def shade(
    pixels: Tensor,
    blurred: Tensor | None,
    place: Tensor | None,
    values: Tensor,
    ring: Tensor,
    colour: int,
    noise: int,
    noise_unit: float,
    luma: tuple[float, float, float],
) -> Tensor:
    """Put the blurred images in their places, apply colour and noise, and round.

    Args:
        pixels: floats or uint8 (B, H, W, C).
        blurred: of the same dtype (n, H, W, C), what takes the place of some images; None for nothing.
        place: int64 (B,), where in `blurred` an image lies, -1 for nowhere; None if `blurred` is all images, or None.
        values: float32 (B, columns).
        ring: int8 (a power of two,), the noise.
        colour, noise: first columns of these parts, -1 where they are absent.
        noise_unit: the ring's standard deviation.
        luma: weights of red, green and blue in gray.

    Returns:
        uint8 (B, H, W, C).
    """
    pixels = _merged(pixels, blurred, place).float()
    if colour >= 0:
        pixels = _mix_colours(pixels, values[:, colour : colour + 12], luma).clamp(0, 255)
    if noise >= 0:
        offsets = torch.arange(pixels[0].numel(), device=pixels.device, dtype=torch.int32).reshape(pixels.shape[1:])
        # The ring's length is a power of two, so that no division is needed to stay in it.
        places = (values[:, noise + 1].int()[:, None, None, None] + offsets) & (len(ring) - 1)
        pixels = pixels + ring[places].float() * (values[:, noise] / noise_unit)[:, None, None, None]
    return pixels.clamp(0, 255).round().to(torch.uint8)


def _mix_colours(pixels: Tensor, colour: Tensor, luma: tuple[float, float, float]) -> Tensor:
    if pixels.shape[3] == 1:  # see params.gray_gain
        m = colour.reshape(-1, 12, 1, 1, 1).unbind(1)
        factor = sum(luma[c] * (m[4 * c] + m[4 * c + 1] + m[4 * c + 2]) for c in range(3))
        return pixels * factor + sum(luma[c] * m[4 * c + 3] for c in range(3))
    m = colour.reshape(-1, 12, 1, 1).unbind(1)
    red, green, blue = pixels.unbind(3)
    return torch.stack(
        [m[4 * c] * red + m[4 * c + 1] * green + m[4 * c + 2] * blue + m[4 * c + 3] for c in range(3)], dim=3
    )


def finish(
    pixels: Tensor, marked: Tensor | None, place: Tensor | None, values: Tensor, cutouts: int, count: int
) -> Tensor:
    """Put the compressed images in their places, and paint the cutouts.

    Args:
        pixels: uint8 (B, H, W, C).
        marked: uint8 (n, H, W, C), what takes the place of some images; None for nothing.
        place: int64 (B,), where in `marked` an image lies, -1 for nowhere; None if `marked` is all images, or None.
        values: float32 (B, columns).
        cutouts: first column of this part, -1 where it is absent.
        count: number of rectangles.

    Returns:
        uint8 (B, H, W, C).
    """
    pixels = _merged(pixels, marked, place)
    x = torch.arange(pixels.shape[2], device=pixels.device)[None, None, :]
    y = torch.arange(pixels.shape[1], device=pixels.device)[None, :, None]
    for number in range(count):
        left, top, right, bottom, shade = _columns(values, cutouts + 5 * number, 5)
        inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        pixels = torch.where(inside[..., None], shade[..., None].round().to(torch.uint8), pixels)
    return pixels


def _merged(pixels: Tensor, changed: Tensor | None, place: Tensor | None) -> Tensor:
    if changed is None or place is None:
        return pixels if changed is None else changed
    return torch.where((place >= 0)[:, None, None, None], changed[place.clamp(min=0)], pixels)


_REFERENCE: dict[str, Callable[..., Tensor]] = {"warp": warp, "blur": blur, "shade": shade, "finish": finish}
_ON_GPU = _REFERENCE | _KERNELS
