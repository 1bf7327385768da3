"""What would be used of a data set, and what not and why, found out before training rather than in the middle of it.

Other systems crash on the first unknown label, train on a black picture in place of a corrupt one, or drop samples
without a word. Here every sample is looked at once: its file is read, its picture decoded, and its target held against
the rules of the task that is to learn from it. This module knows no task: it defines the protocol that tasks implement.

The images are read in `scan`, in worker processes where asked for; targets and verdicts are handled here, in order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inkmill.data.jobs.check_report import MAX_EXAMPLES, CheckReport, Dropped
from inkmill.data.jobs.scan import REASONS, ScanResult, scan
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources.base import Source
from inkmill.data.types import Target
from inkmill.errors import DataError
from inkmill.report import Page

_TARGETS_AT_ONCE = 10_000


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


def check(
    source: Source, rules: SampleRules, *, workers: int = 0, progress: Callable[[int, int], None] | None = None
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
    for scanned in scan(source, channels=rules.resize.channels, workers=workers):
        findings.add(start, scanned)
        start += len(scanned.hashes)
        if progress is not None:
            progress(start, len(source))
    return findings.report()


def check_once(
    source: Source,
    rules: SampleRules,
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


def check_targets(
    source: Source, rules: SampleRules, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Return which of some rows can be used as far as their targets tell, and how many are left out, by reason.

    No image is opened, so this is quick for any set; damaged pictures are found when they are loaded.
    """
    judge, lost, counts = rules.judge(), np.zeros(len(rows), np.bool_), Counter[str]()
    for start in range(0, len(rows), _TARGETS_AT_ONCE):
        some = rows[start : start + _TARGETS_AT_ONCE]
        targets = [source.target(row) for row in some.tolist()]
        for offset, reason, _ in judge.judge(targets, np.zeros((len(some), 2), np.int32), ()).faults:
            lost[start + offset] = True
            counts[reason] += 1
    return rows[~lost], dict(counts)


class _Findings:
    """Adds up the chunks of one check."""

    def __init__(self, source: Source, rules: SampleRules) -> None:
        self.source, self.rules, self.judge = source, rules, rules.judge()
        self.keep = np.ones(len(source), np.bool_)
        self.sizes = np.zeros((len(source), 2), np.int32)
        self.hashes = np.zeros(len(source), np.uint64)
        self.looks = np.zeros((len(source), 2), np.uint64)
        self.counts: Counter[str] = Counter()
        # A sample counts under the first reason it fails: those of its picture come before those of its target.
        self.reasons = (*REASONS, *rules.reasons)
        self.dropped: dict[str, list[Dropped]] = {reason: [] for reason in self.reasons}

    def add(self, start: int, scanned: ScanResult) -> None:
        """Judge one chunk."""
        # 1. What the pictures say.
        here = slice(start, start + len(scanned.hashes))
        self.sizes[here], self.hashes[here], self.looks[here] = scanned.sizes, scanned.hashes, scanned.looks
        faults: dict[int, tuple[str, str]] = {offset: (reason, detail) for offset, reason, detail in scanned.faults}
        # 2. What the targets say; one that cannot be had counts as a missing file.
        targets: list[Target | None] = []
        for offset in range(len(scanned.hashes)):
            try:
                targets.append(self.source.target(start + offset))
            except DataError as error:
                faults.setdefault(offset, ("missing", str(error)))
                targets.append(None)
        judged = self.judge.judge(targets, scanned.sizes, faults.keys())
        for offset, reason, detail in judged.faults:
            faults.setdefault(offset, (reason, detail))
        # 3. What is left out.
        for offset, (reason, detail) in sorted(faults.items()):
            self._drop(start + offset, reason, judged.labels[offset], detail)

    def _drop(self, index: int, reason: str, label: str, detail: str) -> None:
        self.keep[index] = False
        self.counts[reason] += 1
        if len(self.dropped[reason]) < MAX_EXAMPLES:
            self.dropped[reason].append(Dropped(index, self.source.key(index), label, detail))

    def report(self) -> CheckReport:
        """Return the finished report."""
        return CheckReport(
            name=self.source.name,
            fingerprint=self.source.fingerprint,
            rules_digest=self.rules.digest(),
            keep=np.flatnonzero(self.keep),
            sizes=self.sizes,
            image_hashes=self.hashes,
            image_looks=self.looks,
            counts={reason: self.counts[reason] for reason in self.reasons if self.counts[reason]},
            dropped={reason: found for reason, found in self.dropped.items() if found},
            facts=self.judge.facts(),
        )
