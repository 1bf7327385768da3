"""The reader: images in, text and confidence out, the same steps as in training.

What differs between torch and ONNX Runtime is one method, `classify`; decoding, fitting, batching and the way from
class ids to text are here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.config.model import ModelSpec
from inkmill.data.decode import decode
from inkmill.data.fit import Fit
from inkmill.errors import DataError, ImageError
from inkmill.runtime.card import ReaderCard

Picture = str | Path | bytes | NDArray[np.uint8] | Any

_PIL_AS_ARRAYS = ("L", "RGB", "RGBA", "I;16", "I", "F")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader says of one image.

    Attributes:
        text: the characters.
        confidence: product of the probabilities of the emitted characters, 0..1; 0 for an empty text.
        key: the path of the image where it came from one, else its position.
    """

    text: str
    confidence: float
    key: str = ""


class Reader(ABC):
    """Reads images of text.

    Attributes:
        card: what the model file says about itself.
    """

    def __init__(self, card: ReaderCard) -> None:
        self.card = card
        self.fit = input_fit(card.model)
        self.codec = card.codec()

    @abstractmethod
    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return class ids and their probabilities, both (B, T), of fitted uint8 BHWC images."""

    def read(self, images: Picture | Iterable[Picture], batch_size: int = 64) -> list[Reading]:
        """Read images, in order.

        Args:
            images: one image or several: paths, encoded bytes, uint8 arrays (HW gray, HWC RGB or RGBA), PIL images.
            batch_size: how many are read at once; the result does not depend on it.

        Raises:
            ImageError: an image cannot be decoded; names it.
        """
        several: list[Any] = [images] if _is_one(images) else list(images)  # type: ignore[arg-type]
        fitted: dict[int, list[tuple[int, NDArray[np.uint8]]]] = defaultdict(list)
        readings: list[Reading | None] = [None] * len(several)
        keys = [str(image) if isinstance(image, (str, Path)) else str(n) for n, image in enumerate(several)]
        for position, image in enumerate(several):
            picture, _ = self.fit.apply(_pixels(image, self.fit.channels, keys[position]))
            same_width = fitted[picture.shape[1]]
            same_width.append((position, picture))
            if len(same_width) == batch_size:
                self._read_batch(fitted.pop(picture.shape[1]), keys, readings)
        for rest in fitted.values():
            self._read_batch(rest, keys, readings)
        return [reading for reading in readings if reading is not None]

    def _read_batch(
        self, batch: Sequence[tuple[int, NDArray[np.uint8]]], keys: list[str], readings: list[Reading | None]
    ) -> None:
        ids, probabilities = self.classify(np.stack([picture for _, picture in batch]))
        texts, confidences = self.codec.decode(ids, probabilities)
        for (position, _), text, confidence in zip(batch, texts, confidences, strict=True):
            readings[position] = Reading(text, float(confidence), keys[position])


def _is_one(images: object) -> bool:
    return isinstance(images, (str, Path, bytes, np.ndarray)) or not isinstance(images, Iterable)


def _pixels(image: Picture, channels: Literal[1, 3], key: str) -> NDArray[np.uint8]:
    if isinstance(image, (str, Path)):
        try:
            image = Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"{key}: cannot be read ({error.strerror})") from error
    if not isinstance(image, bytes):
        image = _encoded(np.asarray(_in_plain_colours(image)), key)
    try:
        return decode(image, channels)
    except ImageError as error:
        raise ImageError(f"{key}: {error}") from error


def _in_plain_colours(image: Any) -> Any:
    """Convert a PIL image whose numbers are no gray, RGB or RGBA: palette, CMYK, bilevel and others."""
    mode = getattr(image, "mode", None)
    return image.convert("RGBA") if isinstance(mode, str) and mode not in _PIL_AS_ARRAYS else image


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


def input_fit(model: ModelSpec) -> Fit:
    """Return how images are brought to the input size of `model`."""
    return Fit(height=model.input_height, width=model.input_width, channels=model.input_channel, mode=model.input_fit)
