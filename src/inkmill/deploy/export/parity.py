"""Whether the exported file reads what torch reads: strings and probabilities, image by image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.sample import SampleSet
from inkmill.errors import ConfigError, InkmillError
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.recognition.decoder import ALL, BEST

TOLERANCE = 1e-3
"""Largest difference of a probability in fp32."""
TIE = 1e-4
"""Two classes whose probabilities are nearer than this: rounding may make either the best. The order of a sum changes a
probability in fp32 by up to some 1e-5, and among many images one meets such a step. It excuses nothing."""
HALF_SHARE = 0.999
"""Share of equal strings that fp16 must reach; its probabilities are reported, not bounded."""
INT8_SHARE = 0.99
"""The same of int8. A sum between two steps is rounded to one by torch and perhaps to the other by ONNX Runtime: what a
reader is unsure of may then be read otherwise."""
_SHOWN = 20
_BATCH = 32
"""After a single image: neither is the batch that a graph was recorded with."""


@dataclass
class Parity:
    """How alike two readers read.

    Attributes:
        crops: images read by both.
        equal: of how many the texts are the same.
        ties: of how many they differ, from a step on at which two classes are equally probable (see TIE).
        difference: largest difference of the probability of a step's best class.
        texts: the different texts that ours read; where there are few, equality says little.
        differing: the first texts that differ, ours and theirs.
    """

    crops: int = 0
    equal: int = 0
    ties: int = 0
    difference: float = 0.0
    texts: set[str] = field(default_factory=set)
    differing: list[tuple[str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Equal texts / all."""
        return self.equal / self.crops if self.crops else 0.0

    def holds(self, precision: str) -> bool:
        """Whether the file, in fp32, fp16 or int8, may be written."""
        if precision == "fp32":
            return self.share == 1.0 and self.difference <= TOLERANCE
        return self.share >= (HALF_SHARE if precision == "fp16" else INT8_SHARE)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures under the keys of metrics.json."""
        return {
            "string_parity": self.share,
            "crops": self.crops,
            "strings_equal": self.equal,
            "ties": self.ties,
            "different_texts": len(self.texts),
            "max_probability_difference": self.difference,
            "differing": [{"torch": ours, "onnx": theirs} for ours, theirs in self.differing],
        }


def compare(ours: BaseReader, theirs: BaseReader, samples: SampleSet) -> Parity:
    """Let both read all images, best class of each step, and return how alike they are.

    Raises:
        InkmillError: `theirs` cannot be run, or gives another number of steps.
    """
    parity = Parity()
    for batch in samples.batches(_BATCH, first=1):
        ids, probabilities = best_classes(ours, batch)
        other_ids, other_probabilities = _classes(theirs, batch)
        if other_ids.shape != ids.shape:
            raise InkmillError(
                f"the exported graph gives {other_ids.shape[1]} steps, torch {ids.shape[1]}; please report this model"
            )
        # 1. Texts: each side's classes, decoded the same way.
        texts = _texts(ours, ids, probabilities)
        other_texts = _texts(ours, other_ids, other_probabilities)
        unlike = [pair for pair in zip(texts, other_texts, strict=True) if pair[0] != pair[1]]
        parity.texts.update(texts)
        parity.crops += len(texts)
        parity.equal += len(texts) - len(unlike)
        parity.differing += unlike[: _SHOWN - len(parity.differing)]

        # 2. Ties explain a difference, they do not excuse it.
        for row in [row for row, text in enumerate(texts) if text != other_texts[row]]:
            step = int(np.argmax(ids[row] != other_ids[row]))
            parity.ties += _is_tie(ours, batch[row : row + 1], step, int(ids[row, step]), int(other_ids[row, step]))

        # 3. Probabilities. NaN is within no bound, and max() would pass over it: it counts as 1.
        apart = np.abs(probabilities - other_probabilities)
        parity.difference = max(parity.difference, float(np.nan_to_num(apart, nan=1.0).max(initial=0)))
    return parity


def best_classes(reader: BaseReader, images: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the best class of each step and its probability, both (B, S), of resized uint8 BHWC images."""
    outputs = reader.outputs(images, reader.task.plain_decoder().limited_to(reader.given, "").needs)
    if ALL in outputs:
        return outputs[ALL].argmax(axis=2), outputs[ALL].max(axis=2)
    return outputs[BEST[0]], outputs[BEST[1]]


def _texts(reader: BaseReader, ids: NDArray[Any], probabilities: NDArray[Any]) -> list[str]:
    found = reader.task.plain_decoder().decode(dict(zip(BEST, (ids, probabilities), strict=True)))
    return [one.as_dict()["text"] for one in found]


def _is_tie(reader: BaseReader, image: NDArray[np.uint8], step: int, one: int, other: int) -> bool:
    """Return whether two classes are equally probable at a step; False where a reader gives the best class alone."""
    try:
        probable = reader.outputs(image, [ALL])[ALL][0, step]
    except ConfigError:
        return False
    return bool(abs(probable[one] - probable[other]) <= TIE)


def _classes(reader: BaseReader, batch: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        return best_classes(reader, batch)
    except Exception as error:  # onnxruntime's errors share no public base
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InkmillError(f"the exported graph cannot be run ({reason}); please report this model") from error
