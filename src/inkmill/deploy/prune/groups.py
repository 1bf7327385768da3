"""Which channels of a recogniser are coupled, what they are worth, and how they are taken out.

torch-pruning's dependency graph (Fang et al. 2023, "DepGraph") follows channels through convolutions, norms, linear
layers and shortcuts. It is shown the backbone and the localisation network; what reads the backbone's map (the LSTM, or
the head) stands in as one linear layer and loses the same columns afterwards, for the graph cannot see into an LSTM.

Left whole: attention (its channels are laid out in heads) with all that must have its width, grouped convolutions, the
spline's control points, and everything after the map.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inkmill.deploy.prune.choose import Scored, Scores
from inkmill.errors import InkmillError, MissingExtraError
from inkmill.nn.backbones import BACKBONES
from inkmill.nn.narrow import agree, put
from inkmill.nn.rectifiers.tps import TPS
from inkmill.tasks.recognition.model import Recognizer

Norm = Literal["L1", "L2"]


@dataclass(frozen=True)
class Group:
    """Channels that only go together.

    Attributes:
        channels: their scores.
        layers: the convolutions and linear layers that make them, by name.
    """

    channels: Scored
    layers: tuple[str, ...]
    root: nn.Module
    take_out: Any


class ChannelGraph:
    """The coupled channels of a recogniser.

    Args:
        model: the recogniser; `remove` changes it in place.

    Raises:
        InkmillError: its channels cannot be followed.
        MissingExtraError: torch-pruning is not installed.
    """

    def __init__(self, model: Recognizer) -> None:
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

    def groups(self, norm: Norm) -> list[Group]:
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

    def _groups(self, norm: Norm) -> Iterator[Group]:
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
            yield Group(scored, tuple(made), found[0].dep.target.module, found[0].dep.handler)

    def remove(self, group: Group, channels: NDArray[np.int64]) -> None:
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

    def __init__(self, model: Recognizer) -> None:
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


def _of_fixed_width(model: Recognizer) -> Iterator[nn.Module]:
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


def not_followed(model: Recognizer, error: Exception) -> InkmillError:
    """Return the error of a model whose layers the graph cannot be drawn from."""
    why = " ".join(str(error).split()) or type(error).__name__
    return InkmillError(
        f"the channels of backbone {model.spec.backbone} cannot be followed, so it cannot be pruned ({why}); "
        f"{', '.join(BACKBONES.names())} and most convolutional timm models can"
    )
