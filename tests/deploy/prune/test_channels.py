from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from inkmill.config.model import ModelSpec
from inkmill.config.tasks import PruneSetting
from inkmill.deploy.prune.channels import ChannelGraph, PrunedLayer, PruneGroup
from inkmill.deploy.prune.channels import prune_model as prune_with
from inkmill.errors import InkmillError
from inkmill.nn.backbones import BACKBONES
from inkmill.tasks.recognition.model import Recognizer, build_recognizer

STAGES: dict[str, dict[str, Any]] = {
    "TPS-BiLSTM-CTC": {"TPS": True, "sequence": "BiLSTM", "prediction": "CTC"},
    "Attn": {"sequence": "none", "prediction": "Attn"},
    "Slots": {"sequence": "none", "prediction": "Slots"},
}


def recognizer(backbone: str, **keys: Any) -> Recognizer:
    torch.manual_seed(0)
    small: dict[str, Any] = {"feature_channel": 64, "hidden_size": 24, "input_width": 64}
    return build_recognizer(ModelSpec(backbone=backbone, **small | keys), 11, 5).eval()


def prune_model(model: Recognizer, settings: PruneSetting) -> list[PrunedLayer]:
    return prune_with(model, settings, lambda: build_recognizer(model.spec, model.num_classes, 5))


def quiet(model: Recognizer) -> None:
    """Take away what lets a channel of zeros become something else on its way, and give every norm its own scale."""
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.uniform_(0.5, 1.5)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") and name != "rectifier.points.bias":
                parameter.zero_()
            if name.endswith("scale"):
                parameter.fill_(1)
        if model.spec.TPS:
            nn.init.normal_(model.get_parameter("rectifier.points.weight"), std=0.05)


def normed(graph: ChannelGraph, group: PruneGroup) -> bool:
    """Whether a layer norm looks at these channels: without some of them, its mean is another."""
    coupled = graph._graph.get_pruning_group(group.root, group.take_out, [0])
    return any(isinstance(item.dep.target.module, nn.LayerNorm) for item in coupled)


@pytest.mark.parametrize(
    ("backbone", "stages"),
    [
        ("ResNet", STAGES["TPS-BiLSTM-CTC"]),
        *(("VGG", stages) for stages in STAGES.values()),
        ("ResNet2X", STAGES["Attn"]),
        ("Tiny", STAGES["Slots"]),
        ("ConvMix", STAGES["Attn"]),
        ("FAN_tiny_2X", STAGES["Slots"]),
        ("mobilenetv3_small_050", STAGES["Slots"]),
    ],
)
def test_without_its_dead_channels_a_model_computes_the_same(backbone: str, stages: dict[str, Any]) -> None:
    model = recognizer(backbone, **stages)
    quiet(model)
    graph = ChannelGraph(model)
    groups = [group for group in graph.groups("L2") if not normed(graph, group)]
    assert groups
    random = np.random.default_rng(0)
    dead = [np.sort(random.permutation(len(one.channels.scores))[: len(one.channels.scores) // 3]) for one in groups]
    for group, channels in zip(groups, dead, strict=True):
        for layer in group.layers:
            model.get_parameter(f"{layer}.weight").data[channels] = 0
    images = torch.rand(2, 1, 32, 64)
    before, before_size = model(images), sum(p.numel() for p in model.parameters())
    for group, channels in zip(groups, dead, strict=True):
        graph.remove(group, channels)
    graph.finish()
    assert sum(p.numel() for p in model.parameters()) < 0.95 * before_size
    assert torch.allclose(model(images), before, atol=1e-5 * float(before.detach().abs().max()))


def test_every_own_backbone_can_be_pruned() -> None:
    for name in BACKBONES.names():  # the error of a backbone that cannot names all of these
        layers = prune_model(recognizer(name, input_width=32, sequence="none"), PruneSetting(granularity=4))
        assert sum(layer.after for layer in layers) < sum(layer.before for layer in layers)


def test_a_residual_trunk_is_one_group_and_loses_the_asked_share_once() -> None:
    model = recognizer("ResNet", feature_channel=128)
    layers = {layer.name: layer for layer in prune_model(model, PruneSetting(amount=0.4, granularity=4))}
    trunk = [layer for name, layer in layers.items() if name.startswith("backbone.stage3.") and "conv2" in name]
    assert len({layer.group for layer in trunk}) == 1
    assert len(trunk) == 5
    assert {layer.after for layer in layers.values() if layer.before == 128} == {76}
    assert model.get_parameter("backbone.stage4.2.conv2.weight").shape == (76, 76, 3, 3)


def test_classes_control_points_hidden_units_and_attention_stay() -> None:
    model = recognizer("Tiny", TPS=True)
    prune_model(model, PruneSetting(amount=0.6, granularity=2))
    sizes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert sizes["head.classes.weight"] == (11, 24)
    assert sizes["rectifier.points.weight"] == (40, 102)
    assert sizes["neck.0.rnn.weight_ih_l0"] == sizes["neck.0.rnn.weight_ih_l0_reverse"] == (96, 192)
    assert sizes["backbone.mixing.attention.qkv.weight"] == (576, 192)
    assert sizes["backbone.mixing.mlp.0.weight"][0] < 384


def test_the_lstm_reads_only_the_channels_that_are_left() -> None:
    model = recognizer("VGG")
    prune_model(model, PruneSetting(amount=0.5))
    rnn = model.get_submodule("neck.0.rnn")
    assert isinstance(rnn, nn.LSTM)
    assert (rnn.input_size, model.backbone.out_channels, rnn.weight_ih_l0.shape[1]) == (32, 32, 32)


@pytest.mark.parametrize("mode", ["amount", "threshold", "experimental_hybrid"])
def test_l1_and_l2_choose_other_channels(mode: str) -> None:
    settings: dict[str, Any] = {"mode": mode, "amount": 0.5, "threshold": 0.75, "granularity": 1}
    pruned = []
    for norm in ("L1", "L2"):
        model = recognizer("VGG")
        with torch.no_grad():  # a filter of few large weights is long in L2 and short in L1
            for part in model.modules():
                if isinstance(part, nn.Conv2d):
                    part.weight *= torch.rand(len(part.weight), 1, 1, 1) * 0.2 + 0.9
                    part.weight[::2] = torch.nn.functional.dropout(part.weight[::2], 0.8) * 0.55
        prune_model(model, PruneSetting.model_validate(settings | {"raw_prune_score": norm}))
        pruned.append(model(torch.ones(1, 1, 32, 64)))
    assert not torch.allclose(pruned[0], pruned[1])


def test_an_amount_of_nothing_leaves_the_model_as_it_was() -> None:
    model, images = recognizer("ResNet", TPS=True), torch.rand(2, 1, 32, 64)
    before = model(images)
    prune_model(model, PruneSetting(amount=0))
    assert torch.equal(model(images), before)


def test_what_cannot_be_pruned_is_one_sentence() -> None:
    with pytest.raises(InkmillError, match=r"the channels of backbone ghostnet_050 cannot be followed"):
        prune_model(recognizer("ghostnet_050", sequence="none"), PruneSetting())
    with pytest.raises(InkmillError, match=r"nothing would be pruned: with mode=amount and granularity=64 all .* stay"):
        prune_model(recognizer("VGG"), PruneSetting(granularity=64))
