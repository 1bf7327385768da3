"""One step of training: forward, loss, backward, clipping, optimiser, average; on a GPU captured as one CUDA graph.

Python takes some milliseconds to start the thousand kernels of a step, whatever the batch size; a GPU does 512 crops in
less. So on a GPU the step is captured once for each shape of batch, and from then on all its kernels are started
together. The losses are those of the eager step: the same kernels run.

    1. The first two batches of a shape are trained on eagerly: then libraries compile, choose kernels and allocate.
    2. The third is captured; it and all later ones replay the graph. Nothing is trained on twice or for nothing.
    3. What changes from step to step lies in tensors that the graph reads: images, targets, learning rate, how far the
       average moves, the state of the random numbers.
    4. Short batches are eager: the last of an epoch, or one with a bad sample. Only sizes that come often are captured.

Several GPUs, and several batches a step, take two graphs: gradients are added up in one piece of memory by the first,
exchanged between ranks in one call, and used by the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor

from inkmill.config.spec import Spec
from inkmill.errors import first_line
from inkmill.kernels.graph import MOST_SHAPES, CapturedFunction, GraphMemory
from inkmill.tasks.base import Say
from inkmill.tasks.model import TaskModel, Tensors, to_input
from inkmill.training.ema import WeightAverage
from inkmill.training.optim import build_optimizer

_SELDOM = 20  # batches of another size than dataset.batch_size that are trained on before it is captured


class TrainingStep:
    """A step as any device does it, one operation after the other; on several ranks DDP exchanges the gradients.

    Args:
        fabric: launched.
        spec: the resolved spec.
        model: the network, on its device.
        average: follows the weights, where there is one.
        note: prints one line, where something cannot be compiled or captured.
        capturable: the optimiser's step can be captured.

    Attributes:
        optimizer: Fabric's, of the model's weights.
        compiled: whether the backbone is compiled.
        memory: shared by graphs that run between steps; None where there are none.
    """

    memory: GraphMemory | None = None

    def __init__(
        self,
        fabric: Fabric,
        spec: Spec,
        model: TaskModel,
        average: WeightAverage | None,
        note: Say,
        capturable: bool = False,
    ) -> None:
        settings = spec.train
        self.fabric, self.model, self.average = fabric, model, average
        self._batches, self._max_norm = settings.accumulate, settings.clip_grad_norm
        self._full = spec.dataset.batch_size
        self._free_width = spec.model.input_resize == "height"
        self._note = note
        self.compiled = False
        if settings.compile is True:
            self._compile()
        optimizer = build_optimizer(model, settings.optim, capturable)
        self.wrapped, self.optimizer = fabric.setup(model, optimizer)

    def __call__(self, images: Tensor, targets: Tensors, updates: bool) -> Tensor:
        """Learn from a batch; nothing waits for a GPU.

        Args:
            images: uint8 (B, H, W, C); B may be 0.
            targets: of `TaskModel.to_targets`.
            updates: whether the weights are updated with the gradients since the last time.

        Returns:
            The batch's mean loss, a scalar on the device.
        """
        loss = self._or_uncompiled(len(images), lambda: self._learn_from(images, targets, updates))
        if updates:
            if self.average is not None:
                self.average.count()
            self._update()
        return loss

    def _learn_from(self, images: Tensor, targets: Tensors, updates: bool) -> Tensor:
        with self.fabric.no_backward_sync(self.wrapped, enabled=not updates):
            outputs = self.wrapped(to_input(images), *self.model.taught(targets))
            loss = self.model.loss(outputs, targets) if len(images) else _no_loss(outputs)
            self.fabric.backward(loss / self._batches)
        return loss.detach()

    def _or_uncompiled(self, images: int, work: Callable[[], Tensor]) -> Tensor:
        """Return what `work` returns; what does not compile is run without."""
        if not self.compiled:
            return work()
        from torch._dynamo.exc import TorchDynamoException  # seconds to import
        from torch._inductor.exc import InductorError

        try:
            with self.as_compiled(images):
                return work()
        except (TorchDynamoException, InductorError) as error:
            self.compiled = False
            self.model.backbone._compiled_call_impl = None
            self._note(f"the backbone is not compiled: {first_line(error)}")
        return work()

    def as_compiled(self, images: int) -> AbstractContextManager[object]:
        """Run what is compiled only for full batches: another size would be compiled for a minute, for one batch."""
        if not self.compiled or images == self._full or (self._free_width and images):
            return nullcontext()
        eager: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return eager

    def before_validation(self) -> None:
        """Make what ranks keep for themselves the same on all of them."""

    def _update(self) -> None:
        """Clip the gradients, take the optimiser's step and move the average."""
        if self._max_norm:
            self.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=self._max_norm, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.move(self.model)

    def _compile(self) -> None:
        # For one shape: made for any, it would be slower for the one that nearly all batches have.
        self.compiled = True
        self.model.backbone.compile(dynamic=None if self._free_width else False)
        torch._dynamo.config.recompile_limit = MOST_SHAPES  # torch's own limit of 8 falls back silently


