"""Which images the verbs of this room read: to measure int8's ranges on, and to see whether a new file reads the same.

Sets are taken in one order everywhere. To verify on: the test sets that the spec names, else its validation sets, else
what training holds out of its own sets. To calibrate on: the training sets without what is held out of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import cv2
import numpy as np

from inkmill.config.spec import Spec
from inkmill.data.jobs.sample import Image, SampleSet, read_evenly, read_resized
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source, Subset, holdout, open_source
from inkmill.data.sources.folder import FileSource
from inkmill.data.sources.open import find_images
from inkmill.errors import ConfigError
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.evaluate import open_tests
from inkmill.tasks import find_task

CROPS = 300
PAGES = 24
"""As many whole pictures take as long as so many crops."""
WIDTHS = 3
_SCALES = (1.0, 0.5, 2.0)
_SHARES = (1.0, 2 / 3, 1 / 3)


@dataclass
class VerificationSet(SampleSet):
    """Resized images that two models read, to be compared.

    Attributes:
        widths: how many there are of each width of an image, in pixels at the input's height, before any padding.
        rendered: drawn because the spec names no data, so the model may not know their like.
    """

    widths: dict[int, int] = field(default_factory=dict)
    rendered: bool = False


def verification_samples(spec: Spec, header: ModelHeader, count: int = CROPS) -> VerificationSet:
    """Return up to `count` images of at least three widths.

    Where the sets have fewer widths, some images are made narrower and wider. A very small input may not have so many.

    Raises:
        DataError: a set that the spec names is not there, or none of its images can be decoded.
    """
    resize = header.open_task().resize
    if isinstance(resize, PageResize):
        return _pages(spec, header, resize, count)

    # 1. Real images, or rendered text where only a model file is at hand.
    where, sources = verification_sources(spec)
    if sources:
        found = read_evenly(sources, count, resize.channels)
        found.origin = f"{where}: {found.origin}"
    else:
        found = SampleSet("rendered text: the spec names no data", _rendered(header, min(count, 99)))

    # 2. Three widths: an export that fixes a width by mistake must not pass because all crops had that one.
    crops, changed = found.images, ""
    if _few_widths(crops, resize):
        crops = [_scaled(crop, _SCALES[number % len(_SCALES)]) for number, crop in enumerate(found.images)]
        changed = "; two of three made half and twice as wide"
    if _few_widths(crops, resize):  # all of them may be wider than the input
        crops = [_narrowed(crop, resize, _SHARES[number % len(_SHARES)]) for number, crop in enumerate(found.images)]
        changed = "; two of three made to fill two thirds and one third of the input"

    # 3. The input's size, as in reading.
    widths = Counter(_width(crop, resize) for crop in crops)
    return VerificationSet(
        found.origin + changed,
        [resize.apply(crop)[0] for crop in crops],
        unreadable=found.unreadable,
        widths=dict(sorted(widths.items())),
        rendered=not sources,
    )


def _pages(spec: Spec, header: ModelHeader, resize: PageResize, count: int) -> VerificationSet:
    """Return up to PAGES whole pictures of several sizes."""
    where, sources = verification_sources(spec)
    if sources:
        found = read_evenly(sources, min(count, PAGES), resize.channels)
        found.origin = f"{where}: {found.origin}"
    else:
        lines = _rendered(header, 60)
        pages = [np.full((360 + 80 * (n % WIDTHS), 520, resize.channels), 225, np.uint8) for n in range(6)]
        for number, line in enumerate(lines):  # ten lines a page, each cut to it
            page, row = pages[number % len(pages)], 34 * (number // len(pages))
            page[row : row + len(line), 20 : 20 + line.shape[1]] = line[: len(page) - row, : page.shape[1] - 20]
        found = SampleSet("rendered text: the spec names no data", pages)
    pictures = [_scaled(page, _SCALES[number % len(_SCALES)]) for number, page in enumerate(found.images)]
    resized = [resize.apply(picture)[0] for picture in pictures]
    widths = Counter(image.shape[1] for image in resized)
    return VerificationSet(
        found.origin + "; two of three made half and twice as wide",
        resized,
        unreadable=found.unreadable,
        widths=dict(sorted(widths.items())),
        rendered=not sources,
    )


def verification_sources(spec: Spec) -> tuple[str, list[Source]]:
    """Return the sets to verify on, and which of the spec's they are; none where it names no data."""
    if tests := list(open_tests(spec).values()):
        return "test sets", tests
    if val := _opened(spec, "val"):
        return "validation sets", val
    train = _opened(spec, "train")
    return "held out of", [Subset(one, holdout(one, spec.dataset.val_fraction)[1]) for one in train]


def calibration_samples(spec: Spec, resize: Resize, count: int, folders: Sequence[str] = ()) -> SampleSet:
    """Return up to `count` images to measure ranges on, resized as in reading.

    They come from `folders`, else from `dataset.quant_calibration_dataset.images_dir`, else from the training sets:
    the part that training learns from.

    Raises:
        ConfigError: the spec names none.
        DataError: a set is missing, or none of its images can be decoded.
    """
    own = spec.dataset.quant_calibration_dataset.images_dir
    if folders := folders or ([own] if own else []):
        return read_resized([FileSource(find_images(folders))], count, resize, ", ".join(folders))
    train = _opened(spec, "train")
    if not train:
        raise ConfigError(
            "int8 needs images to measure ranges on: give dataset.train=PATH, or a folder of images as "
            "dataset.quant_calibration_dataset.images_dir (of `engine` also "
            "gen_trt_engine.tensorrt.calibration.cal_image_dir)"
        )
    names = ", ".join(source.name for source in train)
    if not spec.dataset.sources("val"):  # then training holds some out
        train = [Subset(one, holdout(one, spec.dataset.val_fraction)[0]) for one in train]
    return read_resized(train, count, resize, names)


def _opened(spec: Spec, which: Literal["train", "val"]) -> list[Source]:
    pattern, folders = spec.dataset.label_pattern, find_task(spec.task).folder_format
    return [open_source(one, label_pattern=pattern, folder_format=folders) for one in spec.dataset.sources(which)]


def _width(crop: Image, resize: Resize) -> int:
    """Return the width by which an image differs from others for the model: what it fills of the input, if not all."""
    height, width = crop.shape[:2]
    if resize.mode == "stretch":
        return int(max(1, round(resize.height * width / height)))
    return int(resize.bucket_width(width, height) if resize.buckets else resize.valid_width(width, height))


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


def _rendered(header: ModelHeader, count: int) -> list[Image]:
    """Return dark text on light, grainy ground, in OpenCV's own font, which has ASCII alone."""
    random = np.random.default_rng(0)
    names = header.open_task().class_names
    known = [name for name in names if len(name) == 1 and "!" <= name <= "~"] or list("0123456789")
    channels = header.model.input_channel
    crops = []
    for number in range(count):
        length = 1 + number % 12
        crop = random.integers(160, 256, (40, 16 + 20 * length, channels)).astype(np.uint8)
        text = "".join(random.choice(known, length))
        drawn = cv2.putText(crop, text, (8, 29), cv2.FONT_HERSHEY_SIMPLEX, 0.9, (30,) * channels, 2, cv2.LINE_AA)
        crops.append(np.asarray(drawn, np.uint8))
    return crops
