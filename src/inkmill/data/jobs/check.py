"""What would be used of a data set, and what not and why, found out before training rather than in the middle of it.

Other systems crash on the first unknown character, train on a black picture in place of a corrupt one, or drop samples
without a word. Here every sample is looked at once: its file is read, its picture decoded, its label normalised and
held against the charset, the length limit and the time steps that its picture gives the model.

The images are read in `look`, in worker processes where asked for; labels and verdicts are handled here, in order.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check_report import MAX_EXAMPLES, CheckReport, Dropped
from inkmill.data.jobs.scan import REASONS, Reason, ScanResult, scan
from inkmill.data.pipeline.resize import BUCKET_STEP, Resize
from inkmill.data.sources.base import Source
from inkmill.data.types import Target, Text
from inkmill.errors import DataError
from inkmill.report import Page
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.normalise import Normaliser


class Judged(NamedTuple):
    """The verdict on n neighbouring samples.

    Attributes:
        labels: n short texts, what the sample would teach, for the report.
        faults: offset, reason (one of the rules' `reasons`) and detail of the samples that cannot be used.
    """

    labels: list[str]
    faults: list[tuple[int, str, str]]


class SetJudge(Protocol):
    """Judges one set, a chunk at a time, and counts what the page shows of it."""

    def judge(self, targets: Sequence[Target | None], sizes: NDArray[np.int32], lost: Collection[int]) -> Judged:
        """Judge n neighbouring samples.

        Args:
            targets: of the samples; None where the target cannot be had.
            sizes: int32 (n, 2), width and height of the pictures; 0 where unknown.
            lost: offsets of samples that cannot be used whatever their target says.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Return what was counted, as plain JSON values by name; it goes into check.json."""
        ...


class SampleRules(Protocol):
    """What a task asks of the samples that it can use. Pictures are looked at here, targets by the rules."""

    @property
    def resize(self) -> Resize:
        """How images meet the model's input."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the rules may leave a sample out, in the order of their tests."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the rules cannot test here, one sentence each."""
        ...

    def digest(self) -> str:
        """Return hex digits that stand for the verdicts of these rules: equal digits, equal verdicts."""
        ...

    def judge(self) -> SetJudge:
        """Return a judge for one set, whose counts start at 0."""
        ...

    def show(self, page: Page, facts: Mapping[str, Any]) -> None:
        """Add what the judge counted in one set to the page of `check`."""
        ...


_VERSION = 1  # raise it when the same set would be judged otherwise


@dataclass(frozen=True)
class CheckRules:
    """What a sample must fulfil to be used.

    Attributes:
        resize: how images meet the model's input.
        charset: the characters; None accepts all.
        normaliser: applied to every label first; the report counts what it changed.
        max_label_length: longest label in characters.
        capacity: gives the time steps of the model for a resized width in pixels; None skips the test.
        required_steps: a codec's, gives the time steps each label needs, (B,).
        texts_only: leave out class names and regions; else such samples are judged by their images alone.
        decode: decode every image; False reads the headers only, a thousand times faster, and misses damaged pixels.
    """

    resize: Resize
    charset: Charset | None = None
    normaliser: Normaliser = field(default_factory=Normaliser)
    max_label_length: int = 25
    capacity: Callable[[int], int] | None = None
    required_steps: Callable[[Sequence[str]], NDArray[np.int64]] | None = None
    texts_only: bool = False
    decode: bool = True

    def digest(self) -> str:
        """Return 16 hex digits that stand for the verdicts of these rules."""
        widths = range(BUCKET_STEP, self.resize.width, BUCKET_STEP) if self.resize.mode == "height" else ()
        # Functions cannot be hashed, what they answer can: every width there is, and labels that tell codecs apart.
        steps = [self.capacity(width) for width in (*widths, self.resize.width)] if self.capacity else None
        needs = self.required_steps(["", "a", "aa", "ab", "aab"]).tolist() if self.required_steps else None
        chars = self.charset.chars if self.charset else None
        facts = [_VERSION, self.resize.digest(), chars, self.normaliser.rule_names, self.max_label_length]
        facts += [steps, needs, self.texts_only, self.decode]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def check(
    source: Source, rules: CheckRules, *, workers: int = 0, progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Look at every sample of a set and report which are fit for use.

    Args:
        source: the set; with workers it is pickled into each.
        rules: what a sample must fulfil.
        workers: processes that read and decode; 0 does it here.
        progress: called with the samples done and their number.

    Raises:
        DataError: a worker process died (most often for want of memory).
    """
    findings = _Findings(source, rules)
    start = 0
    for looks in scan(source, whole=rules.decode, channels=rules.resize.channels, workers=workers):
        findings.add(start, looks)
        start += len(looks.hashes)
        if progress is not None:
            progress(start, len(source))
    return findings.report()


def check_once(
    source: Source,
    rules: CheckRules,
    folder: str | Path,
    *,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Return the report kept in `folder` for this set and these rules, or check and keep it there.

    Raises:
        DataError: a worker process died.
        OutputError: the folder cannot be written.
    """
    rules_digest = rules.digest()
    name = hashlib.sha256(f"{source.fingerprint} {rules_digest}".encode()).hexdigest()[:16]
    file = Path(folder) / f"check-{name}.npz"
    with suppress(DataError):  # none yet, or an older version's
        report = CheckReport.load(file)
        if (report.fingerprint, report.rules_digest, len(report)) == (source.fingerprint, rules_digest, len(source)):
            return report
    report = check(source, rules, workers=workers, progress=progress)
    report.save(file)
    return report


class _Findings:
    """Adds up the chunks of one check."""

    def __init__(self, source: Source, rules: CheckRules) -> None:
        self.source, self.rules = source, rules
        # Its own, so that the counts of one set do not run into those of another.
        self.normaliser = Normaliser(rules.normaliser.rule_names)
        self.steps: dict[int, int] = {}
        self.keep = np.ones(len(source), np.bool_)
        self.sizes = np.zeros((len(source), 2), np.int32)
        self.lengths = np.full(len(source), -1, np.int32)
        self.hashes = np.zeros(len(source), np.uint64)
        self.counts: Counter[str] = Counter()
        self.dropped: dict[str, list[Dropped]] = {reason: [] for reason in REASONS}
        self.characters: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def add(self, start: int, looks: ScanResult) -> None:
        """Judge one chunk."""
        here = slice(start, start + len(looks.hashes))
        self.sizes[here], self.hashes[here] = looks.sizes, looks.hashes
        verdicts = {offset: (reason, detail) for offset, reason, detail in looks.faults}
        labels = self._labels(start, len(looks.hashes), verdicts)
        self.lengths[here] = [-1 if label is None else len(label) for label in labels]
        unknown = self._unknown(labels)
        narrow = self._narrow(labels, looks.sizes)
        for offset, label in enumerate(labels):
            if offset not in verdicts and label is not None:
                verdict = self._judge(label, unknown) or narrow.get(offset)
                if verdict:
                    verdicts[offset] = verdict
        for offset, (reason, detail) in sorted(verdicts.items()):
            self._drop(start + offset, reason, labels[offset] or "", detail)
        self.characters.update(
            "".join(label for offset, label in enumerate(labels) if label and offset not in verdicts)
        )

    def _labels(self, start: int, number: int, verdicts: dict[int, tuple[Reason, str]]) -> list[str | None]:
        labels: list[str | None] = []
        for offset in range(number):
            try:
                target = self.source.target(start + offset)
                labels.append(self.normaliser.apply(target.value) if isinstance(target, Text) else None)
                if self.rules.texts_only and not isinstance(target, Text):
                    verdicts.setdefault(offset, ("no_text", f"it has {type(target).__name__.lower()}, not a text"))
            except DataError as error:
                verdicts.setdefault(offset, ("missing", str(error)))
                labels.append(None)
        return labels

    def _unknown(self, labels: Sequence[str | None]) -> frozenset[str]:
        """Return the characters of a chunk that are not in the charset, and count them."""
        if self.rules.charset is None:
            return frozenset()
        counts = Counter("".join(filter(None, labels)))
        unknown = {char: count for char, count in counts.items() if char not in self.rules.charset}
        self.unknown.update(unknown)
        return frozenset(unknown)

    def _judge(self, label: str, unknown: frozenset[str]) -> tuple[Reason, str] | None:
        if not label:
            return "empty", "the label is empty"
        if unknown and (strange := "".join(dict.fromkeys(char for char in label if char in unknown))):
            return "out_of_charset", f"not in the character list: {strange!r}"
        if len(label) > self.rules.max_label_length:
            return "over_length", f"{len(label)} characters, {self.rules.max_label_length} allowed"
        return None

    def _narrow(self, labels: Sequence[str | None], sizes: NDArray[np.int32]) -> dict[int, tuple[Reason, str]]:
        """Return the samples whose picture gives the model fewer time steps than their label needs."""
        if self.rules.capacity is None or self.rules.required_steps is None:
            return {}
        needed = self.rules.required_steps([label or "" for label in labels])
        known = np.flatnonzero(sizes[:, 1])
        widths = [self.rules.resize.bucket_width(width, height) for width, height in sizes[known].tolist()]
        for width in set(widths) - self.steps.keys():
            self.steps[width] = self.rules.capacity(width)
        return {
            offset: ("too_narrow", f"needs {need} time steps, its width of {width} pixels gives {self.steps[width]}")
            for offset, width, need in zip(known.tolist(), widths, needed[known].tolist(), strict=True)
            if need > self.steps[width]
        }

    def _drop(self, index: int, reason: Reason, label: str, detail: str) -> None:
        self.keep[index] = False
        self.counts[reason] += 1
        if len(self.dropped[reason]) < MAX_EXAMPLES:
            self.dropped[reason].append(Dropped(index, self.source.key(index), label, detail))

    def report(self) -> CheckReport:
        """Return the finished report."""
        charset = self.rules.charset.chars if self.rules.charset else ()
        return CheckReport(
            name=self.source.name,
            fingerprint=self.source.fingerprint,
            rules_digest=self.rules.digest(),
            keep=np.flatnonzero(self.keep),
            sizes=self.sizes,
            label_lengths=self.lengths,
            image_hashes=self.hashes,
            counts={reason: self.counts[reason] for reason in REASONS if self.counts[reason]},
            dropped={reason: found for reason, found in self.dropped.items() if found},
            characters=dict(self.characters.most_common()),
            unknown=dict(self.unknown.most_common()),
            unseen=tuple(char for char in charset if char not in self.characters),
            normalised=dict(self.normaliser.report.most_common()),
        )
