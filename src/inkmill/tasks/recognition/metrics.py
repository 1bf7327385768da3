"""Scores of a text recogniser from the true and the read strings.

Both sides are brought to NFC first, so one spelling of a character is never counted against another. Every score is
a fraction in 0..1 (CER may pass 1); a score that a set cannot define, such as space accuracy without spaces, is None.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cpdist

from inkmill.errors import DataError
from inkmill.tasks.base import Scores
from inkmill.tasks.recognition.diacritics import has_diacritic, strip_diacritics

_NOT_36 = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True)
class LengthScores:
    """The scores of the samples whose truth has one length; CER is None for length 0."""

    samples: int
    word_accuracy: float
    cer: float | None


@dataclass(frozen=True)
class RecognitionScores(Scores):
    """The scores of one set.

    Attributes:
        samples: how many strings were compared.
        word_accuracy: share of strings read exactly.
        word_accuracy_ignore_case: the same after lower-casing.
        word_accuracy_36: the same over a-z and 0-9 alone, lower-cased, the usual protocol of scene-text papers; truths
            without any of these characters are left out.
        cer: character error rate, the sum of the edit distances over the sum of the lengths of the truths.
        one_minus_ned: 1-NED of ICDAR 2019 (LSVT, ArT), the mean of 1 - distance / length of the longer string.
        space_accuracy: F1 of the spaces, 2 x matched / (true + read); a space is matched when the least-edit alignment
            puts it on a space. None when neither side has one.
        diacritic_accuracy: of the true characters with a diacritic, the share that the least-edit alignment puts on the
            same character.
        word_accuracy_no_diacritics: share of strings read exactly once diacritics are taken off both sides.
        by_length: scores by the length of the truth in characters, ascending.
    """

    samples: int
    word_accuracy: float
    word_accuracy_ignore_case: float
    word_accuracy_36: float | None
    cer: float | None
    one_minus_ned: float
    space_accuracy: float | None
    diacritic_accuracy: float | None
    word_accuracy_no_diacritics: float
    by_length: dict[int, LengthScores]

    def headline(self) -> dict[str, float]:
        """Return word accuracy and CER; the CER of empty truths is 0 here."""
        return {"word_accuracy": self.word_accuracy, "cer": self.cer or 0.0}

    def rank(self) -> tuple[float, ...]:
        """Return word accuracy, then fewer character errors."""
        return self.word_accuracy, -(self.cer or 0.0)

    def table(self) -> dict[str, float | None]:
        """Return five of the scores; "36" are the characters a-z and 0-9."""
        return {
            "words": self.word_accuracy,
            "any case": self.word_accuracy_ignore_case,
            "36 chars": self.word_accuracy_36,
            "CER": self.cer,
            "1-NED": self.one_minus_ned,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON; the lengths in `by_length` are strings there."""
        values = asdict(self)
        values["by_length"] = {str(length): scores for length, scores in values["by_length"].items()}
        return values


def score(truths: Sequence[str], predictions: Sequence[str]) -> RecognitionScores:
    """Compare what was read with the truth.

    Raises:
        DataError: nothing to score, or the two sides differ in number.
    """
    if len(truths) != len(predictions):
        raise DataError(
            f"{len(truths)} truths cannot be compared with {len(predictions)} predictions: give one for each"
        )
    if not truths:
        raise DataError("there is nothing to score: the set has no samples")
    truths, predictions = _each(_nfc, truths), _each(_nfc, predictions)
    distances = cpdist(truths, predictions, scorer=Levenshtein.distance, dtype=np.int32).astype(np.int64)
    lengths = _lengths(truths)
    longer = np.maximum(lengths, _lengths(predictions))
    # Only pairs that differ need an alignment; in the others every character is matched.
    differ = np.flatnonzero(distances)
    matched = ["".join(_matched(truths[i], predictions[i])) for i in differ]
    wrong = ([truths[i] for i in differ], [predictions[i] for i in differ], matched)
    return RecognitionScores(
        samples=len(truths),
        word_accuracy=float((distances == 0).mean()),
        word_accuracy_ignore_case=_accuracy(_each(str.lower, truths), _each(str.lower, predictions)),
        word_accuracy_36=_accuracy_36(truths, predictions),
        cer=_ratio(distances.sum(), lengths.sum()),
        one_minus_ned=float(1 - (distances / np.maximum(longer, 1)).mean()),
        space_accuracy=_space_f1(truths, *wrong),
        diacritic_accuracy=_diacritic_recall(truths, *wrong),
        word_accuracy_no_diacritics=_accuracy(_each(strip_diacritics, truths), _each(strip_diacritics, predictions)),
        by_length=_by_length(lengths, distances),
    )


def _nfc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _each(change: Callable[[str], str], texts: Sequence[str]) -> list[str]:
    return [change(text) for text in texts]


def _lengths(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _accuracy(truths: Sequence[str], predictions: Sequence[str]) -> float:
    return sum(map(str.__eq__, truths, predictions)) / len(truths)


def _accuracy_36(truths: Sequence[str], predictions: Sequence[str]) -> float | None:
    pairs = [(_NOT_36.sub("", t.lower()), _NOT_36.sub("", p.lower())) for t, p in zip(truths, predictions, strict=True)]
    counted = [truth == prediction for truth, prediction in pairs if truth]
    return _ratio(sum(counted), len(counted))


def _matched(truth: str, prediction: str) -> Iterator[str]:
    """Yield the parts of `truth` that a least-edit alignment puts on the same characters of `prediction`."""
    for block in Levenshtein.editops(truth, prediction).as_matching_blocks():
        yield truth[block.a : block.a + block.size]


def _space_f1(
    truths: Sequence[str], wrong: Sequence[str], readings: Sequence[str], matched: Sequence[str]
) -> float | None:
    true = _spaces(truths)
    right = true - _spaces(wrong)
    return _ratio(2 * (right + _spaces(matched)), true + right + _spaces(readings))


def _diacritic_recall(
    truths: Sequence[str], wrong: Sequence[str], readings: Sequence[str], matched: Sequence[str]
) -> float | None:
    marked = {char for char in set().union(*truths) if has_diacritic(char)}
    total, lost, found = (sum(char in marked for text in texts for char in text) for texts in (truths, wrong, matched))
    return _ratio(total - lost + found, total)


def _spaces(texts: Sequence[str]) -> int:
    return sum(text.count(" ") for text in texts)


def _by_length(lengths: NDArray[np.int64], distances: NDArray[np.int64]) -> dict[int, LengthScores]:
    values, group = np.unique(lengths, return_inverse=True)
    samples = np.bincount(group)
    right = np.bincount(group, weights=distances == 0)
    edits = np.bincount(group, weights=distances)
    return {
        int(length): LengthScores(int(n), float(r / n), _ratio(e, length * n))
        for length, n, r, e in zip(values, samples, right, edits, strict=True)
    }
