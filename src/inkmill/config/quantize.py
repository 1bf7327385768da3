"""The section of `quantize`: TAO's keys; a value that inkmill does not support is refused, never ignored."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from inkmill.config.base import Section


class QuantizeDtype(Section):
    """Numbers of a layer's weights or activations."""

    dtype: str = "int8"
    """int8, or native: left in float."""

    @field_validator("dtype")
    @classmethod
    def _int8(cls, given: str) -> str:
        if given not in ("int8", "native"):
            raise ValueError(f"{given} is not supported; expected int8, or native for layers that stay in float")
        return given


class QuantizeLayers(Section):
    """The precision of some layers."""

    module_name: str
    """Pattern of layer names (backbone.*), or Conv2d or Linear for all of that kind."""
    weights: QuantizeDtype = Field(default_factory=QuantizeDtype)
    """Numbers of the weights."""
    activations: QuantizeDtype = Field(default_factory=QuantizeDtype)
    """Numbers of what comes in and goes out."""

    @field_validator("activations")
    @classmethod
    def _both(cls, given: QuantizeDtype, info: ValidationInfo) -> QuantizeDtype:
        weights = info.data.get("weights")
        if weights is not None and weights.dtype != given.dtype:
            raise ValueError(f"weights are {weights.dtype} and activations {given.dtype}; expected the same of both")
        return given


class QuantizeSpec(Section):
    """`quantize`: static int8, calibrated after training."""

    model_path: str | None = None
    """The model to quantise: a .safetensors or .pth file of `train`, or a .onnx file of `export`."""
    quantized_file: str | None = None
    """The .onnx file to write; by default beside the model, its name with _int8."""
    results_dir: str | None = None
    """Where results go."""
    backend: str = "onnxruntime"
    """What quantises; TAO's modelopt.onnx means the same here: an ONNX file with Q/DQ nodes."""
    mode: str = "static_ptq"
    """static_ptq: weights and activations, the latter's ranges measured beforehand."""
    algorithm: str = "minmax"
    """minmax: a range holds all that was measured; TAO's max means the same here."""
    calibration_images: int = Field(512, ge=1, le=100_000)
    """Pictures of the training set that are read to measure ranges; also where model.quantize begins."""
    max_drop: float = Field(0.01, ge=0, le=1)
    """Share of pictures that may be read wrongly by int8 alone; layers stay in float until this holds."""
    layers: list[QuantizeLayers] = Field(default_factory=list)
    """TAO: which layers; all convolutions and linear layers by default."""
    skip_names: list[str] = Field(default_factory=list)
    """Patterns of layers that stay in float."""
    device: str = "cpu"
    """TAO key; it runs on the CPU whatever is given, for the ranges do not depend on it."""

    @field_validator("backend", "mode", "algorithm")
    @classmethod
    def _supported(cls, given: str, info: ValidationInfo) -> str:
        known = _QUANTIZE[info.field_name or ""]
        if given not in known:
            raise ValueError(f"{given} is not supported; expected {' or '.join(known)}")
        return given


_QUANTIZE = {"backend": ("onnxruntime", "modelopt.onnx"), "mode": ("static_ptq",), "algorithm": ("minmax", "max")}
"""Which of TAO's values `quantize` supports."""
