"""Whether the exported file reads what torch reads: answers and probabilities, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.sample import SampleSet
from inkmill.errors import InkmillError
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.base import Outputs, plain_answer

TOLERANCE = 1e-3
"""Largest difference of a probability in fp32."""
HALF_SHARE = 0.999
"""Share of equal answers that fp16 must reach; its probabilities are reported, not bounded."""
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
        equal: of how many the answers are the same.
        ties: of how many they differ because two classes are equally probable (see `Task.is_tie`).
        difference: largest difference of a probability.
        texts: the different answers of ours; where there are few, equality says little.
        differing: the first answers that differ, ours and theirs.
    """

    crops: int = 0
    equal: int = 0
    ties: int = 0
    difference: float = 0.0
    texts: set[str] = field(default_factory=set)
    differing: list[tuple[str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Equal answers / all."""
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
    """Let two readers of one task read all images, and return how alike they are.

    Raises:
        InkmillError: `theirs` cannot be run, or gives outputs of another shape.
    """
    parity, task = Parity(), ours.task
    decoder = task.plain_decoder().limited_to(theirs.given, "the exported graph")
    for batch in samples.batches(_BATCH, first=1):
        outputs, others = ours.outputs(batch, decoder.needs), _exported_outputs(theirs, batch, decoder.needs)
        for name in decoder.needs:
            if outputs[name].shape != others[name].shape:
                shapes = f"{others[name].shape}, torch {outputs[name].shape}"
                raise InkmillError(f"the exported graph gives {name} of shape {shapes}; please report this model")

        # 1. Answers: each side's outputs, decoded the same way.
        ours_said, theirs_said = decoder.decode(outputs), decoder.decode(others)
        answers, other_answers = ([plain_answer(one) for one in some] for some in (ours_said, theirs_said))
        unlike = [row for row, pair in enumerate(zip(ours_said, theirs_said, strict=True)) if not task.agree(*pair)]
        parity.texts.update(answers)
        parity.crops += len(answers)
        parity.equal += len(answers) - len(unlike)
        parity.differing += [(answers[row], other_answers[row]) for row in unlike][: _SHOWN - len(parity.differing)]

        # 2. Ties explain a difference, they do not excuse it.
        if set(task.outputs) <= set(ours.given):  # the reader of an ONNX file may give the best class alone
            for row in unlike:
                whole = ours.outputs(batch[row : row + 1], tuple(task.outputs))
                parity.ties += task.is_tie(whole, {name: array[row : row + 1] for name, array in others.items()})

        # 3. Probabilities. NaN is within no bound, and max() would pass over it: it counts as 1.
        for name in _floats(outputs):
            apart = np.abs(outputs[name] - others[name])
            parity.difference = max(parity.difference, float(np.nan_to_num(apart, nan=1.0).max(initial=0)))
    return parity


def distance(outputs: Outputs, others: Outputs) -> float:
    """Return how far outputs have moved; a class that changed counts as a probability that fell from one to zero."""
    moved = [
        np.abs(array - others[name]) if array.dtype.kind == "f" else array != others[name]
        for name, array in outputs.items()
    ]
    return float(sum(array.mean() for array in moved))


def _floats(outputs: Outputs) -> list[str]:
    return [name for name, array in outputs.items() if array.dtype.kind == "f"]


def _exported_outputs(reader: BaseReader, batch: NDArray[np.uint8], names: Sequence[str]) -> Outputs:
    try:
        return reader.outputs(batch, names)
    except Exception as error:  # onnxruntime's errors share no public base
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InkmillError(f"the exported graph cannot be run ({reason}); please report this model") from error
