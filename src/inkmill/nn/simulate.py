"""From a model to one that simulates its int8 version: batch norms folded, convolutions and linear layers rounded.

An int8 convolution has no batch norm after it: the norm's factors belong to the weights that are rounded. So each batch
norm that follows a convolution is folded into it, with the statistics that training has ended with; fine-tuning goes on
without. Which norm and which ReLU follow which convolution is seen by running the model once, on shapes alone.

In float stay LSTM, softmax, norms of other kinds, products inside attention, and what a module names in its attribute
`float_parts`: its own parts that int8 would harm or not speed up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from inkmill.nn.fake_int8 import FakeInt8Conv2d, FakeInt8Layer, FakeInt8Linear
from inkmill.nn.network import Network

_PASSED = (nn.MaxPool2d, nn.Identity)
"""What gives back some of the numbers that it reads, and no others."""


@dataclass
class _Around:
    """What was seen around a convolution.

    Attributes:
        calls: how often it was run.
        reads: the convolution whose output it reads, with nothing but batch norm, ReLU and pooling between.
        norm: the batch norm that follows.
        relu: whether a ReLU follows.
    """

    calls: int = 0
    reads: nn.Conv2d | None = None
    norm: nn.BatchNorm2d | None = None
    relu: bool = False


def is_simulated(model: nn.Module) -> bool:
    """Return whether `simulate_int8` was here."""
    return any(isinstance(part, FakeInt8Layer) for part in model.modules())


def layers_in_int8(model: nn.Module) -> list[str]:
    """Return the names of the layers that are rounded."""
    return [name for name, part in model.named_modules() if isinstance(part, FakeInt8Layer)]


def layers_in_float(model: nn.Module) -> list[str]:
    """Return the names of the convolutions, linear layers and LSTMs that are not rounded."""
    kinds = (nn.Conv2d, nn.Linear, nn.LSTM, nn.LSTMCell)
    found = [(name, part) for name, part in model.named_modules() if isinstance(part, kinds)]
    return [name for name, part in found if not isinstance(part, FakeInt8Layer)]


def simulate_int8(model: Network) -> None:
    """Fold batch norms and let convolutions and linear layers round as int8 does, in place.

    Ranges are not measured yet (see `inkmill.nn.fake_int8.measure`). A model that rounds already stays as it is.
    """
    if is_simulated(model):
        return
    # 1. One run on shapes tells which layers follow one another, and how often each is called.
    around, called = _surroundings(model)
    names = {part: name for name, part in model.named_modules()}
    stays = _float_layers(model)

    # 2. Convolutions, in the order of running: what a layer reads has been replaced before it is.
    done: dict[nn.Conv2d, FakeInt8Conv2d] = {}
    for layer, seen in around.items():
        # A subclass computes something else, and of a layer that runs twice there is no single range.
        if type(layer) is not nn.Conv2d or seen.calls != 1 or layer in stays:
            continue
        if seen.norm is not None:
            _fold(layer, seen.norm)
            model.set_submodule(names[seen.norm], _without_norm(seen.norm))
        before = done[seen.reads].gives if seen.reads in done else None
        done[layer] = FakeInt8Conv2d.of(layer, before, seen.relu)
        model.set_submodule(names[layer], done[layer])

    # 3. Linear layers: nothing is folded into them, so those behind the backbone, which were not run, are taken too.
    watched = {part for parent in (model.backbone, model.rectifier) for part in parent.modules()}
    for name, part in list(model.named_modules()):
        runs_once = part not in watched or called[part] == 1
        if type(part) is nn.Linear and runs_once and part not in stays:
            model.set_submodule(name, FakeInt8Linear.of(part))
    model.spec = model.spec.model_copy(update={"quantize": True})


def _float_layers(model: nn.Module) -> set[nn.Module]:
    """Return every module inside the `float_parts` that modules of `model` name."""
    owners = [(part, getattr(part, "float_parts", ())) for part in model.modules()]
    return {inner for part, names in owners for name in names for inner in part.get_submodule(name).modules()}


def _fold(layer: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None and norm.running_var is not None  # noqa: PT018 - seen when it was found
    weight, bias = fuse_conv_bn_weights(
        layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    layer.weight, layer.bias = weight, bias


def _without_norm(norm: nn.BatchNorm2d) -> nn.Module:
    """timm's batch norms have drop-out and activation inside."""
    rest = [part for name in ("drop", "act") if (part := getattr(norm, name, None)) is not None]
    return nn.Sequential(*rest) if rest else nn.Identity()


def _surroundings(model: Network) -> tuple[dict[nn.Conv2d, _Around], Counter[nn.Module]]:
    """Return what stands around the convolutions of rectifier and backbone, in order, and how often layers are run."""
    watch = _Watch()
    for part in model.image_parts():
        with watch.on(part):
            _run_on_shapes(part, model)
    return watch.around, watch.called


def _run_on_shapes(part: nn.Module, model: Network) -> None:
    """Run one part on the meta device: no weight is touched, nothing is computed."""
    spec = model.spec
    was_training = {module: module.training for module in part.modules()}
    tensors = [*part.named_parameters(), *part.named_buffers()]
    images = torch.empty(2, spec.input_channel, spec.input_height, spec.input_width, device="meta")
    with torch.no_grad():
        part.eval()  # batch norms would count this run among their statistics
        torch.func.functional_call(part, {name: tensor.to("meta") for name, tensor in tensors}, (images,))
    for module, training in was_training.items():
        module.training = training


class _Watch:
    """Follows the outputs of convolutions through what may stand between one and the next."""

    def __init__(self) -> None:
        self.around: dict[nn.Conv2d, _Around] = {}
        self.called: Counter[nn.Module] = Counter()
        self._made_by: dict[int, tuple[Tensor, nn.Conv2d]] = {}  # with the tensor, lest another gets its id

    @contextmanager
    def on(self, part: nn.Module) -> Iterator[None]:
        """Watch every run of a layer of `part`."""
        hooks = [module.register_forward_hook(self._ran) for module in part.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _ran(self, module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        self.called[module] += 1
        if not (given and isinstance(given[0], Tensor) and isinstance(out, Tensor)):
            return
        # Tensors are told apart by identity: a sum or a reshape between two layers makes a new one, and ends the chain.
        conv = self._made_by.get(id(given[0]), (None, None))[1]
        if isinstance(module, nn.Conv2d):
            seen = self.around.setdefault(module, _Around())
            seen.calls, seen.reads = seen.calls + 1, conv
            self._remember(out, module)
        elif conv is None:
            return
        elif isinstance(module, nn.BatchNorm2d):
            self._normed(conv, module, out)
        elif isinstance(module, nn.ReLU):
            self.around[conv].relu = True
            self._remember(out, conv)
        elif isinstance(module, _PASSED):
            self._remember(out, conv)

    def _normed(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, out: Tensor) -> None:
        seen = self.around[conv]
        # A second norm, or one behind a ReLU, cannot be folded; without statistics there is nothing to fold.
        if seen.norm is not None or seen.relu or norm.running_mean is None:
            return
        seen.norm = norm
        activation = getattr(norm, "act", None)  # timm's
        if isinstance(activation, nn.ReLU):
            seen.relu = True
        if activation is None or isinstance(activation, (nn.ReLU, nn.Identity)):
            self._remember(out, conv)

    def _remember(self, out: Tensor, conv: nn.Conv2d) -> None:
        self._made_by[id(out)] = out, conv
