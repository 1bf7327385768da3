"""From a recogniser to an ONNX graph: what it takes and gives, which sizes are free, and in which precision it works.

The batch is free. So is the width where the reader's is (input_resize=height), and the height too with
input_resize=aspect: every backbone but timm's is written for any width, and what torch's exporter finds fixed to one is
refused, never narrowed in silence.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.pages import STEP as PAGE_STEP
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.pipeline.resize import Resize
from inkmill.deploy.export.paddle import MAX_SIDE, RAPIDOCR_HEIGHT, RAPIDOCR_WIDTH, PaddleInput, in_one_graph
from inkmill.deploy.export.precision import share_through_clip, to_half, with_qdq
from inkmill.errors import ConfigError, InkmillError, MissingExtraError
from inkmill.logs import silence_logging
from inkmill.tasks.base import input_resize
from inkmill.tasks.model import TaskModel
from inkmill.tasks.recognition.decoder import PADDLE_INPUT, PADDLE_OUTPUT

if TYPE_CHECKING:
    from inkmill.tasks.recognition.model import Recognizer

OPSET = 18
MAX_BATCH = 65536
MAX_STEPS = 512
"""Of PAGE_STEP pixels, the longest side of a page."""

_BATCH = torch.export.Dim("batch", min=1, max=MAX_BATCH)
_SIDES = {2: "height", 3: "width"}
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata that torch's exporter leaves with each node: the modules around it, "['', 'model', 'model.head', ...]"."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _Outputs(nn.Module):
    """The outputs of a model by name, as a graph has them: a tuple."""

    def __init__(self, model: TaskModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = self.model.outputs(images, self.names)
        return tuple(found[name] for name in self.names)


class _FixedPaddle(_Outputs):
    """The same of images as PaddleOCR prepares them, for a reader whose width is fixed."""

    def __init__(self, model: TaskModel, names: tuple[str, ...]) -> None:
        super().__init__(model, names)
        self.prepare = PaddleInput(model.spec)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return super().forward(self.prepare(images)[0])


def record(
    model: TaskModel,
    outputs: tuple[str, ...],
    *,
    profile: str = "default",
    half: bool = False,
    resize: Resize | None = None,
) -> Any:
    """Return the model as an `onnx.ModelProto`, checked, without metadata.

    Args:
        model: in evaluation mode; stays as it is.
        outputs: names of the task's outputs that the graph is to give.
        profile: "default", or "paddle" for a text reader: other names, and images as PaddleOCR prepares them.
        half: compute in fp16; inputs and outputs stay fp32. Not for a model that simulates int8: it gets Q/DQ nodes.
        resize: how images meet its input, where that is not what its own section says: both sides of pages are free.

    Raises:
        MissingExtraError: onnx or onnxscript is not installed.
        ConfigError: the backbone is fixed to one width, and the reader's is free.
        InkmillError: torch's exporter failed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it, and says so less clearly
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "train", "export") from error
    inner = with_qdq(model) if model.spec.quantize else model
    if profile == "paddle":
        recorded = _paddle(inner, outputs, cast("Recognizer", model).time_steps, half)  # of text readers alone
    else:
        pages = isinstance(resize, PageResize)
        example, free = (_page(model), _free_page()) if pages else (_example(model.spec), _free(model))
        recorded = _exported(_Outputs(inner, outputs), inner, "input", outputs, example, free)
        recorded = to_half(recorded) if half else recorded
    onnx.checker.check_model(recorded)
    return recorded


def _paddle(model: TaskModel, outputs: tuple[str, ...], time_steps: Callable[[int, int], int], half: bool) -> Any:
    """Return the graph for PaddleOCR's images; with a free width each image is read at its own.

    `time_steps` is of the model as torch runs it: one with Q/DQ nodes can only be recorded. The graph's own resizing
    stays in fp32, whatever the model computes in: places of pixels need it.
    """
    spec, names = model.spec, (PADDLE_INPUT, (PADDLE_OUTPUT,))
    theirs = torch.zeros(2, 3, RAPIDOCR_HEIGHT, RAPIDOCR_WIDTH)
    free = {0: _BATCH, **{axis: torch.export.Dim(side, min=8, max=MAX_SIDE) for axis, side in _SIDES.items()}}
    if spec.input_resize != "height":
        fixed = _exported(_FixedPaddle(model, outputs), model, *names, theirs, free)
        return to_half(fixed, _nodes_of(fixed, "prepare")) if half else fixed
    widths = input_resize(spec).widths()
    fitting = _exported(PaddleInput(spec), model, PADDLE_INPUT, ("pictures", "widths"), theirs, free)
    reading = _exported(_Outputs(model, outputs), model, "pictures", names[1], _example(spec), _free(model))
    reading = to_half(reading) if half else reading
    return in_one_graph(fitting, reading, widths, [time_steps(spec.input_height, width) for width in widths])


