"""One graph that reads each picture of a batch at its own width, whatever the others' are.

A reader with a free width reads a picture among those of its own width alone: more columns to its right would be
another picture to it. PaddleOCR's batches hold several widths. So the graph of the reader is put in a loop over the
widths that there are; each round reads the pictures of one width, and is left out where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_FITTED, _READ = "resized/", "read/"
"""Prefixes of the names of the two graphs."""


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
