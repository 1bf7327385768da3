"""Reading with torch: the Reader of a .safetensors or .pth file, and the reading of whole loaders for scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inkmill.data.sample import Batch
from inkmill.errors import ConfigError
from inkmill.models.file import load_reader
from inkmill.models.recognizer import Recognizer
from inkmill.runtime.card import ReaderCard
from inkmill.runtime.reader import Reader
from inkmill.text.codecs import Codec
from inkmill.text.normalise import Normaliser

Autocast = Callable[[], AbstractContextManager[object]]


def to_input(images: Tensor) -> Tensor:
    """Return uint8 BHWC images as float32 BCHW in [-1, 1]; the layout in memory stays channels-last."""
    return images.permute(0, 3, 1, 2).to(torch.float32).sub_(127.5).div_(127.5)


def on_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """Return an array's copy on a device; nothing waits for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class TorchReader(Reader):
    """Reads with PyTorch, in fp32.

    Args:
        model: the recogniser, in evaluation mode.
        card: its card.
    """

    def __init__(self, model: Recognizer, card: ReaderCard) -> None:
        super().__init__(card)
        self.model = model
        self.device = next(model.parameters()).device

    @classmethod
    def load(cls, path: Path, device: str | None = None) -> TorchReader:
        """Return the reader of a file, on the GPU where there is one.

        Raises:
            ConfigError: `device` is a GPU, and there is none.
            ModelFileError: missing, damaged, or not written by inkmill.
        """
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={device}, and torch finds no GPU here; leave it out to read on the CPU")
        return cls(*load_reader(path, device or best_device()))

    @torch.inference_mode()
    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return class ids and their probabilities, both (B, T), of fitted uint8 BHWC images."""
        ids, probabilities = self.model.read(to_input(torch.from_numpy(images).to(self.device)))
        return ids.cpu().numpy(), probabilities.float().cpu().numpy()


def best_device() -> str:
    """Return "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def read_loader(
    model: Recognizer,
    loader: Iterable[Batch],
    codec: Codec,
    autocast: Autocast = nullcontext,
) -> Iterator[tuple[Batch, list[str], NDArray[np.float32]]]:
    """Yield every batch of a loader of device batches with its texts and confidences.

    One batch is always in flight: its ids are fetched only after the next one was queued, so the GPU does not wait
    for the host.
    """
    waiting: tuple[Batch, Tensor, Tensor] | None = None
    for batch in loader:
        with autocast():
            ids, probabilities = model.read(to_input(batch.images))
        if waiting is not None:
            yield _decoded(*waiting, codec)
        waiting = (batch, ids, probabilities)
    if waiting is not None:
        yield _decoded(*waiting, codec)


@torch.inference_mode()
def read_with_loss(
    model: Recognizer, loader: Iterable[Batch], codec: Codec, normaliser: Normaliser, autocast: Autocast = nullcontext
) -> Iterator[tuple[Batch, list[str], list[str], NDArray[np.float32], float]]:
    """Yield every batch with its normalised truths, texts, confidences, and the mean loss of its images.

    The loss is the one of training (the attention head is told the true characters), the texts are read without help.
    """
    for batch in loader:
        if not len(batch):  # all of it bad, or none left for this rank: nothing to read, and a mean of nothing is NaN
            continue
        truths = normaliser.apply_all(batch.texts)
        ids, lengths = codec.encode(truths)
        targets = on_device(ids, batch.images.device)
        with autocast():
            features = model.features(to_input(batch.images))
            told = model.head(features, targets)
            loss = model.loss(told, targets, torch.from_numpy(lengths))
            read = model.head.read(model.head(features) if model.head.taught_by_targets else told)
        _, texts, confidences = _decoded(batch, *read, codec)
        yield batch, truths, texts, confidences, float(loss)


def _decoded(
    batch: Batch, ids: Tensor, probabilities: Tensor, codec: Codec
) -> tuple[Batch, list[str], NDArray[np.float32]]:
    texts, confidences = codec.decode(ids.cpu().numpy(), probabilities.float().cpu().numpy())
    return batch, texts, confidences
