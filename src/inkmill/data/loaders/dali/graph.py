"""DALI's graph: decode, resize, augment, each on the device that was asked for.

    encoded --decode--> picture --(halve, resize)--> resized --(repeat last column)--> padded --> augmented

Everything that differs between samples comes in as an input (see inputs.py), so the graph holds no random operator and
no state, and DALI shows the same picture as every other engine. Most steps are an `if` on the sample's own flag: DALI
splits the batch there (conditional execution), and a sample without a change is spared the step.

    warp      warp_perspective, on the CPU OpenCV's own, so exact
    waves     remap on the GPU; DALI has none on the CPU, where its Python operator calls OpenCV's
    blur      filter: gaussian_blur mirrors the border, where inkmill repeats it
    colour    coord_transform: a 3x3 matrix and an offset for each sample
    noise     a piece of the ring of noise that all engines share
    jpeg      jpeg_compression_distortion; on the GPU DALI imitates the encoder, which shows (docs/dali.md)
    cutouts   erase
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.albumentations import AlbumentationsPipeline
from inkmill.data.augment.cpu import shrink_one
from inkmill.data.augment.params import Floats, ParamLayout
from inkmill.data.augment.random_numbers import NOISE_RING, noise_ring
from inkmill.data.loaders.dali import require_dali
from inkmill.data.loaders.dali.inputs import HALVINGS
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import ConfigError

require_dali("the DALI loader")  # whoever imports this without DALI gets the pip line, not an ImportError
from nvidia.dali import fn, pipeline_def, types  # noqa: E402

Device = Literal["cpu", "gpu"]
Node = Any  # nvidia.dali.data_node.DataNode; the package is optional and has no types
Nodes = dict[str, Node]

PREFETCH = 2
"""Batches that DALI works ahead."""


@dataclass(frozen=True)
class Placement:
    """Where the stages run.

    Attributes:
        decode: "cpu"; "mixed" for NVIDIA's JPEG decoder; "host" where pictures come in decoded and resized.
        augment: "cpu" or "gpu": what follows decoding.
        device_id: number of the GPU on which batches end; None for NumPy arrays, and no GPU at all.
        threads: of DALI's, for what runs on the CPU.
    """

    decode: Literal["cpu", "mixed", "host"]
    augment: Device
    device_id: int | None
    threads: int


def build_pipeline(
    source: Callable[[], tuple[Any, ...]],
    names: list[str],
    batch_size: int,
    resize: Resize,
    engine: DaliEngine | AlbumentationsEngine | None,
    placement: Placement,
) -> Any:
    """Return a built pipeline whose one output is the batch, uint8 HWC.

    Args:
        source: called for each batch; returns one value for each of `names`.
        names: of the inputs; the first is the images, encoded (1-D) or resized (HWC).
        batch_size: samples in the largest batch.
        resize: how pictures are resized.
        engine: what augments, or None.
        placement: where the stages run.
    """
    host = placement.decode == "host"

    def graph() -> Node:
        # 1. Take the inputs of a batch.
        layouts = ["HWC" if host else ""] + [""] * (len(names) - 1)
        nodes = fn.external_source(source=source, num_outputs=len(names), layout=layouts)
        inputs = {name: nodes[position] for position, name in enumerate(names)}
        # 2. Decode, unless the pictures are cached ones.
        images = nodes[0] if host else _decode(nodes[0], resize.channels, placement.decode)
        # 3. Bring them to the device of the steps that follow; those decoded by the GPU are there.
        if placement.augment == "gpu":
            images = images.gpu()
        # 4. Resize and pad.
        if not host:
            images = _resize(images, inputs, resize, placement.augment)
            if resize.mode != "stretch":
                images = _pad(images, inputs)
        # 5. Augment.
        if engine is not None:
            images = engine.apply(images, inputs)
        # 6. Hand over in one piece what the conditions took apart.
        images = fn.copy(images)
        return images if placement.device_id is None else images.gpu()

    pipeline = pipeline_def(
        graph,
        batch_size=batch_size,
        num_threads=placement.threads,
        device_id=placement.device_id,
        prefetch_queue_depth=PREFETCH,
        exec_dynamic=True,
        enable_conditionals=True,
    )()
    with warnings.catch_warnings():  # it warns of inputs that a graph leaves unused; these are few and small
        warnings.simplefilter("ignore")
        pipeline.build()
    return pipeline


def _decode(encoded: Node, channels: int, device: str) -> Node:
    # Without fancy upsampling the GPU's decoder blurs colours differently from every CPU's.
    # Its hardware decoder is made for photographs: with it an H200 decoded half as many crops a second.
    colours = types.GRAY if channels == 1 else types.RGB
    options: dict[str, Any] = {"hw_decoder_load": 0.0} if device == "mixed" else {}
    return fn.decoders.image(encoded, device=device, output_type=colours, jpeg_fancy_upsampling=True, **options)


def _resize(images: Node, inputs: Nodes, resize: Resize, device: Device) -> Node:
    if inputs["halved"]:
        images = _halve(images, inputs["halving_sizes"], inputs["halving_matrices"], 0, device)
    size = (resize.height, resize.width) if resize.mode == "stretch" else inputs["valid_size"]
    return _resize_to(images, size, inputs["resize_matrix"], device)


def _halve(images: Node, sizes: Node, matrices: Node, step: int, device: Device) -> Node:
    """Halve what needs it; each step is inside the one before, since a condition costs by the samples that meet it."""
    size, matrix = sizes[3 * step : 3 * step + 2], matrices[3 * step : 3 * step + 3]
    images = _resize_to(images, size, matrix, device)
    if step + 1 < HALVINGS:  # noqa: SIM102 - the first `if` is Python's, the second is of the graph
        if sizes[3 * step + 5] > 0:
            images = _halve(images, sizes, matrices, step + 1, device)
    return images


def _resize_to(images: Node, size: Any, matrix: Node, device: Device) -> Node:
    if device == "gpu":
        return fn.resize(images, size=size, antialias=False)
    # The same sums by OpenCV, in a quarter of the time that DALI's own operator takes on a CPU.
    return fn.experimental.warp_perspective(images, matrix=matrix, size=size, border_mode="replicate")


def _pad(images: Node, inputs: Nodes) -> Node:
    if inputs["padded"]:  # fn.pad knows only constants; a warp that moves nothing repeats the border
        identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
        size = inputs["padded_size"]
        images = fn.experimental.warp_perspective(
            images, matrix=identity, size=size, pixel_origin="center", border_mode="replicate"
        )
    return images


@dataclass(frozen=True)
class DaliEngine:
    """Adds to a graph the augmentation of all parameters of one layout.

    Args:
        layout: of the parameters to come.
        channels: of the images: 1 or 3.
        largest: numbers in the largest image, height x width x channels.
        device: where the steps run.
    """

    layout: ParamLayout
    channels: int
    largest: int
    device: Device

    def __post_init__(self) -> None:
        if self.layout.shrink and self.device == "gpu":
            raise ConfigError(
                "DALI cannot shrink images by our filters on a GPU: let torch augment what DALI decodes (the default), "
                "let DALI augment on the CPU, or leave the op out"
            )

    def apply(self, images: Node, inputs: Nodes) -> Node:
        """Return the augmented images; the graph must be defined with `enable_conditionals=True`.

        Args:
            images: uint8 HWC, of any size, on `device`.
            inputs: those of `inputs.augment_inputs`, on the CPU.
        """
        layout = self.layout
        # The order of all engines, see data/augment/params.py. The layout decides what the graph holds at all, the
        # flags among the inputs which samples take a step.
        if layout.shrink:
            images = self._shrink(images, inputs)
        if layout.waves:
            images = self._wave_or_warp(images, inputs)
        elif layout.space:
            images = self._warp(images, inputs)
        if layout.motion_radius:
            images = self._move(images, inputs)
        if layout.light:
            images = self._light(images, inputs)
        if layout.blur_radius:
            images = self._blur(images, inputs)
        if layout.colour:
            images = self._colour(images, inputs)
        if layout.noise:
            images = self._noise(images, inputs)
        if layout.jpeg:
            images = self._jpeg(images, inputs)
        if layout.cutouts:
            images = self._cut_out(images, inputs)
        return images

    def _shrink(self, images: Node, inputs: Nodes) -> Node:
        if inputs["shrunk"]:
            images = fn.python_function(images, inputs["shrink"], function=shrink_one, output_layouts="HWC")
        return images

    def _move(self, images: Node, inputs: Nodes) -> Node:
        if inputs["moving"]:
            images = fn.filter(images, self._on_device(inputs["motion_kernel"]), border="clamp")
        return images

    def _light(self, images: Node, inputs: Nodes) -> Node:
        if inputs["lit"]:
            lit = fn.cast(images * self._on_device(inputs["light_gain"]), dtype=types.UINT8)
            images = fn.reinterpret(lit, layout="HWC")
        return images

    def _wave_or_warp(self, images: Node, inputs: Nodes) -> Node:
        if inputs["waved"]:
            images = self._remap(images, inputs["source_x"], inputs["source_y"])
        else:
            images = self._warp(images, inputs)
        return images

    def _warp(self, images: Node, inputs: Nodes) -> Node:
        # Splitting the batch costs about a microsecond a sample on one core, more than a GPU takes to warp it: there
        # all samples are warped, some by the identity.
        if self.device == "gpu":
            return _warp(images, inputs)
        if inputs["moved"]:
            images = _warp(images, inputs)
        return images

    def _remap(self, images: Node, x: Node, y: Node) -> Node:
        if self.device == "gpu":
            return fn.experimental.remap(images, x.gpu(), y.gpu(), pixel_origin="center")
        return fn.python_function(images, x, y, function=_remap_with_opencv, output_layouts="HWC")

    def _blur(self, images: Node, inputs: Nodes) -> Node:
        if inputs["blurred"]:
            images = fn.filter(images, self._on_device(inputs["blur_kernel"]), border="clamp")
        return images

    def _colour(self, images: Node, inputs: Nodes) -> Node:
        if self.device == "gpu":  # all samples, as in _warp
            return _transform_colours(images, inputs)
        if inputs["coloured"]:
            images = _transform_colours(images, inputs)
        return images

    def _noise(self, images: Node, inputs: Nodes) -> Node:
        # As int32: DALI takes a constant number by number, and this way it is a quarter of them.
        ring = fn.reinterpret(types.Constant(_open_ring(self.largest), device=self.device), dtype=types.INT8)
        if inputs["noisy"]:
            piece = fn.slice(ring, inputs["noise_start"], inputs["noise_size"], axes=(0,))
            noise = fn.reshape(piece, shape=inputs["noise_shape"]) * self._on_device(inputs["noise_scale"])
            images = fn.reinterpret(fn.cast(images + noise, dtype=types.UINT8), layout="HWC")
        return images

    def _jpeg(self, images: Node, inputs: Nodes) -> Node:
        if inputs["compressed"]:
            if self.channels == 1:  # DALI compresses colours only; of a gray picture the two colour planes are flat
                images = fn.color_space_conversion(images, image_type=types.GRAY, output_type=types.RGB)
            images = fn.jpeg_compression_distortion(images, quality=inputs["jpeg_quality"])
            if self.channels == 1:
                images = fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)
        return images

    def _cut_out(self, images: Node, inputs: Nodes) -> Node:
        if inputs["cut"]:
            images = self._erase(images, inputs["rectangles"], 0)
        return images

    def _erase(self, images: Node, rectangles: Node, number: int) -> Node:
        """Erase rectangle `number`, and inside that condition the next one; see inputs.py for the six numbers."""
        x, shade = 6 * number, 6 * number + 4
        anchor, shape = rectangles[x : x + 2], rectangles[x + 2 : shade]
        fill = rectangles[shade : shade + 1]
        images = fn.erase(images, anchor=anchor, shape=shape, fill_value=fill, axis_names="WH")
        if number + 1 < self.layout.cutouts:  # noqa: SIM102 - the first `if` is Python's, the second is of the graph
            if rectangles[shade + 1] > 0:
                images = self._erase(images, rectangles, number + 1)
        return images

    def _on_device(self, node: Node) -> Node:
        return node.gpu() if self.device == "gpu" else node


@dataclass(frozen=True)
class AlbumentationsEngine:
    """Adds an Albumentations pipeline to a graph by DALI's Python operator: on the CPU, one image after the other."""

    pipeline: AlbumentationsPipeline

    def apply(self, images: Node, inputs: Nodes) -> Node:
        """Return the augmented images; `inputs` has the samples' "random_states", uint64 (1,) each."""
        apply_one = self.pipeline.apply_one
        return fn.python_function(images, inputs["random_states"], function=apply_one, output_layouts="HWC")


@lru_cache(maxsize=2)
def _open_ring(largest: int) -> NDArray[np.int32]:
    """Return the ring of noise cut open, with as much of its beginning at the end as the largest image takes."""
    return np.resize(noise_ring(), NOISE_RING + largest + -largest % 4).view(np.int32)


def _warp(images: Node, inputs: Nodes) -> Node:
    matrix = inputs["warp_matrix"]
    return fn.experimental.warp_perspective(images, matrix=matrix, pixel_origin="center", border_mode="replicate")


def _transform_colours(images: Node, inputs: Nodes) -> Node:
    out = fn.coord_transform(images, M=inputs["colour_matrix"], T=inputs["colour_offset"], dtype=types.UINT8)
    return fn.reinterpret(out, layout="HWC")


def _remap_with_opencv(image: NDArray[np.uint8], x: Floats, y: Floats) -> NDArray[np.uint8]:
    moved = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return cast("NDArray[np.uint8]", moved.reshape(image.shape))