def _nodes_of(graph: Any, part: str) -> set[str]:
    """Return the names of the nodes that one part of the recorded module became."""
    return {
        node.name
        for node in graph.graph.node
        if any(entry.key == NAME_SCOPES and f"'{part}'" in entry.value for entry in node.metadata_props)
    }


def _exported(
    module: nn.Module, model: TaskModel, given: str, found: tuple[str, ...], example: Tensor, free: dict[int, Any]
) -> Any:
    """Return a module as an `onnx.ModelProto`; `model` is what an error is about."""
    with _quiet(), _lstm_of_any_length(), torch.no_grad():
        try:
            program = torch.onnx.export(
                module.eval(),
                (example,),
                input_names=[given],
                output_names=list(found),
                dynamic_shapes={"images": free},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # the exporter's errors share no public base
            raise _refusal(model.spec, error) from error
    if program is None:
        raise InkmillError("torch's exporter gave no program for this model; please report it")
    recorded = program.model_proto
    if model.spec.quantize:
        share_through_clip(recorded)
    return recorded


def _example(spec: ModelSpec) -> Tensor:
    sizes = input_resize(spec).sizes()
    return torch.zeros(2, spec.input_channel, *sizes[min(2, len(sizes) - 1)])


def _page(model: TaskModel) -> Tensor:
    return torch.zeros(2, model.spec.input_channel, 3 * PAGE_STEP, 4 * PAGE_STEP)


def _free_page() -> dict[int, Any]:
    """Return the sizes of a page that are free: all; both sides are multiples of PAGE_STEP."""
    sides = {axis: PAGE_STEP * torch.export.Dim(side, min=1, max=MAX_STEPS) for axis, side in _SIDES.items()}
    return {0: _BATCH, **sides}


def _free(model: TaskModel) -> dict[int, Any]:
    """Return the sizes of the reader's own input that are free."""
    spec, multiple = model.spec, model.backbone.limits.multiple
    sizes: dict[int, Any] = {0: _BATCH}
    for axis, sides in zip(_SIDES, zip(*input_resize(spec).sizes(), strict=True), strict=True):
        least, most = min(sides), max(sides)
        if most > least:
            side = torch.export.Dim(_SIDES[axis], min=least // multiple, max=most // multiple)
            sizes[axis] = multiple * side if multiple > 1 else side
    return sizes


def _refusal(spec: ModelSpec, error: Exception) -> InkmillError:
    reason = _reason(error)
    if input_resize(spec).buckets:
        return ConfigError(
            f"backbone {spec.backbone} cannot be exported with a free size ({reason}): train it with "
            "input_resize=pad, or take a backbone of inkmill's own"
        )
    return InkmillError(f"torch's exporter cannot record this model ({reason}); please report it")


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost cause: the exporter's own speaks to its developers, in colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in _COLOURS.sub("", str(error)).splitlines())
    line = next(filter(None, lines), "")
    return line if " " in line else f"{type(error).__name__} {line}".strip()


@contextmanager
def _lstm_of_any_length() -> Iterator[None]:
    """Let torch's exporter follow an LSTM over a free number of steps; the graph gets an LSTM node either way.

    To learn the shapes that an LSTM gives, torch unrolls it step by step, which needs to know how many there are.
    Newer torch puts a loop in its place while it exports (PyTorch's pull requests 184872 and 193192); torch 2.11 has
    that loop, and leaves it to the caller. Put in place twice it does no harm; a torch without it here needs no help.
    """
    try:
        from torch.export._patches import register_lstm_while_loop_decomposition
    except ImportError:
        yield
        return
    with register_lstm_while_loop_decomposition():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the exporter says to its own developers."""
    with silence_logging(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
