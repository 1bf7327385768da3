"""The reader: images in, text and confidence out, the same steps as in training.

What differs between torch and ONNX Runtime is how classes are found, `classify` and `probabilities`; decoding, fitting,
batching and the way from classes to text are here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import decode, turn
from inkmill.data.types import Batch
from inkmill.errors import ConfigError, DataError, ImageError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.tasks.base import input_resize
from inkmill.tasks.recognition.decoder import Reading, TextDecoder
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.timings import Timings

__all__ = ["BaseReader", "Picture", "Reading", "input_resize"]

Picture = str | Path | bytes | NDArray[np.uint8] | Any

MAX_BATCH = 32
BATCH_PIXELS = 1 << 21
"""Pixels of a batch, so that the memory of a reader is bounded whatever its input size: 32 of up to 64x1024."""

_ORIENTATION = 0x0112  # EXIF's tag
_PIL_AS_ARRAYS = ("L", "RGB", "RGBA", "I;16", "I", "F")


class BaseReader(ABC):
    """Reads images of text; several threads may use one reader.

    Args:
        card: what the model file says about itself.
        beam_width: of CTC's prefix beam search; 1 takes the best class of each step.
        words: the only texts that may be read (a lexicon); None leaves them free.

    Attributes:
        card: the same.
        runs_on: where the model runs, in a few words.

    Raises:
        ConfigError: a beam for another head than CTC, or no word that the model could write.
    """

    runs_on = "the CPU"

    def __init__(self, card: ModelHeader, *, beam_width: int = 1, words: Iterable[str] | None = None) -> None:
        self.card = card
        self.resize = input_resize(card.model)
        self.codec = card.codec()
        self.decoder = TextDecoder(self.codec, beam_width, words, Normaliser(card.normalise))

    @abstractmethod
    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the best class of each step and its probability, both (B, S), of resized uint8 BHWC images."""

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probability of every class at every step, (B, S, K), of resized uint8 BHWC images.

        Raises:
            ConfigError: the model file gives only the best class.
        """
        raise ConfigError("this reader gives only the best class of each step, and a beam or a lexicon needs all")

    def texts(self, images: NDArray[np.uint8], timings: Timings | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Return texts and confidences, float32 (B,), of resized uint8 BHWC images of one width."""
        timings = timings or Timings()
        if self.decoder.wants_all:
            probabilities = self.probabilities(images)
            timings.lap("forward")
            refuse_nan(probabilities)
            texts, confidences = self.decoder.all(probabilities)
        else:
            best = self.classify(images)
            timings.lap("forward")
            refuse_nan(best[1])
            texts, confidences = self.decoder.best(*best)
        timings.lap("decode")
        return texts, confidences

    def read_batches(
        self, loader: Iterable[Batch], timings: Timings | None = None
    ) -> Iterator[tuple[Batch, list[str], NDArray[np.float32]]]:
        """Yield every batch of a loader, but empty ones, with its texts and confidences.

        `phases` gets the seconds; what the consumer does with a batch counts as the metric's.
        """
        timings = timings or Timings()
        timings.start()
        for batch in loader:
            timings.lap("loader")
            if len(batch):
                yield batch, *self.texts(batch.images, timings)
                timings.lap("metric")
        timings.lap("loader")

    def described(self) -> str:
        """Return in one line where the model runs and how texts are chosen."""
        return "; ".join((self.runs_on, *self.decoder.notes))

    @property
    def batch_size(self) -> int:
        """How many images are read at once where nothing else is asked for: fewer of large ones."""
        return max(1, min(MAX_BATCH, BATCH_PIXELS // (self.resize.height * self.resize.width)))

    def read(self, images: Picture | Iterable[Picture], batch_size: int | None = None) -> list[Reading]:
        """Read images, in order; those of one input width are read together.

        Args:
            images: one image or several: paths, encoded bytes, uint8 arrays (HW gray, HWC RGB or RGBA), PIL images.
            batch_size: how many are read at once, by default `batch_size`; the result does not depend on it.

        Raises:
            ImageError: an image cannot be decoded; names it.
            ModelFileError: the model file cannot be run.
        """
        batch_size = batch_size or self.batch_size
        several: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        resized: dict[int, list[tuple[int, NDArray[np.uint8]]]] = defaultdict(list)
        readings: list[Reading | None] = [None] * len(several)
        keys = [str(image) if isinstance(image, (str, Path)) else str(n) for n, image in enumerate(several)]
        for position, image in enumerate(several):
            picture, _ = self.resize.apply(_pixels(image, self.resize.channels, keys[position]))
            same_width = resized[picture.shape[1]]
            same_width.append((position, picture))
            if len(same_width) == batch_size:
                self._read_batch(resized.pop(picture.shape[1]), keys, readings)
        for rest in resized.values():
            self._read_batch(rest, keys, readings)
        return [reading for reading in readings if reading is not None]

    def _read_batch(
        self, batch: Sequence[tuple[int, NDArray[np.uint8]]], keys: list[str], readings: list[Reading | None]
    ) -> None:
        texts, confidences = self.texts(np.stack([picture for _, picture in batch]))
        for (position, _), text, confidence in zip(batch, texts, confidences, strict=True):
            readings[position] = Reading(text, float(confidence), keys[position])


def refuse_nan(probabilities: NDArray[np.floating[Any]]) -> None:
    """Raise ModelFileError for probabilities that are no numbers: their best class is the blank, and the text empty."""
    if not np.isfinite(probabilities.sum(dtype=np.float32)):
        raise ModelFileError("the model gives probabilities that are no numbers: its weights are damaged")


def _is_one(images: object) -> bool:
    known = (str, Path, bytes, bytearray, memoryview, np.ndarray)
    return isinstance(images, known) or not isinstance(images, Iterable)


def _pixels(image: Picture, channels: Literal[1, 3], key: str) -> NDArray[np.uint8]:
    if isinstance(image, (str, Path)):
        try:
            image = Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"{key}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise DataError(f"{key!r}: no name of a file ({error})") from error
    if isinstance(image, (bytearray, memoryview)):
        image = bytes(image)
    if not isinstance(image, bytes):
        image = _encoded(_as_array(image, key), key)
    try:
        return decode(image, channels)
    except ImageError as error:
        raise ImageError(f"{key}: {error}") from error


def _as_array(image: Any, key: str) -> NDArray[Any]:
    """Return an array of an array, or of a PIL image as a viewer shows it, as its file would be read.

    A PIL image whose numbers are no gray, RGB or RGBA (palette, CMYK, bilevel and others) is converted.
    """
    mode = getattr(image, "mode", None)
    if isinstance(image, np.ndarray) or not isinstance(mode, str):
        return np.asarray(image)
    try:
        array = np.asarray(image if mode in _PIL_AS_ARRAYS else image.convert("RGBA"))
    except (ValueError, OSError) as error:
        raise ImageError(f"image {key}: {error}") from error
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)  # asked afterwards: PIL turns some kinds on loading them
    except Exception:  # a damaged block counts as upright, as it does in a file
        orientation = 1
    return turn(array, orientation) if orientation in range(2, 9) else array


def _encoded(array: NDArray[Any], key: str) -> bytes:
    """Arrays take the way of files, so that alpha and depth are treated alike; BMP costs a copy, no compression."""
    import cv2

    if array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or not array.size:
        raise ImageError(f"image {key}: a {array.dtype} array of shape {array.shape}; expected uint8 HW or HWC")
    if array.ndim == 3:
        swap = {1: None, 3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(array.shape[2], -1)
        if swap == -1:
            raise ImageError(f"image {key}: {array.shape[2]} channels; expected 1 (gray), 3 (RGB) or 4 (RGBA)")
        array = array[..., 0] if swap is None else cv2.cvtColor(array, swap)
    suffix = ".bmp" if array.dtype == np.uint8 and (array.ndim == 2 or array.shape[2] == 3) else ".png"
    return bytes(cv2.imencode(suffix, array)[1])
