"""A pruned model is the architecture of its card with fewer channels, and how many its own tensors say.

So a file of a pruned reader needs no graph beside it: the whole model is built from the card, each tensor is cut to the
size that the file gives it, and one image read shows whether the result is a network. A size can only be smaller
than the card's, so a hostile file cannot ask for more memory than its card does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inkmill.errors import ConfigError
from inkmill.nn.network import Network

Cuts = dict[str, tuple[int, ...]]
"""Tensor -> by how much each of its dimensions is shorter than in the whole model; whole tensors are not in it."""


def find_cuts(whole: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Cuts:
    """Return by how much `weights` are smaller than those of the whole model.

    Nothing where they are not that model's at all: other names, another number of dimensions, a larger size, or another
    kernel (only the first two dimensions of a tensor count channels).
    """
    if whole.keys() != weights.keys():
        return {}
    cuts = {}
    # Anything that pruning cannot have done makes it another model, not a pruned one.
    for name, tensor in whole.items():
        smaller = weights[name]
        if smaller.dim() != tensor.dim():
            return {}
        less = tuple(a - b for a, b in zip(tensor.shape, smaller.shape, strict=True))
        if any(not 0 <= by < size for by, size in zip(less, tensor.shape, strict=True)) or any(less[2:]):
            return {}
        if any(less):
            cuts[name] = less
    return cuts


def cut(model: Network, cuts: Cuts) -> None:
    """Shorten tensors of `model` in place; which channels stay does not matter, for their weights come afterwards.

    Raises:
        ValueError: the model has no such tensor, or nothing would be left of it.
    """
    state = model.state_dict(keep_vars=True)
    for name, less in cuts.items():
        # The names and sizes come from a file that may be hostile.
        tensor = state.get(name)
        if tensor is None or len(less) != tensor.dim() or any(a >= b for a, b in zip(less, tensor.shape, strict=True)):
            raise ValueError(f"no tensor {name} that could be cut by {less}")
        kept = tuple(slice(size - by) for size, by in zip(tensor.shape, less, strict=True))
        put(model, name, tensor.detach()[kept].clone())
    agree(model)


def put(model: nn.Module, name: str, value: Tensor) -> None:
    """Put a tensor of any size in the place of the parameter or buffer `name`."""
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    old = getattr(module, own)
    setattr(module, own, nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value)


def agree(model: Network) -> None:
    """Set the sizes that layers hold as numbers to those of their tensors."""
    # torch computes with the tensors; the numbers are read by exporters, by pruning and by cuDNN.
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            if part.groups == part.out_channels > 1:  # depthwise: a group a channel
                part.groups = part.weight.shape[0]
            part.out_channels, part.in_channels = part.weight.shape[0], part.weight.shape[1] * part.groups
        elif isinstance(part, nn.Linear):
            part.out_features, part.in_features = part.weight.shape
        elif isinstance(part, _BatchNorm) and part.running_mean is not None:
            part.num_features = len(part.running_mean)
        elif isinstance(part, nn.LayerNorm) and part.elementwise_affine:
            part.normalized_shape = tuple(part.weight.shape)
        elif isinstance(part, nn.LSTM):
            part.input_size = part.get_parameter("weight_ih_l0").shape[1]
            part.hidden_size = part.get_parameter("weight_hh_l0").shape[1]
            part.flatten_parameters()  # or cuDNN would do it at every step
        elif isinstance(part, nn.LSTMCell):
            part.input_size, part.hidden_size = part.weight_ih.shape[1], part.weight_hh.shape[1]
    name, axis = next(iter(model.feature_axes().items()))
    model.backbone.out_channels = model.get_parameter(name).shape[axis]


def runs(model: Network) -> bool:
    """Return whether the layers of `model` fit one another and its outputs: one black image is read."""
    if not all(_consistent(part) for part in model.modules() if isinstance(part, nn.LSTM)):
        return False
    spec = model.spec
    images = next(model.parameters()).new_full((1, spec.input_channel, spec.input_height, spec.input_width), -1)
    was_training = model.training
    # Running it is the only complete test: which sizes must agree depends on every connection between layers.
    try:
        with torch.no_grad():
            outputs, expected = model.eval().probe(images)
    except (RuntimeError, ValueError, IndexError, ConfigError):
        return False
    finally:
        model.train(was_training)
    return tuple(outputs.shape) == expected


def _consistent(lstm: nn.LSTM) -> bool:
    """Whether the tensors have the sizes of one LSTM, which torch itself does not look at before it computes."""
    gates = 4 * lstm.hidden_size
    expected = {"weight_ih": (gates, lstm.input_size), "weight_hh": (gates, lstm.hidden_size)}
    return all(
        tuple(tensor.shape) == expected.get(name.partition("_l0")[0], (gates,))
        for name, tensor in lstm.named_parameters()
    )
