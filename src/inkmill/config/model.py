"""`model`: what reads the image."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from inkmill.config.base import Section

Fit = Literal["stretch", "pad", "height"]


class ModelSpec(Section):
    """The recogniser: rectifier, backbone, sequence stage, head, and the input it expects."""

    TPS: bool = False
    """Straighten the text with a thin-plate spline before the backbone (RARE, Shi et al. 2016)."""
    num_fiducial: int = 20
    """Control points of the spline; even and at least 4 (half of them along each edge of the text)."""
    backbone: str = "ResNet"
    """ResNet, ResNet2X, FAN_tiny_2X, VGG, Tiny (for CPUs), ConvMix (for GPUs), or the name of any timm model (resnet18,
    mobilenetv3_small_100 ...); see docs/models.md."""
    backbone_pretrained: bool = False
    """Start a timm backbone from its published weights (timm downloads them)."""
    feature_channel: int = Field(512, gt=0)
    """Channels the backbone gives to the sequence stage; those that are not ResNet, ResNet2X or VGG have
    their own."""
    sequence: Literal["BiLSTM", "none"] = "BiLSTM"
    """The sequence stage between backbone and head."""
    sequence_layers: int = Field(2, ge=1, le=8)
    """How many BiLSTM layers."""
    hidden_size: int = Field(256, gt=0)
    """Hidden units of the BiLSTM and of the attention head."""
    prediction: Literal["CTC", "Attn", "Slots"] = "CTC"
    """The head: CTC, attention, or a fixed number of character slots (captchas of known length)."""
    quantize: bool = False
    """Train with simulated INT8 arithmetic."""
    input_width: int = Field(100, ge=8, le=8192)
    """Width of the input in pixels; with input_fit=height the largest width."""
    input_height: int = Field(32, ge=8, le=1024)
    """Height of the input in pixels."""
    input_channel: Literal[1, 3] = 1
    """1 reads gray, 3 reads RGB."""
    input_fit: Fit = "stretch"
    """How an image meets the input size: stretch (aspect ratio lost), pad (kept; the last column is repeated to the
    right), height (kept; the width is free in steps of 32 up to input_width)."""
    pruned_graph_path: str | None = None
    """A pruned model file to retrain."""
    quantize_model_path: str | None = None
    """A model file whose weights start quantisation-aware training."""

    @field_validator("num_fiducial")
    @classmethod
    def _even(cls, value: int) -> int:
        if value < 4 or value % 2:
            raise ValueError(f"must be even and at least 4 (half the points lie on each edge of the text), not {value}")
        return value

    @field_validator("sequence", mode="before")
    @classmethod
    def _no_sequence(cls, value: object) -> object:
        return "none" if value in (None, False, "None", "") else value

    @model_validator(mode="after")
    def _free_width_has_no_spline(self) -> ModelSpec:
        if self.TPS and self.input_fit == "height":
            raise ValueError("TPS needs a fixed input width: use input_fit=stretch or pad")
        return self
