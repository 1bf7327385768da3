from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from inkmill.nn.fake_int8 import FakeInt8Conv2d, FakeInt8Linear, Range, fake_int8, measure


def runtime_rounds(numbers: np.ndarray, scale: float) -> np.ndarray:
    """What QuantizeLinear and DequantizeLinear of ONNX Runtime make of numbers."""
    constants = [numpy_helper.from_array(np.float32(scale), "scale"), numpy_helper.from_array(np.int8(0), "zero")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["steps"]),
        helper.make_node("DequantizeLinear", ["steps", "scale", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(numbers)]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "rounding", ends[:1], ends[1:], constants),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": numbers})[0]
    return found


@settings(max_examples=100)
@given(st.floats(2**-20, 2**10, width=32), st.integers(0, 2**32 - 1))
def test_numbers_are_rounded_as_onnx_runtime_does_ties_too(scale: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    ties = (np.arange(-140, 140) + 0.5) * np.float32(scale)
    numbers = np.concatenate([ties, random.normal(0, 60 * scale, 200)]).astype(np.float32)
    ours = fake_int8(torch.from_numpy(numbers), torch.tensor(scale))
    np.testing.assert_array_equal(ours.numpy(), runtime_rounds(numbers, scale))


def test_the_gradient_passes_within_the_range_alone() -> None:
    x = torch.tensor([-200.0, -127.6, -3.3, 0.2, 127.4, 128.0], requires_grad=True)
    y = fake_int8(x, torch.tensor(1.0))
    assert y.tolist() == [-128, -128, -3, 0, 127, 127]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]


def test_the_gradient_of_weights_lies_in_memory_as_they_do() -> None:
    weight = torch.ones(16, 1, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    rounded = fake_int8(weight, torch.tensor(1.0), lowest=-127)
    (gradient,) = torch.autograd.grad((rounded * torch.ones(16, 1, 3, 3)).sum(), weight)
    assert gradient.stride() == weight.stride() == (9, 1, 3, 1)
    one = torch.ones(1, requires_grad=True)  # activations may share memory
    fake_int8(one.expand(4), torch.tensor(1.0)).sum().backward()
    assert one.grad is not None
    assert one.grad.tolist() == [4]


def test_a_range_follows_the_largest_magnitudes_of_training_and_stays_in_reading() -> None:
    plain, before_relu = Range().train(), Range(before_relu=True).train()
    x = torch.tensor([-4.0, 1.0])
    for part, largest in ((plain, 4.0), (before_relu, 1.0)):
        measure(part, 1.0)
        assert part(x) is x  # while ranges are measured nothing is rounded
        measure(part, 0.5)
        part(2 * x)
        measure(part, None)
        assert float(part.largest) == pytest.approx(1.5 * largest)
        part(x)
        assert float(part.largest) == pytest.approx(1.5 * largest - 0.01 * 0.5 * largest)
        cached = part.eval().largest.clone()
        part(100 * x)
        assert part.largest.equal(cached)


def test_an_empty_batch_moves_no_range() -> None:
    part = Range().train()
    part.largest.fill_(2.0)
    assert part(torch.zeros(0, 3)).shape == (0, 3)
    assert float(part.largest) == 2


def test_rounding_is_done_in_32_bits_whatever_comes_in() -> None:
    part = Range().eval()
    part.largest.fill_(127.0)
    x = torch.tensor([100.0, 0.25], dtype=torch.bfloat16)
    assert part(x).dtype == torch.bfloat16
    assert part(x).tolist() == [100, 0]


@pytest.mark.parametrize("channels", [1, 6])
def test_a_convolution_computes_what_integers_would(channels: int) -> None:
    torch.manual_seed(0)
    layer = FakeInt8Conv2d.of(nn.Conv2d(6, 6, 3, padding=1, groups=6 // channels)).eval()
    images = torch.randn(2, 6, 5, 7)
    calibrated(layer, images)
    steps, weights = codes(images, layer.input_range.scale()), codes(layer.weight, layer.weight_scale())
    sums = nn.functional.conv2d(steps.double(), weights.double(), padding=1, groups=layer.groups)
    step = layer.input_range.scale() * layer.weight_scale().view(1, 6, 1, 1)
    assert layer.bias is not None
    bias = (layer.bias.detach().view(1, 6, 1, 1) / step).round()
    expected = fake_int8(((sums + bias) * step).float(), layer.gives.scale())
    assert steps.abs().max() == weights.abs().max() == 127
    torch.testing.assert_close(layer(images), expected, atol=1e-5, rtol=0)


def test_a_linear_layer_rounds_what_it_reads_and_its_weights_alone() -> None:
    torch.manual_seed(0)
    layer = FakeInt8Linear.of(nn.Linear(5, 3)).eval()
    x = torch.randn(4, 2, 5)
    calibrated(layer, x)
    sums = codes(x, layer.input_range.scale()) @ codes(layer.weight, layer.weight_scale()).T
    expected = sums * layer.input_range.scale() * layer.weight_scale().flatten() + layer.bias
    torch.testing.assert_close(layer(x), expected)


@torch.no_grad()
def calibrated(layer: nn.Module, x: Tensor) -> None:
    measure(layer, 1.0)
    layer(x)
    measure(layer, None)


def codes(x: Tensor, scale: Tensor) -> Tensor:
    return (x.detach() / scale).round().clamp(-128, 127)


def test_a_channel_without_weights_gives_its_bias() -> None:
    torch.manual_seed(0)
    layer = FakeInt8Conv2d.of(nn.Conv2d(3, 2, 1)).eval()
    layer.weight.data[0] = 0
    assert layer.bias is not None
    layer.bias.data[0] = 3.0
    images = torch.rand(1, 3, 4, 4)
    calibrated(layer, images)
    out = layer(images)
    assert out.isfinite().all()
    torch.testing.assert_close(out[0, 0], torch.full((4, 4), 3.0), atol=float(layer.gives.scale()) / 2, rtol=0)
