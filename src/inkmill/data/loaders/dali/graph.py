"""The graph of a DALI loader: decode, fit, augment, each on the device that was asked for.

    encoded --decode--> picture --(halve, resize)--> resized --(repeat last column)--> padded --> augmented

Everything that differs between samples comes in as an input, so the graph holds no random operator and no state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from inkmill.data.loaders.dali.augment import DaliEngine, DaliPython, Device, Node
from inkmill.data.loaders.dali.resize import HALVINGS
from inkmill.data.pipeline.resize import Resize

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
    engine: DaliEngine | DaliPython | None,
    placement: Placement,
) -> Any:
    """Build a pipeline whose one output is the batch, uint8 HWC.

    Args:
        source: called for each batch; returns one value for each of `names`.
        names: of the inputs; the first is the images, encoded (1-D) or resized (HWC).
        batch_size: rows in the largest batch.
        resize: how pictures are resized.
        engine: what augments, or None.
        placement: where the stages run.
    """
    from nvidia.dali import fn, pipeline_def

    host = placement.decode == "host"

    def graph() -> Node:
        inputs = fn.external_source(
            source=source, num_outputs=len(names), layout=["HWC" if host else ""] + [""] * (len(names) - 1)
        )
        columns = {name: inputs[position] for position, name in enumerate(names)}
        images = inputs[0] if host else _decode(inputs[0], resize.channels, placement.decode)
        if placement.augment == "gpu":
            images = images.gpu()
        if not host:
            images = _resize(images, columns, resize, placement.augment)
            if resize.mode != "stretch":
                images = _pad(images, columns)
        if engine is not None:
            images = engine.apply(images, columns)
        images = fn.copy(images)  # the rows that went different ways, in one piece
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
    with warnings.catch_warnings():  # it warns of inputs that a graph leaves unused; ours are few and small
        warnings.simplefilter("ignore")
        pipeline.build()
    return pipeline


def build_reader(
    tars: list[str],
    indexes: list[str],
    extension: str,
    batch_size: int,
    shuffle: bool,
    seed: int,
    stretch: tuple[int, int],
) -> Any:
    """Build a pipeline that only reads tar shards; its outputs are the members' bytes and where each came from.

    Args:
        tars, indexes: the shards and their index files.
        extension: of the members to read, as the indexes have it.
        batch_size: members a run.
        shuffle: pick at random among the next 1024.
        seed: of that.
        stretch: which of how many equal stretches of the samples to read, over and over.
    """
    from nvidia.dali import Pipeline, fn

    number, count = stretch
    pipeline = Pipeline(batch_size=batch_size, num_threads=1, device_id=None, exec_dynamic=True)
    with pipeline:
        members = fn.readers.webdataset(
            paths=tars,
            index_paths=indexes,
            ext=[extension],
            random_shuffle=shuffle,
            seed=seed,
            shard_id=number,
            num_shards=count,
        )
        pipeline.set_outputs(members, fn.get_property(members, key="source_info"))
    pipeline.build()
    return pipeline


def reason_of(error: RuntimeError) -> str:
    """Return the line of DALI's report that says what went wrong; the rest is about its own source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    return next((line for line in after if line and not line.startswith("Critical error")), "no reason given")


def _decode(encoded: Node, channels: int, device: str) -> Node:
    from nvidia.dali import fn, types

    # Without fancy upsampling the GPU's decoder blurs colours differently from every CPU's.
    # Its hardware decoder is made for photographs: with it an H200 decoded half as many crops a second (docs/dali.md).
    colours = types.GRAY if channels == 1 else types.RGB
    options: dict[str, Any] = {"hw_decoder_load": 0.0} if device == "mixed" else {}
    return fn.decoders.image(encoded, device=device, output_type=colours, jpeg_fancy_upsampling=True, **options)


def _resize(images: Node, columns: dict[str, Node], resize: Resize, device: Device) -> Node:
    if columns["halved"]:
        images = _halve(images, columns["halves"], columns["halvings"], 0, device)
    size = (resize.height, resize.width) if resize.mode == "stretch" else columns["valid"]
    return _resize_to(images, size, columns["scale"], device)


def _halve(images: Node, halves: Node, halvings: Node, step: int, device: Device) -> Node:
    """Halve what needs it; each step is inside the one before, since a condition costs by the rows that meet it."""
    size, scale = halves[3 * step : 3 * step + 2], halvings[3 * step : 3 * step + 3]
    images = _resize_to(images, size, scale, device)
    if step + 1 < HALVINGS:  # noqa: SIM102 - the first `if` is Python's, the second is of the graph
        if halves[3 * step + 5] > 0:
            images = _halve(images, halves, halvings, step + 1, device)
    return images


def _resize_to(images: Node, size: Any, scale: Node, device: Device) -> Node:
    from nvidia.dali import fn

    if device == "gpu":
        return fn.resize(images, size=size, antialias=False)
    # The same sums by OpenCV, in a quarter of the time that DALI's own operator takes on a CPU.
    return fn.experimental.warp_perspective(images, matrix=scale, size=size, border_mode="replicate")


def _pad(images: Node, columns: dict[str, Node]) -> Node:
    from nvidia.dali import fn

    if columns["padded"]:  # fn.pad knows only constants; a warp that moves nothing repeats the border
        images = fn.experimental.warp_perspective(
            images,
            matrix=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            size=columns["full"],
            pixel_origin="center",
            border_mode="replicate",
        )
    return images
