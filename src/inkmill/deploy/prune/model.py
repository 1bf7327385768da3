"""Pruning of a recogniser in memory: score, choose, take out, and see that what is left is what a file brings back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inkmill.config.tasks import PruneSetting
from inkmill.deploy.prune.choose import choose
from inkmill.deploy.prune.groups import ChannelGraph, not_followed
from inkmill.errors import InkmillError
from inkmill.nn.narrow import cut, find_cuts, runs
from inkmill.tasks.recognition.model import Recognizer, build_recognizer


@dataclass(frozen=True)
class Layer:
    """A layer that could lose outputs.

    Attributes:
        name: its name in the model.
        before: outputs it had.
        after: outputs it has.
        group: number of its group of coupled layers.
    """

    name: str
    before: int
    after: int
    group: int


def prune_model(model: Recognizer, settings: PruneSetting) -> list[Layer]:
    """Prune a recogniser in place and return its prunable layers.

    Raises:
        ConfigError: the number that the mode needs is not given.
        InkmillError: its channels cannot be followed, or nothing of it would be pruned.
    """
    graph = ChannelGraph(model)
    groups = graph.groups(settings.raw_prune_score)
    sizes = [len(group.channels.scores) for group in groups]
    if not sizes:
        raise InkmillError(f"backbone {model.spec.backbone} cannot be pruned: attention needs all of its channels")
    going = choose([group.channels for group in groups], settings)
    # An amount of 0 asks for the same model again, which is how a pipeline without pruning looks.
    if not any(len(channels) for channels in going) and (settings.mode == "threshold" or settings.amount):
        raise InkmillError(_nothing_goes(settings, sizes))
    try:
        for group, channels in zip(groups, going, strict=True):
            graph.remove(group, channels)
        graph.finish()
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise not_followed(model, error) from error
    layers = [
        Layer(name, size, size - len(channels), number)
        for number, (group, size, channels) in enumerate(zip(groups, sizes, going, strict=True))
        for name in group.layers
    ]
    for layer in layers:
        if model.get_parameter(f"{layer.name}.weight").shape[0] != layer.after:
            raise not_followed(model, ValueError(f"{layer.name} lost other channels than were chosen"))
    _comes_back(model)
    return layers


def _nothing_goes(settings: PruneSetting, sizes: list[int]) -> str:
    more = "threshold" if settings.mode == "threshold" else "amount"
    return (
        f"nothing would be pruned: with mode={settings.mode} and granularity={settings.granularity} "
        f"all {sum(sizes):,} channels stay (groups have {min(sizes)} to {max(sizes)}); "
        f"raise prune.prune_setting.{more} or lower prune.prune_setting.granularity"
    )


def _comes_back(model: Recognizer) -> None:
    """Refuse a model that does not run, or that is another one when it is built from its tensors again."""
    weights = model.state_dict()
    settings = model.spec.model_copy(update={"backbone_pretrained": False})
    again = build_recognizer(settings, model.num_classes, model.max_label_length)
    cut(again, find_cuts(again.state_dict(), weights))
    try:
        again.load_state_dict(weights)
    except RuntimeError as error:
        raise not_followed(model, ValueError("its tensors do not fit one another any more")) from error
    again.to(next(model.parameters()).device).eval()
    if not runs(model) or not runs(again):
        raise not_followed(model, ValueError("what is left does not run"))
    spec = model.spec
    images = torch.linspace(-1, 1, 2 * spec.input_channel * spec.input_height * spec.input_width)
    images = images.view(2, spec.input_channel, spec.input_height, spec.input_width).to(next(model.parameters()).device)
    if not torch.equal(model.eval().read(images)[0], again.read(images)[0]):
        raise not_followed(model, ValueError("it reads otherwise after saving"))
