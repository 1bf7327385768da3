"""The names, shapes and order of layers are those of deep-text-recognition-benchmark's modules, written down again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inkmill.tasks.recognition.clova_names import in_our_names
from inkmill.tasks.recognition.model import Recognizer

Build = Callable[..., Recognizer]
Shapes = Iterator[tuple[str, tuple[int, ...]]]
Weights = dict[str, Tensor]

LOC = "Transformation.LocalizationNetwork"
CONV = "FeatureExtraction.ConvNet"
BLOCKS = (1, 2, 5, 3)


def norm(name: str, channels: int) -> Shapes:
    yield from ((f"{name}.{part}", (channels,)) for part in ("weight", "bias", "running_mean", "running_var"))
    yield f"{name}.num_batches_tracked", ()


def linear(name: str, ins: int, outs: int, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (outs, ins)
    if bias:
        yield f"{name}.bias", (outs,)


def tps(points: int = 20, height: int = 32, width: int = 100) -> Shapes:
    yield "Transformation.GridGenerator.inv_delta_C", (points + 3, points + 3)
    yield "Transformation.GridGenerator.P_hat", (height * width, points + 3)
    for at, ins, outs in ((0, 1, 64), (4, 64, 128), (8, 128, 256), (12, 256, 512)):
        yield f"{LOC}.conv.{at}.weight", (outs, ins, 3, 3)
        yield from norm(f"{LOC}.conv.{at + 1}", outs)
    yield from linear(f"{LOC}.localization_fc1.0", 512, 256)
    yield from linear(f"{LOC}.localization_fc2", 256, 2 * points)


def resnet(c: int) -> Shapes:
    plain = [("0_1", 1, c // 16, 3), ("0_2", c // 16, c // 8, 3)]
    plain += [("1", c // 4, c // 4, 3), ("2", c // 2, c // 2, 3), ("3", c, c, 3), ("4_1", c, c, 2), ("4_2", c, c, 2)]
    for number, ins, outs, kernel in plain:
        yield f"{CONV}.conv{number}.weight", (outs, ins, kernel, kernel)
        yield from norm(f"{CONV}.bn{number}", outs)
    ins = c // 8
    for layer, (blocks, outs) in enumerate(zip(BLOCKS, (c // 4, c // 2, c, c), strict=True), 1):
        for block in range(blocks):
            name = f"{CONV}.layer{layer}.{block}"
            yield f"{name}.conv1.weight", (outs, ins, 3, 3)
            yield f"{name}.conv2.weight", (outs, outs, 3, 3)
            yield from norm(f"{name}.bn1", outs)
            yield from norm(f"{name}.bn2", outs)
            if ins != outs:
                yield f"{name}.downsample.0.weight", (outs, ins, 1, 1)
                yield from norm(f"{name}.downsample.1", outs)
            ins = outs


def vgg(c: int) -> Shapes:
    with_bias = ((0, 1, c // 8, 3), (3, c // 8, c // 4, 3), (6, c // 4, c // 2, 3), (8, c // 2, c // 2, 3))
    for at, ins, outs, kernel in (*with_bias, (18, c, c, 2)):
        yield f"{CONV}.{at}.weight", (outs, ins, kernel, kernel)
        yield f"{CONV}.{at}.bias", (outs,)
    for at, ins in ((11, c // 2), (14, c)):
        yield f"{CONV}.{at}.weight", (c, ins, 3, 3)
        yield from norm(f"{CONV}.{at + 1}", c)


def lstm(name: str, ins: int, hidden: int, ends: tuple[str, ...]) -> Shapes:
    for end in ends:
        yield f"{name}.weight_ih{end}", (4 * hidden, ins)
        yield f"{name}.weight_hh{end}", (4 * hidden, hidden)
        yield from ((f"{name}.bias_{side}{end}", (4 * hidden,)) for side in ("ih", "hh"))


def bilstms(c: int, hidden: int) -> Shapes:
    for layer, ins in enumerate((c, hidden)):
        yield from lstm(f"SequenceModeling.{layer}.rnn", ins, hidden, ("_l0", "_l0_reverse"))
        yield from linear(f"SequenceModeling.{layer}.linear", 2 * hidden, hidden)


def ctc(hidden: int, classes: int) -> Shapes:
    yield from linear("Prediction", hidden, classes)


def attn(hidden: int, classes: int) -> Shapes:
    yield from linear("Prediction.attention_cell.i2h", hidden, hidden, bias=False)
    yield from linear("Prediction.attention_cell.h2h", hidden, hidden)
    yield from linear("Prediction.attention_cell.score", hidden, 1, bias=False)
    yield from lstm("Prediction.attention_cell.rnn", hidden + classes, hidden, ("",))
    yield from linear("Prediction.generator", hidden, classes)


HEADS = {"CTC": (ctc, 37), "Attn": (attn, 38)}
BACKBONES = {"ResNet": resnet, "VGG": vgg}


def shapes(backbone: str, prediction: str, c: int = 512, hidden: int = 256) -> dict[str, tuple[int, ...]]:
    head, classes = HEADS[prediction]
    return dict([*tps(), *BACKBONES[backbone](c), *bilstms(c, hidden), *head(hidden, classes)])


def random_weights(table: dict[str, tuple[int, ...]]) -> Weights:
    generator = torch.Generator().manual_seed(3)

    def one(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("num_batches_tracked"):
            return torch.tensor(7)
        values = torch.randn(shape, generator=generator)
        if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
            return 0.5 + values.abs()
        return values / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1 * values

    return {name: one(name, shape) for name, shape in table.items()}


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 1, 32, 100, generator=torch.Generator().manual_seed(0)) * 2 - 1


SMALL: dict[str, Any] = {"feature_channel": 32, "hidden_size": 24}


def loaded(build: Build, backbone: str, prediction: str, weights: Weights) -> Recognizer:
    model = build(HEADS[prediction][1], 5, TPS=True, backbone=backbone, prediction=prediction, **SMALL)
    model.load_state_dict(in_our_names(weights))  # strict: every tensor, nothing else
    return model.eval()


def test_the_tables_have_the_published_number_of_weights() -> None:
    buffers = ("num_batches_tracked", "running_mean", "running_var", "inv_delta_C", "P_hat")

    def count(table: dict[str, tuple[int, ...]]) -> int:
        return sum(math.prod(shape) for name, shape in table.items() if not name.endswith(buffers))

    assert count(shapes("ResNet", "CTC")) == 48_858_093
    assert count(shapes("ResNet", "Attn")) == 49_555_182


@pytest.mark.parametrize("prediction", HEADS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_tensor_has_its_place_and_shape(build: Build, backbone: str, prediction: str) -> None:
    with torch.device("meta"):
        model = build(HEADS[prediction][1], 25, TPS=True, backbone=backbone, prediction=prediction)
    theirs = {name: torch.empty(shape, device="meta") for name, shape in shapes(backbone, prediction).items()}
    renamed = {name: tuple(tensor.shape) for name, tensor in in_our_names(theirs).items()}
    assert renamed == {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_the_second_resnet_has_the_same_names(build: Build) -> None:
    with torch.device("meta"):
        ours = build(37, 25, TPS=True, backbone="ResNet2X").state_dict()
    theirs = {name: torch.empty(shape, device="meta") for name, shape in shapes("ResNet", "CTC").items()}
    assert in_our_names(theirs).keys() == ours.keys()


def test_other_names_stay_and_the_constants_of_the_spline_go() -> None:
    weights = {"FeatureExtraction.blocks.0.norm.weight": torch.ones(1), "head.classes.bias": torch.ones(2)}
    constants = {f"Transformation.GridGenerator.{name}": torch.ones(3) for name in ("P_hat", "inv_delta_C")}
    assert in_our_names({**weights, **constants, "alone": torch.ones(1)}).keys() == {*weights, "alone"}


# Shapes alone cannot tell conv1 from conv2 of a block, so the stages are computed once more from their names.


def unit(x: Tensor, w: Weights, conv: str, bn: str, **how: Any) -> Tensor:
    x = F.conv2d(x, w[f"{conv}.weight"], **how)
    return F.batch_norm(x, *(w[f"{bn}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")))


def resnet_map(x: Tensor, w: Weights) -> Tensor:
    def closing(x: Tensor, number: str, **how: Any) -> Tensor:
        return unit(x, w, f"{CONV}.conv{number}", f"{CONV}.bn{number}", **how).relu()

    def block(x: Tensor, name: str) -> Tensor:
        y = unit(x, w, f"{name}.conv1", f"{name}.bn1", padding=1).relu()
        y = unit(y, w, f"{name}.conv2", f"{name}.bn2", padding=1)
        changes = f"{name}.downsample.0.weight" in w
        return (y + (unit(x, w, f"{name}.downsample.0", f"{name}.downsample.1") if changes else x)).relu()

    x = closing(closing(x, "0_1", padding=1), "0_2", padding=1)
    for layer, blocks in enumerate(BLOCKS, 1):
        if layer < 4:
            x = F.max_pool2d(x, 2, (2, 1), (0, 1)) if layer == 3 else F.max_pool2d(x, 2)
        for number in range(blocks):
            x = block(x, f"{CONV}.layer{layer}.{number}")
        if layer < 4:
            x = closing(x, str(layer), padding=1)
    return closing(closing(x, "4_1", stride=(2, 1), padding=(0, 1)), "4_2")


def vgg_map(x: Tensor, w: Weights) -> Tensor:
    def plain(x: Tensor, at: int, padding: int = 1) -> Tensor:
        return F.conv2d(x, w[f"{CONV}.{at}.weight"], w[f"{CONV}.{at}.bias"], padding=padding).relu()

    x = F.max_pool2d(plain(F.max_pool2d(plain(x, 0), 2), 3), 2)
    x = F.max_pool2d(plain(plain(x, 6), 8), (2, 1))
    for at in (11, 14):
        x = unit(x, w, f"{CONV}.{at}", f"{CONV}.{at + 1}", padding=1).relu()
    return plain(F.max_pool2d(x, (2, 1)), 18, padding=0)


def points(x: Tensor, w: Weights) -> Tensor:
    for at in (0, 4, 8, 12):
        x = unit(x, w, f"{LOC}.conv.{at}", f"{LOC}.conv.{at + 1}", padding=1).relu()
        x = F.max_pool2d(x, 2) if at < 12 else x.mean(dim=(2, 3))
    x = F.linear(x, *(w[f"{LOC}.localization_fc1.0.{part}"] for part in ("weight", "bias"))).relu()
    return F.linear(x, *(w[f"{LOC}.localization_fc2.{part}"] for part in ("weight", "bias"))).view(len(x), -1, 2)


def under(w: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}


def sequence(x: Tensor, w: Weights) -> Tensor:
    for layer in range(2):
        rnn = nn.LSTM(x.shape[2], SMALL["hidden_size"], bidirectional=True, batch_first=True)
        rnn.load_state_dict(under(w, f"SequenceModeling.{layer}.rnn."))
        name = f"SequenceModeling.{layer}.linear"
        x = F.linear(rnn(x)[0], w[f"{name}.weight"], w[f"{name}.bias"])
    return x


def attended(features: Tensor, w: Weights, told: Tensor) -> Tensor:
    cell = nn.LSTMCell(features.shape[2] + 38, SMALL["hidden_size"])
    cell.load_state_dict(under(w, "Prediction.attention_cell.rnn."))
    part = under(w, "Prediction.attention_cell.")
    state = (torch.zeros(len(features), SMALL["hidden_size"]),) * 2
    scores = []
    for before in told.T:
        query = F.linear(state[0], part["h2h.weight"], part["h2h.bias"])[:, None]
        weight = F.linear((F.linear(features, part["i2h.weight"]) + query).tanh(), part["score.weight"]).softmax(1)
        seen = (weight * features).sum(1)
        state = cell(torch.cat([seen, F.one_hot(before, 38).float()], 1), state)
        scores.append(F.linear(state[0], w["Prediction.generator.weight"], w["Prediction.generator.bias"]))
    return torch.stack(scores, 1)


@pytest.mark.parametrize(("backbone", "to_map"), [("ResNet", resnet_map), ("VGG", vgg_map)])
@torch.no_grad()
def test_a_ctc_reader_computes_what_the_names_say(
    build: Build, images: Tensor, backbone: str, to_map: Callable[[Tensor, Weights], Tensor]
) -> None:
    w = random_weights(shapes(backbone, "CTC", SMALL["feature_channel"], SMALL["hidden_size"]))
    model = loaded(build, backbone, "CTC", w)
    straight = model.rectifier(images)
    features = sequence(to_map(straight, w).mean(2).transpose(1, 2), w)
    expected = F.linear(features, w["Prediction.weight"], w["Prediction.bias"])
    assert expected.std() > 0.01
    assert torch.allclose(model(images), expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_the_control_points_and_the_attention_are_what_the_names_say(build: Build, images: Tensor) -> None:
    w = random_weights(shapes("ResNet", "Attn", SMALL["feature_channel"], SMALL["hidden_size"]))
    model = loaded(build, "ResNet", "Attn", w)
    assert torch.allclose(model.rectifier.control_points(images), points(images, w), rtol=1e-3, atol=1e-4)  # type: ignore[operator]
    targets = torch.tensor([[5, 9, 2, 1, 0, 0], [37, 37, 1, 0, 0, 0]])
    told = F.pad(targets[:, :-1], (1, 0))
    expected = attended(model.features(images), w, told)
    assert expected.std() > 0.01
    assert torch.allclose(model(images, targets), expected, rtol=1e-3, atol=1e-4)