class CapturedStep(TrainingStep):
    """A step on a GPU that is captured: see the head of this file."""

    def __init__(self, fabric: Fabric, spec: Spec, model: TaskModel, average: WeightAverage | None, note: Say) -> None:
        super().__init__(fabric, spec, model, average, note, capturable=True)
        self.memory = GraphMemory(fabric.device)
        several = fabric.world_size > 1
        self._sums = GradientSums(model, fabric.world_size) if several or self._batches > 1 else None
        self._learn = self._captured(self._gradients if self._sums else self._whole, "the training step")
        self._finish = self._captured(self._use_sums, "the optimiser's step")

    def __call__(self, images: Tensor, targets: Tensors, updates: bool) -> Tensor:
        """See TrainingStep."""
        if self.average is not None and updates:
            self.average.count()
        work = self._learn if len(images) == self._full else self._in_the_room_left
        loss = self._or_uncompiled(len(images), lambda: work(images, *targets)[0])
        if self._sums is not None and updates:
            self._sums.exchange()
            self._finish()
        return loss

    @torch.no_grad()
    def before_validation(self) -> None:
        """Give all ranks the first one's statistics of BatchNorm: gradients are all that is exchanged in a step."""
        if self.fabric.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    def _captured(self, run: Callable[..., Tensors], what: str) -> CapturedFunction:
        return CapturedFunction(run, self.fabric.device, what, self._note, self.memory)

    def _in_the_room_left(self, images: Tensor, *targets: Tensor) -> Tensors:
        """Learn eagerly as a rule, beside the graphs and their memory, or without them where there is no room."""
        try:
            return self._learn.after(_SELDOM, images, *targets)
        except torch.OutOfMemoryError:
            if not self._learn.recorded:
                raise
        self._note("a short batch does not fit beside the captured step: the step is not captured any more")
        self._learn.give_up()
        self.optimizer.zero_grad(set_to_none=True)
        return self._learn.run(images, *targets)

    def _whole(self, images: Tensor, *targets: Tensor) -> Tensors:
        """Take a whole step: one batch on one GPU."""
        loss = self._backward(images, targets)
        self._update()
        return (loss,)

    def _gradients(self, images: Tensor, *targets: Tensor) -> Tensors:
        """Add a batch's gradients to the sums."""
        assert self._sums is not None
        loss = self._backward(images, targets)
        self._sums.add()
        return (loss,)

    def _use_sums(self) -> Tensors:
        assert self._sums is not None
        with self._sums.as_gradients():
            self._update()
        return ()

    def _backward(self, images: Tensor, targets: Tensors) -> Tensor:
        """Leave a batch's gradients at the weights and return its loss; DDP takes no part in it."""
        precision = self.fabric._precision
        inputs = precision.convert_input((to_input(images), *self.model.taught(targets)))
        with precision.forward_context():
            outputs = self.model(*inputs)
        outputs = precision.convert_output(outputs)
        loss = self.model.loss(outputs, targets) if len(images) else _no_loss(outputs)
        (loss / self._batches).backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class GradientSums:
    """Gradients of several batches, added up in one piece of memory, so that ranks exchange them in one call.

    Args:
        model: whose weights they are of.
        ranks: how many exchange them.
    """

    def __init__(self, model: TaskModel, ranks: int) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._ranks = ranks
        self._flat = torch.zeros(sum(map(torch.Tensor.numel, self._weights)), device=self._weights[0].device)
        # Each part is laid out as its weight is, channels last perhaps: so all are added by a few kernels.
        parts = torch.split(self._flat, [weight.numel() for weight in self._weights])
        self._parts = [
            part.as_strided(weight.size(), weight.stride(), part.storage_offset())
            for part, weight in zip(parts, self._weights, strict=True)
        ]
        self._learned: list[int] = []

    def add(self) -> None:
        """Add the weights' gradients, and take them away there."""
        self._learned = [number for number, weight in enumerate(self._weights) if weight.grad is not None]
        gradients: list[Any] = [self._weights[number].grad for number in self._learned]
        torch._foreach_add_([self._parts[number] for number in self._learned], gradients)
        for weight in self._weights:
            weight.grad = None

    def exchange(self) -> None:
        """Make them the means over all ranks."""
        if self._ranks > 1:
            dist.all_reduce(self._flat, dist.ReduceOp.AVG)

    @contextmanager
    def as_gradients(self) -> Iterator[None]:
        """Hand them to the weights for the length of a `with`, and begin anew."""
        for number in self._learned:
            self._weights[number].grad = self._parts[number]
        yield
        for weight in self._weights:
            weight.grad = None
        self._flat.zero_()


def make_step(fabric: Fabric, spec: Spec, model: TaskModel, average: WeightAverage | None, note: Say) -> TrainingStep:
    """Return the step that suits a run; `note` gets one sentence where a GPU's is not captured though it was to be.

    Args:
        fabric: launched.
        spec: the resolved spec.
        model: the network, on its device.
        average: follows the weights, where there is one.
        note: prints one line.
    """
    if fabric.device.type != "cuda" or spec.train.compile is False:
        return TrainingStep(fabric, spec, model, average, note)
    reason = _why_not(fabric)
    if reason is None:
        return CapturedStep(fabric, spec, model, average, note)
    note(f"the training step is not captured as a CUDA graph: {reason}")
    return TrainingStep(fabric, spec, model, average, note)


def _why_not(fabric: Fabric) -> str | None:
    """Return why a step cannot be captured, None where it can."""
    if getattr(fabric._precision, "scaler", None) is not None:
        return "train.precision=fp16 decides on the CPU whether a step counts; bf16 need not"
    strategy = fabric.strategy
    if not isinstance(strategy, (SingleDeviceStrategy, DDPStrategy)):
        return f"{type(strategy).__name__} exchanges gradients in its own way; distributed_strategy=ddp is captured"
    return None


def _no_loss(outputs: Any) -> Tensor:
    """Return 0 for an empty batch, of a graph that reaches every weight: ranks exchange the gradients of all."""
    tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return torch.stack([tensor.sum() for tensor in tensors]).sum() * 0
