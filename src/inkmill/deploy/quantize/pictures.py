"""What `quantize` reads: pictures to measure ranges on, and others to see what int8 costs.

Both are resized as in reading, without augmentation, and held in memory: some hundred and some thousand small pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.sources import Concat, Source, Subset, holdout, open_source
from inkmill.data.sources.folder import FileSource
from inkmill.data.sources.open import find_images
from inkmill.errors import ConfigError, DataError
from inkmill.runtime.evaluate import open_tests
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.recognition.normalise import Normaliser

CHECKED = 2000
"""Pictures on which both are compared, spread evenly over the set: 1 of 2000 is 0.05 %."""
MOST_BYTES = 1 << 29
"""Of the pictures of one side; large inputs get fewer."""


@dataclass(frozen=True)
class Pictures:
    """Pictures in memory.

    Attributes:
        name: which they are, for people.
        images: uint8 (N, H, W, C), resized.
        texts: what they say, normalised; None where nobody knows.
        skipped: how many could not be decoded.
    """

    name: str
    images: NDArray[np.uint8]
    texts: list[str] | None
    skipped: int


def open_pictures(spec: Spec, reader: BaseReader) -> tuple[Pictures, Pictures]:
    """Return the pictures to calibrate on and those to check with.

    Checked are the sets of `evaluate.test`, else the validation sets, else what training holds out of its own.

    Raises:
        ConfigError: the spec names no pictures to calibrate on.
        DataError: a set is missing, empty, or of something else than texts.
    """
    folder = spec.dataset.quant_calibration_dataset.images_dir
    sets = [open_source(one, label_pattern=spec.dataset.label_pattern) for one in spec.dataset.sources("train")]
    if not (sets or folder):
        raise ConfigError(
            "quantize measures ranges on pictures of the training set: give dataset.train=PATH, "
            "or dataset.quant_calibration_dataset.images_dir"
        )
    checked = [*open_tests(spec).values()] or [
        open_source(one, label_pattern=spec.dataset.label_pattern) for one in spec.dataset.sources("val")
    ]
    name = ", ".join(source.name for source in checked)
    if sets and not checked:
        parts = [(source, *holdout(source, spec.dataset.val_fraction)) for source in sets]
        checked = [Subset(source, held) for source, _, held in parts]
        sets = [Subset(source, keep) for source, keep, _ in parts]
        name = ", ".join(source.name for source, _, _ in parts) + " (held out)"
    calibration: Source = FileSource(find_images([folder])) if folder else _joined(sets)
    measured = _load(calibration, reader, spec.quantize.calibration_images, folder or calibration.name, False)
    if not checked:  # a folder of pictures, of which nobody knows what they say
        return measured, measured
    return measured, _load(_joined(checked), reader, CHECKED, name, True)


def _joined(sources: Sequence[Source]) -> Source:
    return sources[0] if len(sources) == 1 else Concat(sources)


def _load(source: Source, reader: BaseReader, count: int, name: str, labelled: bool) -> Pictures:
    if not len(source):
        raise DataError(f"{name}: the set is empty, and quantize reads its pictures")
    resize = reader.resize
    count = min(count, len(source), max(1, MOST_BYTES // (resize.height * resize.width * resize.channels)))
    some = Subset(source, np.arange(count) * len(source) // count)
    plan = LoadPlan(some, resize, batch_size=64, shuffle=False, on_bad_sample="skip", max_bad=1.0)
    images: list[NDArray[np.uint8]] = []
    texts: list[str] = []
    with make_loader(plan, workers=0) as loader:
        for batch in loader:
            images.append(np.array(batch.images))  # the loader may write the next batch over it
            texts += batch.texts
        skipped = sum(len(keys) for keys in loader.stats.skipped.values())
    together = np.concatenate(images) if images else np.empty((0,), np.uint8)
    if not len(together):
        raise DataError(f"{name}: none of {count} pictures can be decoded; `inkmill check` shows why")
    if labelled and len(texts) != len(together):
        raise DataError(f"{name}: its labels are no texts, which quantize compares readings with")
    return Pictures(name, together, Normaliser(reader.card.normalise).apply_all(texts) if labelled else None, skipped)
