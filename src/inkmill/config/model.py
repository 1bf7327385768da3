"""`model`: what reads the image."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from inkmill.config.base import Section

Resize = Literal["stretch", "pad", "height", "aspect"]

MAX_INPUT_PIXELS = 1 << 20
"""128 x 8192: a line of 500 characters."""
MAX_SPLINE = 1 << 24
"""Numbers in the spline's matrix: 64 MiB, of which the float64 work on the way takes four times as much."""


class ModelSpec(Section):
    """The recogniser: rectifier, backbone, sequence stage, head, and the input it expects."""

    TPS: bool = False
    """Straighten the text with a thin-plate spline before the backbone (RARE, Shi et al. 2016)."""
    num_fiducial: int = 20
    """Control points of the spline; even, 4 to 256 (half of them along each edge of the text)."""
    backbone: str = "ResNet"
    """One of inkmill's own, such as ResNet, Tiny (for CPUs) and ConvMix (for GPUs), or the name of any timm model
    (resnet18, mobilenetv3_small_100 ...); docs/models.md lists them."""
    backbone_pretrained: bool = False
    """Start a timm backbone from its published weights (timm downloads them)."""
    feature_channel: int = Field(512, gt=0, le=8192)
    """Channels that the backbone gives to the sequence stage; not of backbones with a fixed number (docs/models.md)."""
    sequence: Literal["BiLSTM", "none"] = "BiLSTM"
    """The sequence stage between backbone and head."""
    sequence_layers: int = Field(2, ge=1, le=8)
    """How many BiLSTM layers."""
    hidden_size: int = Field(256, gt=0, le=8192)
    """Hidden units of the BiLSTM and of the attention head."""
    prediction: Literal["CTC", "Attn", "Slots"] = "CTC"
    """The head: CTC, attention, or a fixed number of character slots (captchas of known length)."""
    guide: float = Field(0.0, ge=0, le=10)
    """CTC: weight of the loss of an attention decoder that is trained beside the head, teaches the features where
    characters are, and is left out of exported files (1 is usual); 0 trains without."""
    quantize: bool = False
    """Fine-tune a trained reader with simulated int8 (quantisation-aware training); see docs/quantize.md. It starts
    from train.pretrained_model_path."""
    input_width: int = Field(100, ge=8, le=8192)
    """Width of the input in pixels; with input_resize=height or aspect the largest width."""
    input_height: int = Field(32, ge=8, le=1024)
    """Height of the input in pixels; with input_resize=aspect that of pictures 4 times as wide as high or wider."""
    input_channel: Literal[1, 3] = 1
    """1 reads gray, 3 reads RGB."""
    input_resize: Resize = "stretch"
    """How an image meets the input size: stretch (aspect ratio lost), pad (kept; the last column is repeated to the
    right), height (kept; the width is free in steps of 32 up to input_width), aspect (stretched to the nearest of a few
    sizes of about one area: at a height of 32 these are 64x64, 96x48, 112x40, 128x32, and 160x32 and on to
    input_width)."""
    pruned_graph_path: str | None = None
    """TAO: a pruned model file to retrain; the same as train.pretrained_model_path."""
    quantize_model_path: str | None = None
    """TAO: the reader that quantisation-aware training starts from; the same as train.pretrained_model_path."""

    @model_validator(mode="after")
    def _guide_is_for_ctc(self) -> ModelSpec:
        if self.guide and self.prediction != "CTC":
            raise ValueError(f"guide is for prediction=CTC, not prediction={self.prediction}: set guide=0")
        return self

    @field_validator("num_fiducial")
    @classmethod
    def _even(cls, value: int) -> int:
        if not 4 <= value <= 256 or value % 2:
            raise ValueError(f"must be even and at least 4 (half on each edge of the text), at most 256, not {value}")
        return value

    @field_validator("sequence", mode="before")
    @classmethod
    def _no_sequence(cls, value: object) -> object:
        return "none" if value in (None, False, "None", "") else value

    @model_validator(mode="after")
    def _input_is_of_a_text(self) -> ModelSpec:
        # A model file brings these numbers along too: what memory they can ask for is bounded here.
        pixels = self.input_height * self.input_width
        if pixels > MAX_INPUT_PIXELS:
            raise ValueError(
                f"an input of {self.input_height}x{self.input_width} has more than {MAX_INPUT_PIXELS:,} pixels"
            )
        if self.TPS and pixels * self.num_fiducial > MAX_SPLINE:
            raise ValueError(
                f"TPS at {self.input_height}x{self.input_width} with {self.num_fiducial} points is larger than a "
                f"straightener may be (height x width x points <= {MAX_SPLINE:,}): lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _free_width_has_no_spline(self) -> ModelSpec:
        if self.TPS and self.input_resize in ("height", "aspect"):
            raise ValueError("TPS needs a fixed input width: use input_resize=stretch or pad")
        return self

    @model_validator(mode="after")
    def _aspect_has_its_sizes(self) -> ModelSpec:
        height, width = self.input_height, self.input_width
        if self.input_resize == "aspect" and (height % 4 or width % height or width < 4 * height):
            raise ValueError(
                f"input_resize=aspect needs an input_height that is a multiple of 4, and an input_width that is a "
                f"multiple of it, 4 times or more, not {height} and {width}: 32 and 256, for example"
            )
        return self
