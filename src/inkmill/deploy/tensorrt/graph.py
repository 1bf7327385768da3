"""The ONNX file that an engine is made from: what it is, and whether TensorRT can compile it at all.

All of this needs no TensorRT, so a file that cannot become an engine is refused on any machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inkmill.config.tasks import TensorRTSpec
from inkmill.crypt import Key, read_plain
from inkmill.data.pipeline.resize import BUCKET_STEP
from inkmill.errors import ConfigError, MissingExtraError
from inkmill.runtime.onnx import OnnxReader

Precision = Literal["fp32", "fp16", "int8"]


_NAMES = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast CastLike Ceil Celu
    Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Dropout
    Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm GlobalAveragePool
    GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax
    Identity If InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mod Mul Neg NonMaxSuppression NonZero
    Not OneHot Or PRelu Pad Pow QuantizeLinear RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign Round ScatterElements ScatterND Selu Shape Shrink
    Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
SUPPORTED = frozenset(_NAMES.split())
"""The ONNX operators that TensorRT's parser reads, up to opset 18, which is what `export` writes. The parser is
https://github.com/onnx/onnx-tensorrt, whose docs/operators.md lists types and restrictions. Where a TensorRT is
installed, a test asks it for every name; that of TensorRT for RTX 1.7 knew them all."""


@dataclass(frozen=True)
class EngineGraph:
    """An ONNX file of `export`, opened.

    Attributes:
        where: its path.
        reader: what reads with it, on the CPU.
        model: the onnx.ModelProto, without metadata.
        precision: in which its layers work: int8 where it has Q/DQ nodes, fp16 where weights are.
        sha256: of the plain file.
    """

    where: str
    reader: OnnxReader
    model: Any
    precision: Precision
    sha256: str


@dataclass(frozen=True)
class EngineShapes:
    """The shapes of the one input that an engine is built for, each (batch, channels, height, width)."""

    name: str
    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]


def open_graph(path: Path, key: Key | None) -> EngineGraph:
    """Return an ONNX file, checked.

    Raises:
        ModelFileError: missing, damaged, not of `inkmill export`, or encrypted with another key.
        ConfigError: its outputs, its fixed batch, or one of its operators cannot be in an engine.
        MissingExtraError: the package onnx is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise MissingExtraError("onnx", "train", "engine") from error
    reader = OnnxReader(path, "cpu", encryption_key=key)
    content = read_plain(path, key)
    model = onnx.load_model_from_string(content)
    del model.metadata_props[:]
    if not {"output_id", "output_prob"} <= {output.name for output in model.graph.output}:
        raise ConfigError(f"{path}: has PaddleOCR's outputs; export it with export.profile=default for an engine")
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ConfigError(
            f"{path}: its batch is fixed; export it once more with `inkmill export`, which leaves it free"
        )
    refuse_unsupported(model, str(path))
    return EngineGraph(str(path), reader, model, _precision(model, str(path)), hashlib.sha256(content).hexdigest())


def refuse_unsupported(model: Any, where: str) -> None:
    """Raise ConfigError with the names of all operators that TensorRT does not have."""
    used = {f"{node.domain}.{node.op_type}".removeprefix("ai.onnx").lstrip(".") for node in model.graph.node}
    if missing := sorted(used - SUPPORTED):
        raise ConfigError(
            f"{where}: its graph needs {', '.join(missing)}, which TensorRT does not have; read it with "
            "onnxruntime-gpu, or take one of inkmill's own backbones"
        )


def _precision(model: Any, where: str) -> Precision:
    from onnx import TensorProto

    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    rounding = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if any(types.get(node.input[2]) != TensorProto.INT8 for node in rounding if len(node.input) > 2):
        raise ConfigError(
            f"{where}: quantised for CPUs (activations of uint8, biases of int32), and TensorRT has int8 around 0 "
            "alone: give the float file that it was made from with data_type=INT8"
        )
    if rounding:
        return "int8"
    return "fp16" if TensorProto.FLOAT16 in types.values() else "fp32"


def shapes(graph: EngineGraph, settings: TensorRTSpec) -> EngineShapes:
    """Return the shapes of the optimization profile.

    The batch is the spec's; a free width goes from the narrowest input that `Resize` makes to the widest, and the
    engine is tuned for the middle.

    Raises:
        ConfigError: the batch sizes are not in order.
    """
    least, most = settings.min_batch_size, settings.max_batch_size
    best = most if settings.opt_batch_size is None else settings.opt_batch_size
    if not least <= best <= most:
        raise ConfigError(
            f"gen_trt_engine.tensorrt: min_batch_size={least}, opt_batch_size={best}, max_batch_size={most}; "
            "expected min <= opt <= max"
        )
    if graph.reader.resize.mode == "aspect":
        raise ConfigError(
            "an engine has one height, and this reader has several (input_resize=aspect): read its .onnx file with "
            "onnxruntime-gpu, or train it with input_resize=height"
        )
    given = graph.model.graph.input[0]
    sizes = [one.dim_value for one in given.type.tensor_type.shape.dim[1:]]
    widths = (sizes[2],) * 3
    if sizes[2] == 0:
        widest = graph.reader.resize.width
        narrowest = min(BUCKET_STEP, widest)
        widths = (narrowest, max(narrowest, widest // 2 // BUCKET_STEP * BUCKET_STEP), widest)
    together = [(batch, *sizes[:2], width) for batch, width in zip((least, best, most), widths, strict=True)]
    return EngineShapes(given.name, *together)
