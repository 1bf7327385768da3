"""Reading with torch: the reader of a .safetensors or .pth file, and the one way through a whole loader for scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.crypt import Key
from inkmill.data.loaders import Loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.errors import ConfigError
from inkmill.kernels.graph import CapturedFunction, GraphMemory
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import load_model
from inkmill.runtime.reader import BaseReader, Predicted, refuse_nan
from inkmill.tasks.base import Decoder, Outputs, Task, Truth
from inkmill.tasks.model import TaskModel, Tensors, to_input
from inkmill.timings import Timings

Autocast = Callable[[], AbstractContextManager[object]]


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or how many threads compute on the CPU."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"the CPU, {torch.get_num_threads()} threads"


def best_device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class TorchReader(BaseReader):
    """Reads with PyTorch, in fp32.

    Args:
        model: the network, in evaluation mode.
        header: its header.
        decoding: options of the task's decoder, as for `inkmill.load`.
    """

    def __init__(self, model: TaskModel, header: ModelHeader, **decoding: Any) -> None:
        super().__init__(header)
        self.model = model
        self.device = next(model.parameters()).device
        self.runs_on = f"torch {torch.__version__} on {device_name(self.device)}"
        self.use(self.task.decoder(**decoding))

    @classmethod
    def load(cls, path: Path, device: str | None = None, key: Key | None = None, **decoding: Any) -> TorchReader:
        """Return the reader of a file, on the GPU where there is one.

        Raises:
            ConfigError: `device` is no device to read on, or a GPU where there is none.
            ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        """
        if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ConfigError(f"device={device}: expected cpu, cuda or cuda:NUMBER")
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={device}, and torch finds no GPU here; leave it out to read on the CPU")
        return cls(*load_model(path, device or best_device(), key), **decoding)

    @torch.inference_mode()
    def outputs(self, images: NDArray[np.uint8], names: Sequence[str] | None = None) -> Outputs:
        """See BaseReader.outputs; a torch file gives every output of its task."""
        names = tuple(self.decoder.needs if names is None else names)
        found = self.model.outputs(to_input(torch.from_numpy(images).to(self.device)), names)
        return {name: tensor.cpu().numpy() for name, tensor in found.items()}

    def read_batches(self, loader: Iterable[Batch], timings: Timings | None = None) -> Iterator[Predicted]:
        """See BaseReader; one batch is always in flight."""
        if not isinstance(loader, Loader):
            yield from super().read_batches(loader, timings)
            return
        on_device = DeviceLoader(loader, self.device)
        yield from predict_batches(self.model, self.task, self.decoder, on_device, timings=timings)


class AsyncHostCopy:
    """Copies of tensors in the CPU's memory; taking them does not wait for what was queued on the GPU after them.

    Args:
        results: on one device.
    """

    def __init__(self, *results: Tensor) -> None:
        self._results = [result.to("cpu", non_blocking=True) for result in results]
        on_gpu = results[0].device.type == "cuda"
        self._there = torch.cuda.current_stream(results[0].device).record_event() if on_gpu else None

    def take(self) -> list[NDArray[Any]]:
        """Return them as arrays."""
        if self._there is not None:
            self._there.synchronize()
        return [result.numpy() for result in self._results]


class _InFlight(NamedTuple):
    """A batch whose outputs are on their way from the device."""

    batch: Batch
    truths: list[Truth] | None
    names: tuple[str, ...]
    copy: AsyncHostCopy


class ForwardPass:
    """From images and targets to the outputs that a decoder needs; on a GPU captured once a shape and then replayed.

    Args:
        model: the network, on its device.
        names: the outputs.
        with_loss: add the loss of training.
        autocast: the precision's context.
        note: gets one sentence where it cannot be captured.
        memory: of graphs that run between its calls.
        captured: capture it on a GPU.
    """

    def __init__(
        self,
        model: TaskModel,
        names: tuple[str, ...],
        with_loss: bool = False,
        autocast: Autocast = nullcontext,
        note: Callable[[str], Any] = lambda line: None,
        memory: GraphMemory | None = None,
        captured: bool = True,
    ) -> None:
        self.names, self._model, self._with_loss, self._autocast = names, model, with_loss, autocast
        device = next(model.parameters()).device
        self._run: Callable[..., Sequence[Tensor]] = self._forward
        if captured and device.type == "cuda":
            self._run = CapturedFunction(self._forward, device, "reading", note, memory, eager_calls=1)

    def __call__(self, images: Tensor, targets: Tensors = ()) -> Sequence[Tensor]:
        """Return the outputs in the order of `names`, then the loss, of uint8 BHWC images; nothing waits for a GPU."""
        return self._run(images, *targets)

    def _forward(self, images: Tensor, *targets: Tensor) -> Tensors:
        with self._autocast():
            if not self._with_loss:
                found = self._model.outputs(to_input(images), self.names)
                return tuple(found[name] for name in self.names)
            found, loss = self._model.outputs_and_loss(to_input(images), targets, self.names)
        return (*(found[name] for name in self.names), loss.float())


@torch.inference_mode()
def predict_batches(
    model: TaskModel,
    task: Task,
    decoder: Decoder,
    loader: Iterable[Batch],
    *,
    with_loss: bool = False,
    forward: ForwardPass | None = None,
    timings: Timings | None = None,
) -> Iterator[Predicted]:
    """Yield every batch but empty ones of a loader of device batches with its predictions: validation and `evaluate`.

    One batch is always in flight: its outputs are taken only after the next one was queued, so the GPU does not wait
    for the host.

    Args:
        model: in evaluation mode.
        task: what it reads.
        decoder: chooses the predictions.
        loader: batches on the model's device.
        with_loss: add truths and the loss of training.
        forward: of earlier calls with the same model and decoder, so that nothing is captured again.
        timings: gets the seconds; what the consumer does with a batch counts as the metric's.

    Raises:
        ModelFileError: without loss, outputs that are no numbers; with it they are the loss's to report.
    """
    timings = timings or Timings()
    forward = forward or ForwardPass(model, tuple(decoder.needs), with_loss)
    timings.start()
    waiting: _InFlight | None = None
    for batch in loader:
        timings.lap("loader")
        if not len(batch):  # all of it bad, or none left for this rank: nothing to read, and a mean of nothing is NaN
            continue
        # 1. Queue this batch.
        following = _queue(model, task, forward, batch, with_loss, timings)
        timings.lap("forward")
        # 2. Take the one before it, which the device has done by now.
        if waiting is not None:
            yield _taken(waiting, decoder, with_loss, timings)
            timings.lap("metric")
        waiting = following
    timings.lap("loader")
    # 3. Nothing follows the last one.
    if waiting is not None:
        yield _taken(waiting, decoder, with_loss, timings)
        timings.lap("metric")


def _queue(
    model: TaskModel, task: Task, forward: ForwardPass, batch: Batch, with_loss: bool, timings: Timings
) -> _InFlight:
    if not with_loss:
        return _InFlight(batch, None, forward.names, AsyncHostCopy(*forward(batch.images)))
    truths = task.truths(batch.targets)
    targets = model.to_targets(task.encode(truths), batch, batch.images.permute(0, 3, 1, 2))
    timings.lap("decode")
    return _InFlight(batch, truths, forward.names, AsyncHostCopy(*forward(batch.images, targets)))


def _taken(waiting: _InFlight, decoder: Decoder, with_loss: bool, timings: Timings) -> Predicted:
    arrays = waiting.copy.take()
    timings.lap("forward")
    outputs = dict(zip(waiting.names, arrays, strict=False))  # the loss, where there is one, comes last
    if not with_loss:
        refuse_nan(outputs)
    predictions = decoder.decode(outputs, waiting.batch.sizes)
    timings.lap("decode")
    loss = float(arrays[-1]) if with_loss else float("nan")
    return Predicted(waiting.batch, predictions, waiting.truths, loss)
