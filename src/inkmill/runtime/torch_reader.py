"""Reading with torch: the reader of a .safetensors or .pth file, and the reading of whole loaders for scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.crypt import Key
from inkmill.data.loaders import Loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.errors import ConfigError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import load_reader
from inkmill.runtime.reader import BaseReader, refuse_nan
from inkmill.tasks.recognition.codecs import Codec
from inkmill.tasks.recognition.model import Recognizer
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.timings import Timings
from inkmill.training.host_copy import AsyncHostCopy

Autocast = Callable[[], AbstractContextManager[object]]


def to_input(images: Tensor) -> Tensor:
    """Return uint8 BHWC images as float32 BCHW in [-1, 1]; the layout in memory stays channels-last."""
    return images.permute(0, 3, 1, 2).sub(127.5).div_(127.5)  # from bytes to numbers in the first of two passes


def on_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """Return an array's copy on a device; nothing waits for it."""
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    pinned = torch.empty(array.shape, dtype=torch.int64, pin_memory=True)
    np.copyto(pinned.numpy(), array)  # torch's own copy would wake its CPU threads
    return pinned.to(device, non_blocking=True)


def in_words(device: torch.device) -> str:
    """Return the name of a GPU, or how many threads compute on the CPU."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"the CPU, {torch.get_num_threads()} threads"


class TorchReader(BaseReader):
    """Reads with PyTorch, in fp32.

    Args:
        model: the recogniser, in evaluation mode.
        card: its card.
        options: see BaseReader.
    """

    def __init__(self, model: Recognizer, card: ModelHeader, **options: Any) -> None:
        super().__init__(card, **options)
        self.model = model
        self.device = next(model.parameters()).device
        self.runs_on = f"torch {torch.__version__} on {in_words(self.device)}"

    @classmethod
    def load(cls, path: Path, device: str | None = None, key: Key | None = None, **options: Any) -> TorchReader:
        """Return the reader of a file, on the GPU where there is one.

        Raises:
            ConfigError: `device` is no device to read on, or a GPU where there is none.
            ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        """
        if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ConfigError(f"device={device}: expected cpu, cuda or cuda:NUMBER")
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={device}, and torch finds no GPU here; leave it out to read on the CPU")
        return cls(*load_reader(path, device or best_device(), key), **options)

    @torch.inference_mode()
    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return class ids and their probabilities, both (B, T), of resized uint8 BHWC images."""
        ids, probabilities = self.model.read(to_input(torch.from_numpy(images).to(self.device)))
        return ids.cpu().numpy(), probabilities.float().cpu().numpy()

    @torch.inference_mode()
    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probability of every class at every step, (B, S, K), of resized uint8 BHWC images."""
        scores = self.model(to_input(torch.from_numpy(images).to(self.device)))
        found: NDArray[np.float32] = scores.float().softmax(dim=2).cpu().numpy()
        return found

    def read_batches(
        self, loader: Iterable[Batch], timings: Timings | None = None
    ) -> Iterator[tuple[Batch, list[str], NDArray[np.float32]]]:
        """See BaseReader; on a GPU one batch is always in flight, as long as the best classes are enough."""
        if self.decoder.free and isinstance(loader, Loader):
            yield from read_loader(self.model, DeviceLoader(loader, self.device), self.codec, timings=timings)
        else:
            yield from super().read_batches(loader, timings)


def best_device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def read_loader(
    model: Recognizer,
    loader: Iterable[Batch],
    codec: Codec,
    autocast: Autocast = nullcontext,
    timings: Timings | None = None,
) -> Iterator[tuple[Batch, list[str], NDArray[np.float32]]]:
    """Yield every batch but empty ones of a loader of device batches with its texts and confidences.

    One batch is always in flight: its ids are taken only after the next one was queued, so the GPU does not wait for
    the host. `phases` gets the seconds; what the consumer does with a batch counts as the metric's.
    """
    timings = timings or Timings()
    timings.start()
    waiting: tuple[Batch, AsyncHostCopy] | None = None
    for batch in loader:
        timings.lap("loader")
        if not len(batch):
            continue
        with autocast():
            ids, probabilities = model.read(to_input(batch.images))
        following = batch, AsyncHostCopy(ids, probabilities.float())
        timings.lap("forward")
        if waiting is not None:
            yield _decoded(*waiting, codec, timings)
            timings.lap("metric")
        waiting = following
    timings.lap("loader")
    if waiting is not None:
        yield _decoded(*waiting, codec, timings)
        timings.lap("metric")


@torch.inference_mode()
def read_with_loss(
    model: Recognizer,
    loader: Iterable[Batch],
    codec: Codec,
    normaliser: Normaliser,
    autocast: Autocast = nullcontext,
    timings: Timings | None = None,
) -> Iterator[tuple[Batch, list[str], list[str], NDArray[np.float32], float]]:
    """Yield every batch with its normalised truths, texts, confidences, and the mean loss of its images.

    The loss is the one of training (the attention head is told the true characters), the texts are read without help.
    One batch is in flight, and `phases` gets the seconds, as in `read_loader`.
    """
    timings = timings or Timings()
    timings.start()
    waiting: tuple[Batch, list[str], AsyncHostCopy] | None = None
    for batch in loader:
        timings.lap("loader")
        if not len(batch):  # all of it bad, or none left for this rank: nothing to read, and a mean of nothing is NaN
            continue
        truths = normaliser.apply_all(batch.texts)
        ids, lengths = codec.encode(truths)
        timings.lap("decode")
        targets = on_device(ids, batch.images.device)
        with autocast():
            features = model.features(to_input(batch.images))
            told = model.head(features, targets)
            loss = model.loss(told, (targets, torch.from_numpy(lengths)))
            found, probabilities = model.head.read(model.head(features) if model.head.taught_by_targets else told)
        following = batch, truths, AsyncHostCopy(found, probabilities.float(), loss.float())
        timings.lap("forward")
        if waiting is not None:
            yield _decoded_with_loss(*waiting, codec, timings)
            timings.lap("metric")
        waiting = following
    timings.lap("loader")
    if waiting is not None:
        yield _decoded_with_loss(*waiting, codec, timings)
        timings.lap("metric")


def _decoded(
    batch: Batch, fetched: AsyncHostCopy, codec: Codec, timings: Timings
) -> tuple[Batch, list[str], NDArray[np.float32]]:
    ids, probabilities = fetched.take()
    timings.lap("forward")
    refuse_nan(probabilities)
    texts, confidences = codec.decode(ids, probabilities)
    timings.lap("decode")
    return batch, texts, confidences


def _decoded_with_loss(
    batch: Batch, truths: list[str], fetched: AsyncHostCopy, codec: Codec, timings: Timings
) -> tuple[Batch, list[str], list[str], NDArray[np.float32], float]:
    ids, probabilities, loss = fetched.take()
    timings.lap("forward")
    texts, confidences = codec.decode(ids, probabilities)
    timings.lap("decode")
    return batch, truths, texts, confidences, float(loss)
