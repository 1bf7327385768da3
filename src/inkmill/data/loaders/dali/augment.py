"""The DALI engine: applies a table inside an NVIDIA DALI pipeline, on the CPU or on a GPU.

DALI has its own random operators; none is used. The table's numbers enter the graph as inputs, one row a sample, so
DALI shows the same picture as every other engine. Each step below is an `if` on the row's own number: DALI splits the
batch there (conditional execution), and a row without a change is spared the step. The split itself costs about a
microsecond a row, on one core: on a GPU, which is faster than that, warp and colour are therefore done to all rows, and
those without get the numbers that change nothing.

    space     warp_perspective, on the CPU OpenCV's own, so exact
    waves     remap on the GPU; DALI has none on the CPU, where its Python operator calls OpenCV's
    blur      filter: gaussian_blur mirrors the border, where inkmill repeats it
    colour    coord_transform: a 3x3 matrix and an offset for each sample
    noise     a stretch of the ring of noise that all engines share
    jpeg      jpeg_compression_distortion; on the GPU DALI imitates the encoder, which shows (docs/dali.md)
    cutouts   erase

Only this file and those under `loaders` named dali import nvidia.dali.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.albumentations import AlbumentationsPipeline
from inkmill.data.augment.random_numbers import NOISE_RING, noise_ring
from inkmill.data.augment.table import AugmentParams, Floats, ParamLayout
from inkmill.data.loaders.dali.columns import columns_of
from inkmill.data.loaders.dali.package import require_dali

Images = NDArray[np.uint8]
Device = Literal["cpu", "gpu"]
Node = Any  # nvidia.dali.data_node.DataNode; the package is optional and has no types


def apply_dali(images: Images, table: AugmentParams, device: Device = "cpu") -> Images:
    """Apply a table to a batch in a pipeline of its own; for comparing engines, since building one takes long.

    Args:
        images: uint8 (B, H, W, C), RGB or gray; not changed.
        table: what was drawn for this batch and size.
        device: where DALI's operators run; "gpu" is the first CUDA device.

    Returns:
        uint8 (B, H, W, C).

    Raises:
        MissingExtraError: DALI is not installed.
        ValueError: batch and table do not belong together.
    """
    require_dali("the DALI engine")
    from nvidia.dali import fn, pipeline_def

    expected = (len(table), table.height, table.width)
    if images.shape[:3] != expected:
        raise ValueError(f"the table was drawn for a batch of {expected}, the images are {images.shape}")
    columns = columns_of(table, images.shape[3])

    engine = DaliEngine(table.layout, images.shape[3], images[0].size, device)

    def graph() -> Node:
        batch, *inputs = fn.external_source(
            source=lambda: (images, *columns.values()),
            num_outputs=1 + len(columns),
            layout=["HWC"] + [""] * len(columns),
        )
        numbers = {name: inputs[position] for position, name in enumerate(columns)}
        changed = fn.copy(engine.apply(batch.gpu() if device == "gpu" else batch, numbers))
        return changed.cpu() if device == "gpu" else changed

    place = 0 if device == "gpu" else None
    pipeline = pipeline_def(graph, batch_size=len(images), num_threads=1, device_id=place, enable_conditionals=True)
    with warnings.catch_warnings():  # it warns of inputs that a device's graph leaves unused
        warnings.simplefilter("ignore")
        (out,) = pipeline().run()
    return np.array(out.as_array())


@dataclass(frozen=True)
class DaliEngine:
    """Adds the changes of all tables of one layout to a graph.

    Args:
        layout: of the tables to come.
        channels: of the images: 1 or 3.
        largest: numbers in the largest image, height x width x channels.
        device: where the steps run.
    """

    layout: ParamLayout
    channels: int
    largest: int
    device: Device

    def apply(self, images: Node, columns: dict[str, Node]) -> Node:
        """Return the changed images; the graph must be defined with `enable_conditionals=True`.

        Args:
            images: uint8 HWC, of any size, on `device`.
            columns: the inputs that `columns_of` names, on the CPU.
        """
        if self.layout.waves:
            images = self._wave_or_warp(images, columns)
        elif self.layout.space:
            images = self._warp(images, columns)
        if self.layout.blur_radius:
            images = self._blur(images, columns)
        if self.layout.colour:
            images = self._colour(images, columns)
        if self.layout.noise:
            images = self._noise(images, columns)
        if self.layout.jpeg:
            images = self._jpeg(images, columns)
        if self.layout.cutouts:
            images = self._cut_out(images, columns)
        return images

    def _wave_or_warp(self, images: Node, columns: dict[str, Node]) -> Node:
        if columns["waved"]:
            images = self._remap(images, columns["from_x"], columns["from_y"])
        else:
            images = self._warp(images, columns)
        return images

    def _warp(self, images: Node, columns: dict[str, Node]) -> Node:
        if self.device == "gpu":
            return _warped(images, columns["space"])
        if columns["moved"]:
            images = _warped(images, columns["space"])
        return images

    def _remap(self, images: Node, x: Node, y: Node) -> Node:
        from nvidia.dali import fn

        if self.device == "gpu":
            return fn.experimental.remap(images, x.gpu(), y.gpu(), pixel_origin="center")
        return fn.python_function(images, x, y, function=_remap_with_opencv, output_layouts="HWC")

    def _blur(self, images: Node, columns: dict[str, Node]) -> Node:
        from nvidia.dali import fn

        if columns["blurred"]:
            images = fn.filter(images, self._there(columns["kernel"]), border="clamp")
        return images

    def _colour(self, images: Node, columns: dict[str, Node]) -> Node:
        if self.device == "gpu":
            return _mixed(images, columns)
        if columns["coloured"]:
            images = _mixed(images, columns)
        return images

    def _noise(self, images: Node, columns: dict[str, Node]) -> Node:
        from nvidia.dali import fn, types

        # As int32: DALI takes a constant number by number, and this way it is a quarter of them.
        ring = fn.reinterpret(types.Constant(_open_ring(self.largest), device=self.device), dtype=types.INT8)
        if columns["noisy"]:
            stretch = fn.slice(ring, columns["place"], columns["numbers"], axes=(0,))
            noise = fn.reshape(stretch, shape=columns["shape"]) * self._there(columns["strength"])
            images = fn.reinterpret(fn.cast(images + noise, dtype=types.UINT8), layout="HWC")
        return images

    def _jpeg(self, images: Node, columns: dict[str, Node]) -> Node:
        from nvidia.dali import fn, types

        if columns["compressed"]:
            if self.channels == 1:  # DALI compresses colours only; of a gray picture the two colour planes are flat
                images = fn.color_space_conversion(images, image_type=types.GRAY, output_type=types.RGB)
            images = fn.jpeg_compression_distortion(images, quality=columns["quality"])
            if self.channels == 1:
                images = fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)
        return images

    def _cut_out(self, images: Node, columns: dict[str, Node]) -> Node:
        if columns["cut"]:
            images = self._erase(images, columns["rectangles"], 0)
        return images

    def _erase(self, images: Node, rectangles: Node, number: int) -> Node:
        from nvidia.dali import fn

        x, shade = 6 * number, 6 * number + 4
        anchor, shape = rectangles[x : x + 2], rectangles[x + 2 : shade]
        fill = rectangles[shade : shade + 1]
        images = fn.erase(images, anchor=anchor, shape=shape, fill_value=fill, axis_names="WH")
        if number + 1 < self.layout.cutouts:  # noqa: SIM102 - the first `if` is Python's, the second is of the graph
            if rectangles[shade + 1] > 0:
                images = self._erase(images, rectangles, number + 1)
        return images

    def _there(self, node: Node) -> Node:
        return node.gpu() if self.device == "gpu" else node


@dataclass(frozen=True)
class DaliPython:
    """Adds an Albumentations pipeline to a graph by DALI's Python operator: on the CPU, one image after the other."""

    pipeline: AlbumentationsPipeline

    def apply(self, images: Node, columns: dict[str, Node]) -> Node:
        """Return the changed images; `columns` has the samples' random "states", uint64 (1,) each."""
        from nvidia.dali import fn

        changed = self.pipeline.apply_one
        return fn.python_function(images, columns["states"], function=changed, output_layouts="HWC")


@lru_cache(maxsize=2)
def _open_ring(largest: int) -> NDArray[np.int32]:
    """Return the ring of noise cut open, with as much of its beginning at the end as the largest image takes."""
    return np.resize(noise_ring(), NOISE_RING + largest + -largest % 4).view(np.int32)


def _warped(images: Node, space: Node) -> Node:
    from nvidia.dali import fn

    return fn.experimental.warp_perspective(images, matrix=space, pixel_origin="center", border_mode="replicate")


def _mixed(images: Node, columns: dict[str, Node]) -> Node:
    from nvidia.dali import fn, types

    mixed = fn.coord_transform(images, M=columns["mixing"], T=columns["offset"], dtype=types.UINT8)
    return fn.reinterpret(mixed, layout="HWC")


def _remap_with_opencv(image: Images, x: Floats, y: Floats) -> Images:
    moved = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return cast(Images, moved.reshape(image.shape))
