"""Synthetic text on the device that trains: rows are sampled and images composed there; texts come from the CPU.

On a GPU nothing waits: what is queued is in the order of the current stream. On a CPU the NumPy halves do the work, so
that loaders are the same everywhere. Needs torch.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.params import LUMA
from inkmill.data.augment.torch_passes import constants_on, run_passes
from inkmill.synth.engine import SynthEngine
from inkmill.synth.params import EM_PIXELS, SLICES, STEPS_PER_PIXEL, SynthParams
from inkmill.synth.text import Codes

_Table = TypeVar("_Table")
_COLUMNS = {name: part.start for name, part in SLICES.items()}


class DeviceEngine:
    """Draws the samples of an engine on a device.

    Args:
        engine: what to draw from.
        device: where rows and images are made.

    Raises:
        ConfigError: a GPU without Triton.
    """

    def __init__(self, engine: SynthEngine, device: torch.device) -> None:
        self.engine, self.device = engine, device
        self.on_gpu = device.type == "cuda"
        if not self.on_gpu:
            return
        self._sampler = engine.sampler.on(device)
        self._glyphs = _moved(engine.atlas.glyphs, device)
        pictures = engine.grounds.pictures
        fourth = np.zeros((*pictures.shape[:3], 1), np.uint8)  # so that a pixel is one load of four bytes
        self._pictures = _on(np.concatenate([pictures, fourth], axis=3), device)

    def rows(self, states: NDArray[np.uint64], codes: Codes, others: Codes) -> SynthParams:
        """Return the rows of samples, tensors on a GPU, arrays of NumPy on a CPU.

        Args:
            states: uint64 (B,), of the samples.
            codes, others: as `SynthEngine.codes` gives them.
        """
        if not self.on_gpu:
            return self.engine.sampler.sample(np, states, codes, others)
        arrays = (_on(array, self.device) for array in (states.view(np.int64), codes, others))
        with torch.no_grad():
            return _packed(self._sampler.sample(torch, *arrays))

    def images(
        self, params: SynthParams, size: tuple[int, int], channels: int, widths: NDArray[np.int32] | None = None
    ) -> Tensor:
        """Draw rows.

        Args:
            params: of `rows`.
            size: height and width in pixels.
            channels: 3 for RGB, 1 for gray.
            widths: int32 (B,), columns to draw into, the last of which is repeated; None for all.

        Returns:
            uint8 (B, height, width, channels) on the device.
        """
        images = self._on_gpu(params, size, widths) if self.on_gpu else self._on_cpu(params, size, widths)
        return images if channels == 3 else _gray(images)

    def _on_gpu(self, params: SynthParams, size: tuple[int, int], widths: NDArray[np.int32] | None) -> Tensor:
        from inkmill.kernels.compose import compose

        values: Any = params.values
        glyphs: Any = params.glyphs
        places: Any = params.places
        columns = None if widths is None else _on(widths, self.device)
        tables: Any = self._glyphs
        with torch.cuda.device(self.device):
            return compose(
                *(values, glyphs, places, tables.distances, tables.boxes, self._pictures, size, _COLUMNS),
                STEPS_PER_PIXEL * EM_PIXELS,
                columns,
            )

    def _on_cpu(self, params: SynthParams, size: tuple[int, int], widths: NDArray[np.int32] | None) -> Tensor:
        height, width = size
        if widths is None:
            return torch.from_numpy(self.engine.images(params, height, width))
        images = np.empty((len(params), height, width, 3), np.uint8)
        for columns in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == columns)
            images[rows, :, :columns] = self.engine.images(params.rows(rows), height, columns)
            images[rows, :, columns:] = images[rows, :, columns - 1 : columns]
        return torch.from_numpy(images)


@dataclass(frozen=True, eq=False)
class Changed:
    """The random changes of some images, sampled and not yet applied.

    Attributes:
        values: float32 (B, columns), on the device.
        needed: for each expensive pass, bool (B,), which images need it.
    """

    values: Tensor
    needed: dict[str, NDArray[np.bool_]]

    def rows(self, part: slice) -> Changed:
        """Return those of some images."""
        return Changed(self.values[part], {name: needed[part] for name, needed in self.needed.items()})


class DeviceChanges:
    """Random changes to images on a device, sampled for many images at a time and applied a batch at a time.

    Nothing is compiled: sampling, which is a thousand small steps, is done for ten thousand images at once, and a
    batch takes some dozen. Compiled, each image size would keep the first minutes of a run busy.

    Args:
        augmentation: what to sample.
        device: where the images are.
    """

    def __init__(self, augmentation: Augmentation, device: torch.device) -> None:
        self._augmentation, self._device = augmentation, device
        self._offsets = _on(augmentation.offsets.view(np.int64), device)
        self._constants = constants_on(device)

    def sample(self, states: NDArray[np.uint64], size: tuple[int, int]) -> Changed:
        """Sample the changes of samples whose images have a size, height and width; what `Augmentation.sample` does."""
        layout = self._augmentation.layout
        with torch.no_grad():
            numbers = self._augmentation.columns(torch, _on(states.view(np.int64), self._device), self._offsets, *size)
            ones = torch.ones(len(states), device=self._device)
            columns = [ones * column if isinstance(column, float) else column.float() for column in numbers]
            values = torch.stack(columns, dim=1)
        return Changed(values, {name: self._augmentation.rows_with(name, states) for name in layout.shares})

    def apply(self, images: Tensor, changed: Changed) -> Tensor:
        """Return the changed images, uint8 (B, H, W, C), on a GPU not waited for."""
        rows = {name: _on(np.flatnonzero(needed), self._device) for name, needed in changed.needed.items()}
        every = torch.arange(len(images), device=self._device)
        current = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), current:
            return run_passes(images, every, changed.values, rows, self._constants, self._augmentation.layout)


def _packed(params: SynthParams) -> SynthParams:
    """Return rows on a GPU whose glyphs come first and places without one last, no more of these than needed."""
    glyphs: Any = params.glyphs
    places: Any = params.places
    order = torch.argsort((glyphs < 0).to(torch.int8), dim=1, stable=True)
    order = order[:, : max(1, int((glyphs >= 0).sum(dim=1).max()))]
    return SynthParams(
        params.values, params.codes, glyphs.gather(1, order), places.gather(1, order[..., None].expand(-1, -1, 8))
    )


def take(params: SynthParams, rows: NDArray[np.int64]) -> SynthParams:
    """Return some of the rows, wherever they are; only what a composer reads is copied on a GPU."""
    if isinstance(params.values, np.ndarray):
        return params.rows(rows)
    where = _on(rows, params.values.device)
    glyphs: Any = params.glyphs
    places: Any = params.places
    return SynthParams(params.values[where], params.codes, glyphs[where], places[where])


def _gray(images: Tensor) -> Tensor:
    weights = torch.from_numpy(LUMA).to(images.device)
    return (images.float() @ weights).round().to(torch.uint8)[..., None]


def _on(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _moved(table: _Table, device: torch.device) -> _Table:
    """Return a dataclass of arrays with tensors on a device in their place."""
    arrays = {field.name: getattr(table, field.name) for field in fields(table)}  # type: ignore[arg-type]
    moved = {
        name: _on(array.view(np.int64) if array.dtype == np.uint64 else array, device)
        for name, array in arrays.items()
        if isinstance(array, np.ndarray)
    }
    return replace(table, **moved)  # type: ignore[type-var]
