"""Which samples a text reader can learn from: label, length, characters, and the time steps that a picture gives."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check import Judged
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Target, Text
from inkmill.report import Page
from inkmill.tasks.recognition.codecs import Codec
from inkmill.tasks.recognition.normalise import Normaliser

_VERSION = 2  # raise it when the same set would be judged otherwise
_SHOWN, _BARS = 20, 60

NO_CAPACITY = "torch is not installed: whether pictures are too narrow for their labels is not checked"


class TextRules:
    """What a sample must fulfil to teach a text reader; see `inkmill.data.jobs.check.SampleRules`.

    Args:
        resize: how images meet the model's input.
        codec: the characters, the longest label, and how many time steps a label needs.
        normaliser: is applied to every label first.
        capacity: gives the time steps of the model for an input width in pixels; None where torch is not installed.
    """

    reasons = ("no_text", "empty", "out_of_charset", "over_length", "too_narrow")

    def __init__(
        self, resize: Resize, codec: Codec, normaliser: Normaliser, capacity: Callable[[int], int] | None = None
    ) -> None:
        self.resize, self.codec, self.normaliser = resize, codec, normaliser
        self._capacity = capacity
        self._steps: dict[int, int] = {}
        self.notes = () if capacity else (NO_CAPACITY,)

    def digest(self) -> str:
        """Return 16 hex digits that stand for the verdicts of these rules."""
        facts = [
            _VERSION,
            self.resize.digest(),
            self.codec.prediction,
            self.codec.charset.chars,
            self.codec.max_label_length,
            self.normaliser.rule_names,
            [self.steps(width) for width in self.resize.widths()],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def judge(self) -> TextJudge:
        """Return a judge for one set, whose counts start at 0."""
        return TextJudge(self)

    def steps(self, width: int) -> int | None:
        """Return the time steps of an input of `width` pixels, None where that is not known."""
        if self._capacity is None:
            return None
        if width not in self._steps:
            self._steps[width] = self._capacity(width)
        return self._steps[width]

    def show(self, page: Page, facts: Mapping[str, Any]) -> None:
        """Add lengths and characters of one set to the page of `check`."""
        if lengths := {int(length): count for length, count in facts["label_lengths"].items()}:
            page.add_bars(*_bins(lengths), caption="label length in characters")
        if facts["unknown_characters"]:
            rows = _characters(facts["unknown_characters"])
            page.add_table(["character", "times"], rows, "not in the character list, most frequent first")
        if facts["unseen_characters"]:
            unseen = " ".join(map(repr, facts["unseen_characters"]))
            page.add_text(f"In the character list but in no label that is used: {unseen}")
        if characters := facts["characters"]:
            shown = list(characters.items())[:_BARS]
            caption = f"the {len(shown)} most frequent of {len(characters):,} characters"
            page.add_bars([char for char, _ in shown], [count for _, count in shown], caption=caption)
            rare = list(characters.items())[: -_SHOWN - 1 : -1]
            page.add_table(["character", "times"], _characters(dict(rare)), "the rarest characters")
        if facts["normalised"]:
            page.add_table(["change", "times"], facts["normalised"].items(), "what normalisation changed in the labels")


class TextJudge:
    """Judges the chunks of one set and counts its characters; see `inkmill.data.jobs.check.SetJudge`."""

    def __init__(self, rules: TextRules) -> None:
        self.rules = rules
        # Its own, so that the counts of one set do not run into those of another.
        self.normaliser = Normaliser(rules.normaliser.rule_names)
        self.lengths: Counter[int] = Counter()
        self.characters: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def judge(self, targets: Sequence[Target | None], sizes: NDArray[np.int32], lost: Collection[int]) -> Judged:
        """See SetJudge.judge."""
        labels = [self.normaliser.apply(target.value) if isinstance(target, Text) else None for target in targets]
        self.lengths.update(len(label) for label in labels if label is not None)
        unknown = self._unknown(labels)
        narrow = self._narrow(labels, sizes)
        faults: dict[int, tuple[str, str]] = {}
        for offset, (target, label) in enumerate(zip(targets, labels, strict=True)):
            if offset in lost or target is None:
                continue
            fault = _no_text(target) if label is None else self._fault(label, unknown) or narrow.get(offset)
            if fault:
                faults[offset] = fault
            elif label is not None:
                self.characters.update(label)
        return Judged([label or "" for label in labels], [(offset, *fault) for offset, fault in faults.items()])

    def facts(self) -> dict[str, Any]:
        """See SetJudge.facts."""
        unseen = [char for char in self.rules.codec.charset.chars if char not in self.characters]
        return {
            "label_lengths": {str(length): count for length, count in sorted(self.lengths.items())},
            "characters": dict(self.characters.most_common()),
            "unknown_characters": dict(self.unknown.most_common()),
            "unseen_characters": unseen,
            "normalised": dict(self.normaliser.report.most_common()),
        }

    def _unknown(self, labels: Sequence[str | None]) -> frozenset[str]:
        """Return the characters of a chunk that are not in the charset, and count them."""
        counts = Counter("".join(filter(None, labels)))
        unknown = {char: count for char, count in counts.items() if char not in self.rules.codec.charset}
        self.unknown.update(unknown)
        return frozenset(unknown)

    def _fault(self, label: str, unknown: frozenset[str]) -> tuple[str, str] | None:
        longest = self.rules.codec.max_label_length
        if not label:
            return "empty", "the label is empty"
        if unknown and (strange := "".join(dict.fromkeys(char for char in label if char in unknown))):
            return "out_of_charset", f"not in the character list: {strange!r}"
        if len(label) > longest:
            return "over_length", f"{len(label)} characters, {longest} allowed"
        return None

    def _narrow(self, labels: Sequence[str | None], sizes: NDArray[np.int32]) -> dict[int, tuple[str, str]]:
        """Return the samples whose picture gives the model fewer time steps than their label needs."""
        resize = self.rules.resize
        if self.rules.steps(resize.width) is None:
            return {}
        needed = self.rules.codec.required_steps([label or "" for label in labels])
        # With a free width the picture decides, and nothing is known where it was not looked at.
        known = np.flatnonzero(sizes[:, 1]) if resize.buckets else np.arange(len(labels))
        found = {}
        for offset, need in zip(known.tolist(), needed[known].tolist(), strict=True):
            width = resize.bucket_width(*sizes[offset].tolist()) if resize.buckets else resize.width
            steps = self.rules.steps(width) or 0
            if need > steps:
                detail = f"needs {need} time steps, its width of {width} pixels gives {steps}"
                found[offset] = ("too_narrow", detail)
        return found


def _no_text(target: Target) -> tuple[str, str]:
    return "no_text", f"it has {type(target).__name__.lower()}, not a text"


def _bins(histogram: Mapping[int, int]) -> tuple[list[str], list[int]]:
    """Return labels and counts of at most some sixty bars that cover the whole range."""
    low, high = min(histogram), max(histogram)
    step = -(-(high - low + 1) // _BARS)
    counts = [0] * ((high - low) // step + 1)
    for value, count in histogram.items():
        counts[(value - low) // step] += count
    starts = range(low, high + 1, step)
    return [str(start) if step == 1 else f"{start}-{start + step - 1}" for start in starts], counts


def _characters(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(f"{char!r} U+{ord(char):04X}", count) for char, count in list(counts.items())[:_SHOWN]]
