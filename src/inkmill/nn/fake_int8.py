"""Layers that compute in float what their int8 versions will: fake quantisation (Jacob et al. 2018, arXiv:1712.05877).

A number x is rounded to one of 255 steps, q = clamp(round(x / scale)), and becomes scale * q; the gradient passes as
if nothing had been rounded, except where x was out of range. Zero is step 0 (symmetric), as TensorRT wants it:

- weights: -127..127, a scale for each output channel, taken from the weights as they are at the moment;
- what a layer reads, and what a convolution gives: -128..127, one scale, from the largest magnitude that is usual. That
  is an average over the batches of training, and the one thing here that a model file has to keep;
- a convolution's bias: the steps in which int32 adds up the products, as ONNX Runtime has it.

Rounding is done in 32 bits whatever the precision of training.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HIGHEST = 127
LOWEST = -128
"""Of what is read and given; weights end at -127, for TensorRT."""
TINY = 2.0**-24
"""Smallest scale: of a layer whose weights are all zero, and of a range that has not been measured."""
FAINT = 2.0**-10
"""Channels whose weights are smaller than this share of the layer's largest get no finer steps: in those a bias would
not fit into int32."""
PACE = 0.01
"""Share of a range that each batch of training renews."""


def fake_int8(x: Tensor, scale: Tensor, lowest: int = LOWEST, highest: int = HIGHEST) -> Tensor:
    """Return `x` rounded to the steps lowest..highest of `scale`, in the type of `x`; `scale` is broadcast."""
    rounded: Tensor = _Rounding.apply(x.float(), scale, lowest, highest)
    return rounded.to(x.dtype)


class _Rounding(torch.autograd.Function):
    """Divides, as QuantizeLinear does: torch's own operator multiplies with 1 / scale, and ties then fall otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lowest: int, highest: int) -> Tensor:
        steps = (x / scale).round()
        # Numbers out of range get no gradient: moving them would not change their step.
        inside = steps.clamp(lowest, highest)
        ctx.save_for_backward(steps == inside)
        ctx.layout = x.stride() if lowest == -HIGHEST else None
        return inside * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        gradient = gradients[0] * inside
        if ctx.layout not in (None, gradient.stride()):  # DDP wants gradients to lie in memory as the weights do
            gradient = torch.empty_strided(
                gradient.shape, ctx.layout, dtype=gradient.dtype, device=gradient.device
            ).copy_(gradient)
        return gradient, None, None, None


