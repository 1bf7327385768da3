"""The Paddle-compatible profile: pictures as PaddleOCR and RapidOCR prepare them, resized as our own inside the graph.

They give BGR in [-1, 1], (B, 3, H, W), of height 48 whatever the reader's, as wide as the widest of a batch and at
least 320, and fill what is left with 0. A reader must not see that: one whose columns know their place (positions,
attention, an LSTM) reads another picture. No pixel of 8 bits becomes 0 (that would be 127.5), so the columns after the
last one that is not all 0 are padding. They are cut off, and the rest is resized to
what `Resize` would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.resize import BUCKET_STEP
from inkmill.errors import ConfigError
from inkmill.modelfile.header import ModelHeader

RAPIDOCR_HEIGHT, RAPIDOCR_WIDTH = 48, 320
"""Of a picture that RapidOCR gives, where nothing else is set; the width is the least."""
MAX_SIDE = 8192
"""RapidOCR does not squeeze long lines; this is the widest (and highest) input that the graph takes."""

_FITTED, _READ = "resized/", "read/"
"""Prefixes of the names of the two graphs that `in_one_graph` joins."""
_BGR_TO_GRAY = (0.114, 0.587, 0.299)
"""ITU-R BT.601, as when training's files were decoded."""


class PaddleInput(nn.Module):
    """Their pictures to ours.

    Args:
        spec: of the reader: size, channels and fit of its input.
    """

    weights: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.height, self.width = spec.input_height, spec.input_width
        self.gray, self.resize = spec.input_channel == 1, spec.input_resize
        self.register_buffer("weights", torch.tensor(_BGR_TO_GRAY).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures as wide as the widest input, and the width of the input that each would be given.

        Args:
            images: float32 (B, 3, H, W), BGR in [-1, 1], 0 to the right of a picture.

        Returns:
            float32 (B, C, height, width), the last column of a picture repeated to its right, and int64 (B,), in
            pixels: with the fit "height" in steps of 32.
        """
        plain = (images * self.weights).sum(dim=1, keepdim=True) if self.gray else images.flip(1)
        rows, columns = images.shape[2], torch.arange(images.shape[3], device=images.device)
        inked = images.abs().amax(dim=(1, 2)) > 0  # B W
        filled = torch.where(inked, columns, 0).amax(dim=1) + 1
        wanted = given = torch.full_like(filled, self.width)
        if self.resize != "stretch":
            middle = 2 * filled - 1  # twice the width before it was rounded up, on average
            wanted = torch.minimum((self.height * middle + 2 * rows - 1) // (2 * rows), wanted)
        one = torch.ones_like(filled)
        downwards = _weights(one * rows, one * self.height, rows, self.height)
        along = _weights(filled, wanted, images.shape[3], self.width)
        pictures = downwards[:, None] @ plain @ along[:, None].transpose(2, 3)
        if self.resize == "height":
            given = torch.clamp((wanted + BUCKET_STEP - 1) // BUCKET_STEP * BUCKET_STEP, max=self.width)
        return pictures, given


def _weights(have: Tensor, want: Tensor, old: int, new: int) -> Tensor:
    """Return (B, new, old), what every old column (or row) gives to a new one; what is beyond the wanted is the last.

    As in data.pipeline.resize: linear interpolation, pixel centres at half-integers, borders repeated, and where a side
    shrinks to less than its half, a triangle wide enough to look at every pixel.
    """
    place = torch.minimum(torch.arange(new, device=have.device), (want - 1)[:, None])
    step = (have.float() / want)[:, None]
    middle = ((place + 0.5) * step - 0.5)[:, :, None]
    sources = torch.arange(old, device=have.device)
    near = (1 - (sources - middle).abs() / (step / 2).clamp(min=1)[:, :, None]).clamp(min=0)
    near = torch.where(sources < have[:, None, None], near, 0)
    return near / near.sum(dim=2, keepdim=True)


def resized_twice(height: int) -> str:
    """Return the warning for a reader of another height than RapidOCR's."""
    return (
        f"RapidOCR gives images of {RAPIDOCR_HEIGHT} rows, which this reader resizes to {height}: what it is unsure of "
        "it may read differently there; "
        f"with model.input_height={RAPIDOCR_HEIGHT} they are resized once, as in training"
    )


def refuse_unfit(card: ModelHeader, where: str) -> None:
    """Raise ConfigError where PaddleOCR's way of reading could not use this reader."""
    if card.model.prediction != "CTC":
        raise ConfigError(
            f"{where}: export.profile=paddle is for readers with prediction=CTC, which is what RapidOCR decodes, not "
            f"prediction={card.model.prediction}"
        )
    if card.model.input_resize == "aspect":
        raise ConfigError(
            f"{where}: export.profile=paddle is not for input_resize=aspect: RapidOCR fixes the height of a batch, and "
            "this reader has other heights for short words; export it without a profile"
        )
    if "\n".join(card.task_header["charset"]).splitlines() != card.task_header["charset"]:
        raise ConfigError(
            f"{where}: its characters hold a line separator, which PaddleOCR's list of one character a line cannot hold"
        )


def in_one_graph(fitting: Any, reading: Any, widths: Sequence[int], steps: Sequence[int]) -> Any:
    """Join two graphs.

    Args:
        fitting: an `onnx.ModelProto` of one input, whose outputs are the pictures, float32 (B, C, height, W), and
            int64 (B,), how many of its columns each picture is to be read with.
        reading: an `onnx.ModelProto` from float32 (B, C, height, width) to the probabilities, float32 (B, steps, K),
            of which the first is that of CTC's blank.
        widths: that occur, ascending.
        steps: of each width.

    Returns:
        an `onnx.ModelProto` with fitting's input and reading's output; a picture of fewer steps than the widest of its
        batch has is followed by blanks.
    """
    from onnx import compose, helper

    inputs, outputs = list(fitting.graph.input), list(reading.graph.output)
    front = compose.add_prefix(fitting, _FITTED, rename_inputs=False)
    reader = compose.add_prefix(reading, _READ)
    pictures, chosen = (value.name for value in front.graph.output)
    classes = outputs[0].type.tensor_type.shape.dim[2].dim_value
    values = {
        "rounds": np.int64(len(widths)),
        "widths": np.array(widths, np.int64),
        "steps": np.array(steps, np.int64),
        "blank": np.eye(1, classes, dtype=np.float32)[None],
        "classes": np.array([classes], np.int64),
        "zero": np.zeros(1, np.int64),
        "one": np.ones(1, np.int64),
        "last_axis": np.array([3], np.int64),
        "true": np.bool_(True),
    }
    nodes = [
        *front.graph.node,
        *_blanks(pictures, chosen),
        helper.make_node(
            "Loop", ["rounds", "true", "blanks"], [outputs[0].name], body=_round(reader, pictures, chosen)
        ),
    ]
    constants = [_constant(name, value) for name, value in values.items()]
    graph = helper.make_graph(nodes, "reader", inputs, outputs, [*front.graph.initializer, *constants])
    joined = helper.make_model(graph, opset_imports=reading.opset_import)
    joined.ir_version = reading.ir_version
    return joined


def _blanks(pictures: str, chosen: str) -> list[Any]:
    """Return nodes that make `blanks`, (B, steps of the widest picture, K), and `most`, those steps."""
    from onnx import helper

    return [
        helper.make_node("ReduceMax", [chosen], ["widest"], keepdims=1),
        helper.make_node("Equal", ["widths", "widest"], ["is_widest"]),
        helper.make_node("Compress", ["steps", "is_widest"], ["most"], axis=0),
        helper.make_node("Shape", [pictures], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "most", "classes"], ["size"], axis=0),
        helper.make_node("Expand", ["blank", "size"], ["blanks"]),
    ]


