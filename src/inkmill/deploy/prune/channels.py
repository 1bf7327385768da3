"""Which channels of a network are coupled, what they are worth, and how they are taken out of it.

torch-pruning's dependency graph (Fang et al. 2023, "DepGraph") follows channels through convolutions, norms, linear
layers and shortcuts. It is shown the backbone and the localisation network; what reads the backbone's map (the LSTM, or
the head) stands in as one linear layer and loses the same columns afterwards, for the graph cannot see into an LSTM.

Left whole: attention (its channels are laid out in heads) with all that must have its width, grouped convolutions, the
spline's control points, and everything after the map.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inkmill.config.tasks import PruneSetting
from inkmill.deploy.prune.choose import Scored, Scores, choose
from inkmill.errors import InkmillError, MissingExtraError
from inkmill.nn.backbones import BACKBONES
from inkmill.nn.narrow import agree, cut, find_cuts, put, runs
from inkmill.nn.network import Network
from inkmill.nn.rectifiers.tps import TPS
from inkmill.tasks.model import TaskModel

Norm = Literal["L1", "L2"]


@dataclass(frozen=True)
class PruneGroup:
    """Channels that only go together.

    Attributes:
        channels: their scores.
        layers: the convolutions and linear layers that make them, by name.
    """

    channels: Scored
    layers: tuple[str, ...]
    root: nn.Module
    take_out: Any


@dataclass(frozen=True)
class PrunedLayer:
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


def prune_model(model: TaskModel, settings: PruneSetting, build: Callable[[], TaskModel]) -> list[PrunedLayer]:
    """Prune a network in place and return its prunable layers, whether or not they lost channels.

    Args:
        model: the network.
        settings: how much goes.
        build: makes the same network in its whole size, with fresh weights.

    Raises:
        ConfigError: the number that the mode needs is not given.
        InkmillError: its channels cannot be followed, or nothing of it would be pruned.
    """
    # 1. Groups of channels that only go together, and which of them go.
    graph = ChannelGraph(model)
    groups = graph.groups(settings.raw_prune_score)
    sizes = [len(group.channels.scores) for group in groups]
    if not sizes:
        raise InkmillError(f"backbone {model.spec.backbone} cannot be pruned: attention needs all of its channels")
    going = choose([group.channels for group in groups], settings)
    # An amount of 0 asks for the same model again, which is how a pipeline without pruning looks.
    if not any(len(channels) for channels in going) and (settings.mode == "threshold" or settings.amount):
        raise InkmillError(_nothing_goes(settings, sizes))

    # 2. Out of every layer that has them.
    try:
        for group, channels in zip(groups, going, strict=True):
            graph.remove(group, channels)
        graph.finish()
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise not_followed(model, error) from error

    # 3. torch-pruning follows unknown layers as well as it can: see that it did what was chosen, and nothing else.
    layers = [
        PrunedLayer(name, size, size - len(channels), number)
        for number, (group, size, channels) in enumerate(zip(groups, sizes, going, strict=True))
        for name in group.layers
    ]
    for layer in layers:
        if model.get_parameter(f"{layer.name}.weight").shape[0] != layer.after:
            raise not_followed(model, ValueError(f"{layer.name} lost other channels than were chosen"))
    _refuse_unlike_saved(model, build())
    return layers


def _nothing_goes(settings: PruneSetting, sizes: list[int]) -> str:
    more = "threshold" if settings.mode == "threshold" else "amount"
    return (
        f"nothing would be pruned: with mode={settings.mode} and granularity={settings.granularity} "
        f"all {sum(sizes):,} channels stay (groups have {min(sizes)} to {max(sizes)}); "
        f"raise prune.prune_setting.{more} or lower prune.prune_setting.granularity"
    )


def _refuse_unlike_saved(model: TaskModel, whole: TaskModel) -> None:
    """Refuse a model that does not run, or is another one when it is built from its tensors again, as its file is."""
    weights, device = model.state_dict(), next(model.parameters()).device
    cut(whole, find_cuts(whole.state_dict(), weights))
    try:
        whole.load_state_dict(weights)
    except RuntimeError as error:
        raise not_followed(model, ValueError("its tensors no longer fit one another")) from error
    again = whole.to(device).eval()
    if not runs(model) or not runs(again):
        raise not_followed(model, ValueError("what is left does not run"))
    spec = model.spec
    size = (2, spec.input_channel, spec.input_height, spec.input_width)
    images = torch.linspace(-1, 1, math.prod(size), device=device).view(size)
    with torch.no_grad():
        outputs, saved = model.eval().full_pass(images), again.full_pass(images)
    if not torch.allclose(outputs, saved, rtol=1e-3, atol=1e-4 * float(outputs.abs().max())):
        raise not_followed(model, ValueError("it gives other outputs after saving"))


class ChannelGraph:
    """The coupled channels of a network.

    Args:
        model: the network; `remove` changes it in place.

    Raises:
        InkmillError: its channels cannot be followed.
        MissingExtraError: torch-pruning is not installed.
    """

    def __init__(self, model: Network) -> None:
        try:
            from torch_pruning import DependencyGraph
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "torch-pruning", "train", "prune") from error
        self.model = model
        self._traced = _Traced(model)
        self._names = {module: name for name, module in model.named_modules()}
        self._whole = {*_of_fixed_width(model)}
        self._counted = [self._traced.reader, *([model.rectifier.points] if isinstance(model.rectifier, TPS) else [])]
        spec = model.spec
        device = next(model.parameters()).device
        images = torch.rand(2, spec.input_channel, spec.input_height, spec.input_width, device=device)
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # of single parameters, which it takes for channels in the last dimension
            try:
                self._graph = DependencyGraph().build_dependency(self._traced, images, verbose=False)
            except Exception as error:  # it raises whatever an unknown layer leads to
                raise not_followed(model, error) from error

    def groups(self, norm: Norm) -> list[PruneGroup]:
        """Return the groups that may be pruned, scored by the L1 or L2 norm of their filters.

        A filter's norm is divided by the highest of its layer, and a channel that several layers make has the mean.

        Raises:
            InkmillError: its channels cannot be followed.
        """
        try:
            found = list(self._groups(norm))
        except (AssertionError, IndexError, ValueError) as error:
            raise not_followed(self.model, error) from error
        of_layers = Counter(layer for group in found for layer in group.layers)
        for layer, times in of_layers.items():
            if times > 1:  # each group would take its share: the layer would lose more than was asked for
                raise not_followed(self.model, ValueError(f"{layer} makes channels of {times} groups"))
        return found

    def _groups(self, norm: Norm) -> Iterator[PruneGroup]:
        makers = (nn.Conv2d, nn.Linear)
        for found in self._graph.get_all_groups(ignored_layers=self._counted, root_module_types=makers):
            if any(item.dep.target.module in self._whole for item in found):
                continue
            made = {
                self._names[item.dep.target.module]: _relative(item, len(found[0].idxs), norm)
                for item in found
                if isinstance(item.dep.target.module, makers)
                and self._graph.is_out_channel_pruning_fn(item.dep.handler)
            }
            scores = np.mean(list(made.values()), axis=0)
            scored = Scored(scores / max(scores.max(), np.finfo(np.float64).tiny), filters=len(made))
            yield PruneGroup(scored, tuple(made), found[0].dep.target.module, found[0].dep.handler)

    def remove(self, group: PruneGroup, channels: NDArray[np.int64]) -> None:
        """Take channels of a group out of every layer that has them; call `finish` after the last."""
        if not len(channels):
            return
        coupled = self._graph.get_pruning_group(group.root, group.take_out, channels.tolist())
        coupled.prune(record_history=False)

    def finish(self) -> None:
        """Take the columns of removed channels from what reads the backbone's map.

        Raises:
            InkmillError: the model does not run any more.
        """
        kept = self._traced.kept()
        for name, axis in self.model.feature_axes().items():
            weights = self.model.get_parameter(name).detach()
            others = torch.arange(self._traced.channels, weights.shape[axis], device=kept.device)
            put(self.model, name, weights.index_select(axis, torch.cat([kept, others])))
        agree(self.model)


class _Traced(nn.Module):
    """What the graph is drawn from."""

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.channels = model.backbone.out_channels
        self.backbone, self.rectifier = model.backbone, model.rectifier
        self.reader = nn.Linear(self.channels, 1).to(next(model.parameters()).device)
        with torch.no_grad():  # its columns are numbered, and the numbers that are left tell which channels are
            self.reader.weight.copy_(torch.arange(self.channels)[None])

    def forward(self, images: Tensor) -> list[Tensor]:
        read = [self.reader(self.backbone(images).mean(dim=2).transpose(1, 2))]
        # Side by side, not one after the other: a channel of the points has nothing to do with one of the picture.
        return [*read, self.rectifier.control_points(images)] if isinstance(self.rectifier, TPS) else read

    def kept(self) -> Tensor:
        return self.reader.weight.detach()[0].round().to(torch.int64)


def _of_fixed_width(model: Network) -> Iterator[nn.Module]:
    """Yield the layers whose widths other numbers depend on: heads of attention, groups of convolutions and norms."""
    for part in model.modules():
        grouped = isinstance(part, nn.Conv2d) and 1 < part.groups < part.out_channels
        if grouped or isinstance(part, nn.GroupNorm | nn.MultiheadAttention):
            yield part
        if hasattr(part, "heads") or hasattr(part, "num_heads"):
            yield from part.children()


def _relative(item: Any, count: int, norm: Norm) -> Scores:
    """Return the (count,) norms of a layer's filters over the highest of them."""
    weights = item.dep.target.module.weight.detach().flatten(1).double()
    norms = weights.abs().sum(dim=1) if norm == "L1" else weights.norm(dim=1)
    by_channel = np.zeros(count)
    np.add.at(by_channel, np.asarray(item.root_idxs), norms.cpu().numpy()[item.idxs])
    relative: Scores = by_channel / max(by_channel.max(), np.finfo(np.float64).tiny)
    return relative


def not_followed(model: Network, error: Exception) -> InkmillError:
    """Return the error of a model whose layers the graph cannot be drawn from."""
    why = " ".join(str(error).split()) or type(error).__name__
    return InkmillError(
        f"the channels of backbone {model.spec.backbone} cannot be followed, so it cannot be pruned ({why}); "
        f"{', '.join(BACKBONES.names())} and most convolutional timm models can"
    )