class Range(nn.Module):
    """Rounds one tensor of activations to int8 steps.

    Args:
        before_relu: what is negative becomes zero right afterwards, so the range need not hold it.

    Attributes:
        largest: float32 scalar, the largest magnitude that is usual; 0 until measured.
        measuring: None, or the share of the range that the next batch makes up; see `measure`.
    """

    largest: Tensor

    def __init__(self, before_relu: bool = False) -> None:
        super().__init__()
        self.before_relu = before_relu
        self.measuring: float | None = None
        self.register_buffer("largest", torch.zeros(()))

    def scale(self) -> Tensor:
        """Return the width of a step, a float32 scalar."""
        return (self.largest / HIGHEST).clamp(min=TINY)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, rounded; in training the range moves a little towards that of `x` first."""
        if self.training or self.measuring is not None:
            self._look_at(x.detach(), PACE if self.measuring is None else self.measuring)
        return x if self.measuring is not None else fake_int8(x, self.scale())

    @torch.no_grad()
    def _look_at(self, x: Tensor, share: float) -> None:
        if not x.numel():  # an empty tensor has no largest number: a rank whose part of a batch is empty
            return
        most = x.amax().clamp(min=0) if self.before_relu else x.abs().amax()
        # A moving average, not a maximum: one outlier would widen the steps of everything else for good.
        self.largest.lerp_(most.to(self.largest.dtype), share)


class FakeInt8Layer(nn.Module):
    """What convolutions and linear layers in fake int8 share.

    Attributes:
        weight: the weights in float, which training moves.
        reads: the range of what comes in; None where that was rounded already.
        given: the range by which it was rounded, of another layer. In a tuple: this layer does not own it, and a model
            file holds it once.
    """

    weight: Tensor
    reads: Range | None
    given: tuple[Range, ...]

    def read_from(self, before: Range | None) -> None:
        """Say which range what comes in was rounded by; None gives the layer a range of its own."""
        self.reads = Range() if before is None else None
        self.given = () if before is None else (before,)

    @property
    def input_range(self) -> Range:
        """The range of what comes in, its own or not."""
        return self.given[0] if self.reads is None else self.reads

    def weight_scale(self) -> Tensor:
        """Return the width of a step of each output channel, float32 (out, 1, ...)."""
        largest = self.weight.detach().float().abs().amax(dim=tuple(range(1, self.weight.ndim)), keepdim=True)
        return (largest.maximum(largest.amax() * FAINT) / HIGHEST).clamp(min=TINY)

    def rounded_weight(self) -> Tensor:
        """Return the weights, rounded."""
        if self.input_range.measuring is not None:  # ranges are measured on what the float model computes
            return self.weight
        return fake_int8(self.weight, self.weight_scale(), -HIGHEST)

    def rounded(self, x: Tensor) -> Tensor:
        """Return what comes in, rounded."""
        out: Tensor = x if self.reads is None else self.reads(x)
        return out


class FakeInt8Conv2d(FakeInt8Layer, nn.Conv2d):
    """A convolution in fake int8: what it reads, its weights, its bias and what it gives are rounded."""

    gives: Range

    @classmethod
    def of(cls, layer: nn.Conv2d, before: Range | None = None, before_relu: bool = False) -> FakeInt8Conv2d:
        """Return it with the very parameters of `layer`."""
        # Built on the meta device, without memory: the parameters are those of `layer`, shared with the optimiser.
        new = cls(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]  # torch's stubs know pairs as tuples of any length
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            padding_mode=layer.padding_mode,
            device="meta",
        )
        new.register_parameter("weight", cast(nn.Parameter, layer.weight))
        new.register_parameter("bias", cast(nn.Parameter | None, layer.bias))
        new.read_from(before)
        new.gives = Range(before_relu)
        return new.train(layer.training)

    def rounded_bias(self) -> Tensor | None:
        """Return the bias, rounded to the steps of int32 sums."""
        if self.bias is None or self.input_range.measuring is not None:
            return self.bias
        # int8 x int8 products are summed in int32, whose unit is the product of both scales: the bias is added there.
        step = self.input_range.scale() * self.weight_scale().flatten()
        return fake_int8(self.bias, step, -(2**31), 2**31 - 1)

    def forward(self, x: Tensor) -> Tensor:
        """See nn.Conv2d."""
        x = self.rounded(x)  # first, for in training it moves the range that the bias is rounded by
        out: Tensor = self.gives(self._conv_forward(x, self.rounded_weight(), self.rounded_bias()))
        return out


class FakeInt8Linear(FakeInt8Layer, nn.Linear):
    """A linear layer in fake int8: what it reads and its weights are rounded, what it gives is not."""

    @classmethod
    def of(cls, layer: nn.Linear) -> FakeInt8Linear:
        """Return it with the very parameters of `layer`."""
        new = cls(layer.in_features, layer.out_features, device="meta")
        new.register_parameter("weight", cast(nn.Parameter, layer.weight))
        new.register_parameter("bias", cast(nn.Parameter | None, layer.bias))
        new.read_from(None)
        return new.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """See nn.Linear."""
        return F.linear(self.rounded(x), self.rounded_weight(), self.bias)


def measure(model: nn.Module, share: float | None) -> None:
    """Let every range of `model` be measured, and nothing be rounded, until `share` is None.

    The range becomes the mean of what n batches have if `share` is 1 at the first, 1/2 at the second and so on.
    """
    for part in model.modules():
        if isinstance(part, Range):
            part.measuring = share
