"""The reader: images in, predictions out, the same steps as in training.

What differs between torch and ONNX Runtime is how a network is run, `outputs`; resizing, batching, decoding and what
is an image are here, once. What a prediction is, the model file's task knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inkmill import weights
from inkmill.crypt import find_key
from inkmill.data.pipeline.decode import decode, from_array, turn
from inkmill.data.sources.base import read_image
from inkmill.data.types import Batch
from inkmill.errors import DataError, ImageError, MissingExtraError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.vertical import is_tall, surer, turned
from inkmill.tasks.base import Decoder, Outputs, Prediction, Truth
from inkmill.timings import Timings

Picture = str | Path | bytes | NDArray[np.uint8] | Any

MAX_BATCH = 32
BATCH_PIXELS = 1 << 21
"""Pixels of a batch, so that the memory of a reader is bounded whatever its input size: 32 of up to 64x1024."""

_ORIENTATION = 0x0112  # EXIF's tag
_PIL_AS_ARRAYS = ("L", "RGB", "RGBA", "I;16", "I", "F")


class Predicted(NamedTuple):
    """One batch of a loader with its predictions.

    Attributes:
        batch: at least one image.
        predictions: one for each, in order, with empty keys.
        truths: what they should be; None where nobody asked.
        loss: the mean over the images, as in training; NaN where nobody asked.
    """

    batch: Batch
    predictions: Sequence[Prediction]
    truths: list[Truth] | None = None
    loss: float = float("nan")


class BaseReader(ABC):
    """Reads images with one model file; several threads may use one reader.

    Args:
        header: what the model file says about itself.

    Attributes:
        header: the same.
        task: what is read.
        resize: how images meet the network's input.
        decoder: chooses the predictions; see `use`.
        both_ways: tall pictures of text are read turned to either side too, and the surest answer counts; see
            `inkmill.runtime.vertical`.
        runs_on: where the network runs, in a few words.
    """

    runs_on = "the CPU"
    both_ways = True

    def __init__(self, header: ModelHeader) -> None:
        self.header = header
        self.task = header.open_task()
        self.resize = self.task.resize
        self.decoder: Decoder = self.task.plain_decoder()

    def use(self, decoder: Decoder) -> None:
        """Have predictions chosen by another decoder of this task.

        Raises:
            ConfigError: the model file does not give what it needs.
        """
        self.decoder = decoder

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the outputs that the model file gives (see `Task.outputs`); a torch file gives all."""
        return tuple(self.task.outputs)

    @abstractmethod
    def outputs(self, images: NDArray[np.uint8], names: Sequence[str] | None = None) -> Outputs:
        """Return outputs of the network for resized uint8 BHWC images.

        Args:
            images: of one width.
            names: which (see `Task.outputs`); by default those that the decoder needs.

        Raises:
            ModelFileError: the model file cannot be run, or is not the one its header describes.
        """

    def predict(
        self, images: NDArray[np.uint8], timings: Timings | None = None, sizes: NDArray[np.int32] | None = None
    ) -> Sequence[Prediction]:
        """Return the predictions for resized uint8 BHWC images of one width, with empty keys.

        `sizes` is what `Decoder.decode` takes.
        """
        timings = timings or Timings()
        outputs = self.outputs(images)
        timings.lap("forward")
        refuse_nan(outputs)
        predictions = self.decoder.decode(outputs, sizes)
        timings.lap("decode")
        return predictions

    def read_batches(self, loader: Iterable[Batch], timings: Timings | None = None) -> Iterator[Predicted]:
        """Yield every batch of a loader, but empty ones, with its predictions.

        `timings` gets the seconds; what the consumer does with a batch counts as the metric's.
        """
        timings = timings or Timings()
        timings.start()
        for batch in loader:
            timings.lap("loader")
            if len(batch):
                yield Predicted(batch, self.predict(batch.images, timings, batch.sizes))
                timings.lap("metric")
        timings.lap("loader")

    def described(self) -> str:
        """Return in one line where the network runs and how predictions are chosen."""
        return "; ".join((self.runs_on, *self.decoder.notes))

    @property
    def batch_size(self) -> int:
        """How many images are read at once where nothing else is asked for: fewer of large ones."""
        return max(1, min(MAX_BATCH, BATCH_PIXELS // self.resize.most_pixels))

    def read(self, images: Picture | Iterable[Picture], batch_size: int | None = None) -> list[Any]:
        """Read images, in order; those of one input width are read together.

        Args:
            images: one image or several: paths, encoded bytes, uint8 arrays (HW gray, HWC RGB or RGBA), PIL images.
            batch_size: how many are read at once, by default `batch_size`; the result does not depend on it.

        Returns:
            One prediction of the model's task for each image: a `Reading` where it reads text.

        Raises:
            ImageError: an image cannot be decoded; names it.
            ModelFileError: the model file cannot be run.
        """
        batch_size = batch_size or self.batch_size
        several: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        keys = [str(image) if isinstance(image, (str, Path)) else str(n) for n, image in enumerate(several)]
        waiting: dict[tuple[int, int], list[tuple[int, NDArray[np.uint8], tuple[int, int]]]] = defaultdict(list)
        found: list[Prediction | None] = [None] * len(several)
        for position, image in enumerate(several):
            upright = picture_pixels(image, self.resize.channels, keys[position])
            for pixels in self._ways(upright):
                resized, _ = self.resize.apply(pixels)
                shape = resized.shape[0], resized.shape[1]
                same_shape = waiting[shape]
                same_shape.append((position, resized, (pixels.shape[1], pixels.shape[0])))
                if len(same_shape) == batch_size:
                    self._read_batch(waiting.pop(shape), keys, found)
        for rest in waiting.values():
            self._read_batch(rest, keys, found)
        return found

    def _ways(self, image: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return a picture as it is and, where it is to be read turned as well, those."""
        both = self.both_ways and self.task.reads_on_its_side and is_tall(image.shape[1], image.shape[0])
        return [image, *turned(image)] if both else [image]

    def _read_batch(
        self,
        batch: Sequence[tuple[int, NDArray[np.uint8], tuple[int, int]]],
        keys: list[str],
        found: list[Prediction | None],
    ) -> None:
        positions, images, sizes = zip(*batch, strict=True)
        outputs = self.outputs(np.stack(images))
        refuse_nan(outputs)
        predictions = self.decoder.decode(outputs, np.array(sizes, np.int32))
        for position, prediction in zip(positions, predictions, strict=True):
            found[position] = surer(self.task, found[position], with_key(prediction, keys[position]))


def with_key(prediction: Prediction, key: str) -> Prediction:
    """Return a prediction that says which image it is of."""
    return replace(prediction, key=key)  # type: ignore[type-var]


def load_reader(
    path: str | Path | None = None, device: str | None = None, encryption_key: str | None = None
) -> BaseReader:
    """Return the reader of a model file, whatever its task.

    Args:
        path: a .safetensors or .pth file of `inkmill train`, which needs torch, or a .onnx file of `inkmill export`,
            which does not; None for the text reader that the package carries.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.

    Raises:
        InkmillError: no path, and this installation carries no reader.
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        MissingExtraError: a torch file, and torch is not installed.
        ConfigError: no such device.
    """
    path = weights.path("reader") if path is None else Path(path)
    if path.suffix == ".onnx":
        from inkmill.runtime.onnx import OnnxReader

        return OnnxReader(path, device, encryption_key=encryption_key)
    if path.suffix not in (".safetensors", ".pth"):
        raise ModelFileError(f"{path}: expected a .safetensors, .pth or .onnx file")
    try:
        from inkmill.runtime.torch_reader import TorchReader
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "train", f"reading {path.suffix} files") from error
    return TorchReader.load(path, device, find_key(encryption_key))


def refuse_nan(outputs: Outputs) -> None:
    """Raise ModelFileError for outputs that are no numbers: decoded, they would look like an empty answer."""
    for array in outputs.values():
        if array.dtype.kind == "f" and not np.isfinite(array.sum(dtype=np.float32)):
            raise ModelFileError("the model gives outputs that are no numbers: its weights are damaged")


def _is_one(images: object) -> bool:
    known = (str, Path, bytes, bytearray, memoryview, np.ndarray)
    return isinstance(images, known) or not isinstance(images, Iterable)


def picture_pixels(image: Picture, channels: Literal[1, 3], key: str) -> NDArray[np.uint8]:
    """Return uint8 (H, W, channels) of a path, encoded bytes, an array or a PIL image; `key` names it in errors."""
    if isinstance(image, (str, Path)):
        try:
            image = read_image(image, key)
        except OSError as error:
            raise DataError(f"{key}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise DataError(f"{key!r}: no name of a file ({error})") from error
    if isinstance(image, (bytearray, memoryview)):
        image = bytes(image)
    if isinstance(image, bytes):
        try:
            return decode(image, channels)
        except ImageError as error:
            raise ImageError(f"{key}: {error}") from error
    try:
        return from_array(_as_array(image), channels)
    except (ImageError, ValueError, OSError) as error:  # the last two are PIL's, of a file that is cut short
        raise ImageError(f"image {key}: {error}") from error


def _as_array(image: Any) -> NDArray[Any]:
    """Return an array of an array, or of a PIL image as a viewer shows it, as its file would be read.

    A PIL image whose numbers are no gray, RGB or RGBA (palette, CMYK, bilevel and others) is converted.
    """
    mode = getattr(image, "mode", None)
    if isinstance(image, np.ndarray) or not isinstance(mode, str):
        return np.asarray(image)
    array = np.asarray(image if mode in _PIL_AS_ARRAYS else image.convert("RGBA"))
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)  # asked afterwards: PIL turns some kinds on loading them
    except Exception:  # a damaged block counts as upright, as it does in a file
        orientation = 1
    return turn(array, orientation) if orientation in range(2, 9) else array