def _round(reader: Any, pictures: str, chosen: str) -> Any:
    """Return the loop's body: the pictures of one width, if any, read and put in their places."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Gather", ["widths", "number"], ["width"]),
        helper.make_node("Equal", [chosen, "width"], ["of_width"]),
        helper.make_node("NonZero", ["of_width"], ["where_row"]),
        helper.make_node("Transpose", ["where_row"], ["where"], perm=[1, 0]),  # n 1
        helper.make_node("Size", ["where"], ["many"]),
        helper.make_node("Greater", ["many", "zero"], ["is_any_1"]),
        helper.make_node("Squeeze", ["is_any_1"], ["is_any"]),
        helper.make_node("If", ["is_any"], ["now"], then_branch=_read(reader, pictures), else_branch=_kept()),
        helper.make_node("Identity", ["go_on"], ["still"]),
    ]
    probabilities = [None, None, None]
    return helper.make_graph(
        nodes,
        "round",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, probabilities),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("now", TensorProto.FLOAT, probabilities),
        ],
    )


def _read(reader: Any, pictures: str) -> Any:
    from onnx import TensorProto, helper

    given, found = reader.graph.input[0].name, reader.graph.output[0].name
    nodes = [
        helper.make_node("Squeeze", ["where", "one"], ["rows"]),
        helper.make_node("Gather", [pictures, "rows"], ["padded"], axis=0),
        helper.make_node("Unsqueeze", ["width", "zero"], ["end"]),
        helper.make_node("Slice", ["padded", "zero", "end", "last_axis"], [given]),
        *reader.graph.node,
        helper.make_node("Shape", [found], ["read_many"], start=0, end=1),
        helper.make_node("Shape", [found], ["read_steps"], start=1, end=2),
        helper.make_node("Sub", ["most", "read_steps"], ["left"]),
        helper.make_node("Concat", ["read_many", "left", "classes"], ["rest"], axis=0),
        helper.make_node("Expand", ["blank", "rest"], ["ending"]),
        helper.make_node("Concat", [found, "ending"], ["whole"], axis=1),
        helper.make_node("ScatterND", ["before", "where", "whole"], ["after"]),
    ]
    after = helper.make_tensor_value_info("after", TensorProto.FLOAT, [None, None, None])
    return helper.make_graph(nodes, "some", [], [after], list(reader.graph.initializer))


def _kept() -> Any:
    from onnx import TensorProto, helper

    kept = helper.make_tensor_value_info("kept", TensorProto.FLOAT, [None, None, None])
    return helper.make_graph([helper.make_node("Identity", ["before"], ["kept"])], "none", [], [kept])


def _constant(name: str, value: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.asarray(value), name)
