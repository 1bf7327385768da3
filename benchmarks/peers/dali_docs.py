"""NVIDIA DALI as its documentation shows it for data it has no reader for: external_source, one image a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask
from inkmill.bench.workload import strong_ranges
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor


class EncodedCrop:
    """The callable of DALI's "parallel external source" page: SampleInfo in, encoded bytes out, shuffled each epoch."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed = source, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, info: Any) -> NDArray[np.uint8]:
        """Return the bytes of the sample at this place of the epoch."""
        epoch, position = divmod(info.idx_in_epoch, len(self._source))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self._seed, epoch)).permutation(len(self._source))
        return np.frombuffer(self._source.get(int(self._order[position])).image, np.uint8)


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = _pipeline(task)
    for (batch,) in DALIGenericIterator([pipeline], ["images"], size=-1, auto_reset=False):
        yield batch["images"].clone()  # DALI uses its buffers again


def _pipeline(task: LoadTask) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    gpu = task.device.startswith("cuda")

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=task.batch_size,
        num_threads=max(1, task.workers),
        device_id=0 if gpu else None,
        py_num_workers=max(1, task.workers // 2),
        py_start_method="spawn",
        enable_conditionals=True,
    )
    def crops() -> Any:
        encoded = fn.external_source(EncodedCrop(task.source, task.seed), parallel=True, batch=False, dtype=types.UINT8)
        images = fn.decoders.image(encoded, device="mixed" if gpu else "cpu", output_type=types.RGB)
        images = fn.resize(images, size=(task.resize.height, task.resize.width))
        if task.augment == "strong":
            images = _warp(images, task.resize.width, task.resize.height)
            images = _colours(images)
            images = _marks(images)
        return images

    pipeline = crops()
    pipeline.build()
    return pipeline


def _sometimes(p: float, drawn: Any, neutral: float) -> Any:
    """Return drawn numbers for a share `p` of the images and the neutral number for the rest."""
    from nvidia.dali import fn, types

    happens = fn.cast(fn.random.coin_flip(probability=p), dtype=types.FLOAT)
    return drawn * happens + neutral * (1 - happens)


def _uniform(limits: tuple[float, float]) -> Any:
    from nvidia.dali import fn

    return fn.random.uniform(range=limits)


def _warp(images: Any, width: int, height: int) -> Any:
    """Rotate, shear, scale, shift and tilt in one warp."""
    from nvidia.dali import fn

    s, centre = strong_ranges(), (width / 2, height / 2)
    zoom = [_sometimes(s.scale.p, _uniform(s.scale.factor), 1.0) for _ in "xy"]
    shear = [_sometimes(s.shear.p, _uniform(limits), 0) for limits in (s.shear.degrees_x, s.shear.degrees_y)]
    way = [_sometimes(s.shift.p, _uniform(r), 0) * side for r, side in ((s.shift.x, width), (s.shift.y, height))]
    matrix = fn.transforms.rotation(angle=_sometimes(s.rotate.p, _uniform(s.rotate.degrees), 0), center=centre)
    matrix = fn.transforms.shear(matrix, angles=fn.stack(*shear), center=centre)
    matrix = fn.transforms.scale(matrix, scale=fn.stack(*zoom), center=centre)
    matrix = fn.transforms.translation(matrix, offset=fn.stack(*way))
    # DALI's transforms end at affine: the last row of a perspective is stacked below; depth stays 1 in the centre.
    limits = ((s.perspective.x, width), (s.perspective.y, height))
    tilt = [_sometimes(s.perspective.p, _uniform(r), 0) / side for r, side in limits]
    depth = 1 - tilt[0] * centre[0] - tilt[1] * centre[1]
    last = fn.reshape(fn.stack(*tilt, depth), shape=(1, 3))
    return fn.experimental.warp_perspective(images, matrix=fn.cat(matrix, last, axis=0), border_mode="replicate")


def _colours(images: Any) -> Any:
    from nvidia.dali import fn, types

    s = strong_ranges()
    colourful = 1 - fn.cast(fn.random.coin_flip(probability=s.gray.p), dtype=types.FLOAT)
    images = fn.color_twist(
        images,
        brightness=_sometimes(s.brightness.p, _uniform(s.brightness.factor), 1),
        contrast=_sometimes(s.contrast.p, _uniform(s.contrast.factor), 1),
        saturation=colourful * _sometimes(s.saturation.p, _uniform(s.saturation.factor), 1),
        hue=_sometimes(s.hue.p, _uniform(s.hue.degrees), 0),
    )
    return images ^ fn.cast(fn.random.coin_flip(probability=s.invert.p) * 255, dtype=types.UINT8)


def _marks(images: Any) -> Any:
    """Blur, noise, JPEG and cut-outs, each for its share of the batch (DALI's conditional execution)."""
    from nvidia.dali import fn, types
    from nvidia.dali.types import DALIDataType

    s, flag = strong_ranges(), types.BOOL
    if fn.random.coin_flip(probability=s.blur.p, dtype=flag):
        images = fn.gaussian_blur(images, window_size=s.blur_side, sigma=_uniform(s.blur.sigma))
    if fn.random.coin_flip(probability=s.noise.p, dtype=flag):
        images = fn.noise.gaussian(images, stddev=_uniform(s.noise.std))
    if fn.random.coin_flip(probability=s.jpeg.p, dtype=flag):
        quality = fn.cast(_uniform(s.jpeg.quality), dtype=DALIDataType.INT32)
        images = fn.jpeg_compression_distortion(images, quality=quality)
    if fn.random.coin_flip(probability=s.cutout.p, dtype=flag):
        places = fn.random.uniform(range=(0.0, 1.0), shape=[2 * s.cutout.count])
        sides = fn.random.uniform(range=s.cutout.size, shape=[2 * s.cutout.count])
        images = fn.erase(
            images, anchor=places, shape=sides, axis_names="HW", normalized=True, fill_value=_uniform(s.cutout.shade)
        )
    return images


def case(augment: Augment) -> BenchmarkCase:
    """Return this peer's row."""
    return BenchmarkCase(
        "dali-docs",
        stream,
        "DALI",
        augment=augment,
        note="parallel external_source, one call a sample",
    )
