"""Which samples a classifier can learn from, and what `check` counts of them: classes, and which occur together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check import Judged
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Polygons, Target
from inkmill.report import Page

if TYPE_CHECKING:
    from inkmill.tasks.classification.task import LabelReader

_VERSION = 1  # raise it when the same set would be judged otherwise
_SHOWN = 40


class ClassRules:
    """What a sample must fulfil to teach a classifier; see `inkmill.data.jobs.check.SampleRules`.

    Args:
        resize: how images are brought to the input size.
        labels: from targets to class names.
    """

    reasons = ("no_classes", "not_one_class", "unknown_class")
    notes: tuple[str, ...] = ()

    def __init__(self, resize: Resize, labels: LabelReader) -> None:
        self.resize, self.labels = resize, labels

    def digest(self) -> str:
        """Return 16 hex digits that stand for the verdicts of these rules."""
        facts = [_VERSION, self.resize.digest(), self.labels.classes, self.labels.exclusive, self.labels.separators]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def judge(self) -> ClassJudge:
        """Return a judge for one set, whose counts start at 0."""
        return ClassJudge(self)

    def show(self, page: Page, facts: Mapping[str, Any]) -> None:
        """Add the classes of one set to the page of `check`."""
        counts, total = facts["classes"], max(1, facts["samples"])
        shown = list(counts.items())[:_SHOWN]
        caption = f"images by class, the {len(shown)} most frequent of {len(counts)}"
        page.add_bars([name for name, _ in shown], [count for _, count in shown], caption=caption)
        if facts["absent"]:
            page.add_text(f"Classes that no image of this set shows: {', '.join(map(repr, facts['absent']))}")
        rows = [(name, count, f"{count / total:.1%}", facts["unknown"].get(name, 0)) for name, count in shown]
        page.add_table(("class", "images", "share", "unknown"), rows, "classes")
        if facts["together"]:
            pairs = [(pair, count) for pair, count in list(facts["together"].items())[:_SHOWN]]
            page.add_table(("classes", "images"), pairs, "most frequent pairs")
        if facts["without_class"]:
            page.add_text(f"{facts['without_class']:,} images show none of the classes; they are true negatives.")


class ClassJudge:
    """Judges the chunks of one set and counts its classes; see `inkmill.data.jobs.check.SetJudge`."""

    def __init__(self, rules: ClassRules) -> None:
        self.rules = rules
        self.samples = self.without_class = 0
        self.classes: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.together: Counter[str] = Counter()

    def judge(self, targets: Sequence[Target | None], sizes: NDArray[np.int32], lost: Collection[int]) -> Judged:
        """See SetJudge.judge."""
        labels: list[str] = []
        faults: list[tuple[int, str, str]] = []
        for offset, target in enumerate(targets):
            fault, names = (None, ()) if target is None else self._one(target)
            labels.append(" ".join(names))
            if offset in lost or target is None:
                continue
            if fault:
                faults.append((offset, *fault))
            else:
                self._count(target, names)
        return Judged(labels, faults)

    def _one(self, target: Target) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
        """Return why a target cannot be used, if so, and the classes that it names."""
        reader = self.rules.labels
        if isinstance(target, Polygons):
            return ("no_classes", "it has regions, not classes"), ()
        names, unknown = reader.names_of(target)
        if reader.exclusive and len(names) != 1:
            return ("not_one_class", f"it has {len(names)} classes ({' '.join(names)!r}), expected one"), names
        strange = [name for name in (*names, *unknown) if name not in reader.column]
        if strange:
            return ("unknown_class", f"not in the list of classes: {strange[0]!r}"), names
        return None, names

    def _count(self, target: Target, names: tuple[str, ...]) -> None:
        self.samples += 1
        self.without_class += not names
        self.classes.update(names)
        self.unknown.update(self.rules.labels.names_of(target)[1])
        self.together.update(" + ".join(pair) for pair in combinations(sorted(names), 2))

    def facts(self) -> dict[str, Any]:
        """See SetJudge.facts."""
        return {
            "samples": self.samples,
            "classes": dict(self.classes.most_common()),
            "absent": [name for name in self.rules.labels.classes if name not in self.classes],
            "unknown": dict(self.unknown.most_common()),
            "together": dict(self.together.most_common(_SHOWN)),
            "without_class": self.without_class,
        }
