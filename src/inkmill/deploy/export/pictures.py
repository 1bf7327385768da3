"""The pictures that torch and the exported file both read: crops of the user's own sets, of at least three widths.

Taken from the test sets that the spec names, else from its validation sets, else from what is held out of its training
sets. A spec without data (only a model file is at hand) leaves rendered text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.config.spec import Spec
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source, Subset, holdout, open_source
from inkmill.errors import DataError
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.evaluate import open_tests
from inkmill.runtime.reader import input_resize

CROPS = 300
WIDTHS = 3
_SCALES = (1.0, 0.5, 2.0)
_SHARES = (1.0, 2 / 3, 1 / 3)
_BATCHES = (1, 32)
"""Sizes that the graph was not recorded with."""

Image = NDArray[np.uint8]


@dataclass
class Pictures:
    """Resized pictures.

    Attributes:
        origin: where they come from, in a few words.
        images: uint8 (height, width, channels) each, of the widths that the model is given.
        widths: how many there are of each width of a picture, in pixels at the input's height, before any padding.
        unreadable: how many crops could not be decoded, and are not among the images.
        rendered: made for want of any, so the reader may not know their like.
    """

    origin: str
    images: list[Image] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)
    unreadable: int = 0
    rendered: bool = False

    def batches(self) -> Iterator[Image]:
        """Yield all of them, (B, height, width, channels), those of one width together."""
        same: dict[int, list[Image]] = defaultdict(list)
        for image in self.images:
            same[image.shape[1]].append(image)
        for images in same.values():
            yield np.stack(images[: _BATCHES[0]])
            for start in range(_BATCHES[0], len(images), _BATCHES[1]):
                yield np.stack(images[start : start + _BATCHES[1]])


def choose_pictures(spec: Spec, card: ModelHeader, count: int = CROPS) -> Pictures:
    """Return up to `count` pictures of at least three widths.

    Where the crops have fewer widths, some are made narrower and wider. A very small input may not have so many.

    Raises:
        DataError: a set that the spec names is not there, or none of its pictures can be decoded.
    """
    resize = input_resize(card.model)
    where, sources = _sources(spec)
    unreadable = 0
    if sources:
        crops, unreadable = _crops(sources, resize, count)
        names = ", ".join(source.name for source in sources)
        if not crops:
            raise DataError(f"{names}: none of its pictures can be decoded, so the export cannot be checked with them")
        origin = f"{where}: {names}"
    else:
        crops, origin = _rendered(card, min(count, 99)), "rendered text: the spec names no data"
    as_they_are, changed = crops, ""
    if _few_widths(crops, resize):
        crops = [_scaled(crop, _SCALES[number % len(_SCALES)]) for number, crop in enumerate(as_they_are)]
        changed = "; two of three made half and twice as wide"
    if _few_widths(crops, resize):  # all of them may be wider than the input
        crops = [_narrowed(crop, resize, _SHARES[number % len(_SHARES)]) for number, crop in enumerate(as_they_are)]
        changed = "; two of three made to fill two thirds and one third of the input"
    origin += changed
    widths = Counter(_width(crop, resize) for crop in crops)
    return Pictures(
        origin, [resize.apply(crop)[0] for crop in crops], dict(sorted(widths.items())), unreadable, not sources
    )


def _sources(spec: Spec) -> tuple[str, list[Source]]:
    if tests := list(open_tests(spec).values()):
        return "test sets", tests
    pattern = spec.dataset.label_pattern
    if val := [open_source(one, label_pattern=pattern) for one in spec.dataset.sources("val")]:
        return "validation sets", val
    train = [open_source(one, label_pattern=pattern) for one in spec.dataset.sources("train")]
    return "held out of", [Subset(one, holdout(one, spec.dataset.val_fraction)[1]) for one in train]


def _crops(sources: Sequence[Source], resize: Resize, count: int) -> tuple[list[Image], int]:
    """Return decoded crops, an equal part of each source and evenly spread over it, and how many were unreadable."""
    crops: list[Image] = []
    unreadable = 0
    share = -(-count // len(sources))
    for source in sources:
        for index in np.unique(np.linspace(0, len(source) - 1, min(share, len(source))).astype(int)).tolist():
            try:
                crops.append(decode(source.get(index).image, resize.channels))
            except DataError:  # damaged, or not there
                unreadable += 1
    return crops, unreadable


def _width(crop: Image, resize: Resize) -> int:
    """Return the width by which a picture differs from others for the model: what it fills of the input, if not all."""
    height, width = crop.shape[:2]
    if resize.mode == "stretch":
        return int(max(1, round(resize.height * width / height)))
    return int(resize.bucket_width(width, height) if resize.mode == "height" else resize.valid_width(width, height))


def _few_widths(crops: Sequence[Image], resize: Resize) -> bool:
    return len({_width(crop, resize) for crop in crops}) < WIDTHS


def _narrowed(crop: Image, resize: Resize, share: float) -> Image:
    """Return a crop that takes a share of the input's width, or of its own where that is less."""
    height, width = crop.shape[:2]
    return _scaled(crop, share * min(1.0, resize.width * height / (resize.height * width)))


def _scaled(crop: Image, scale: float) -> Image:
    height, width = crop.shape[:2]
    wide = max(1, round(width * scale))
    return np.asarray(cv2.resize(crop, (wide, height)), np.uint8).reshape(height, wide, -1)


def _rendered(card: ModelHeader, count: int) -> list[Image]:
    """Return dark text on light, grainy ground, in OpenCV's own font, which has ASCII alone."""
    random = np.random.default_rng(0)
    known = [char for char in card.charset if "!" <= char <= "~"] or list("0123456789")
    crops = []
    for number in range(count):
        length = 1 + number % min(card.max_label_length, 12)
        text = "".join(random.choice(known, length))
        crop = random.integers(160, 256, (40, 16 + 20 * length, card.model.input_channel)).astype(np.uint8)
        crops.append(np.asarray(_put(crop, text), np.uint8))
    return crops


def _put(crop: Image, text: str) -> Image:
    shade = (30,) * crop.shape[2]
    return np.asarray(cv2.putText(crop, text, (8, 29), cv2.FONT_HERSHEY_SIMPLEX, 0.9, shade, 2, cv2.LINE_AA), np.uint8)
