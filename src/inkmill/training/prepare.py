"""From the spec's data sets to what training needs: the one place that opens and filters sets and settles the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.config.spec import Spec
from inkmill.data.jobs.check import SampleRules, check_once, check_targets
from inkmill.data.jobs.check_report import CheckReport
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Source, Subset, fresh_name, holdout, open_source
from inkmill.errors import DataError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step
from inkmill.synth.engine import Settings
from inkmill.synth.source import SyntheticSource
from inkmill.tasks import find_task
from inkmill.tasks.base import Say, Task
from inkmill.training.synthetic import alone, alphabet, check_share, held_out, settings_of
from inkmill.version import __version__

CHECKED_HERE = 5000
"""Sets up to this size are decoded in this process: starting others takes longer."""


@dataclass(frozen=True)
class PreparedSet:
    """The usable samples of one side.

    Attributes:
        source: only what can be used.
        bucket_widths: int32 (N,) input widths where the width is free, else None.
        lost: samples left out, by reason; those of what is held out of a training set count with the rest of it.
        sizes: int32 (N, 2) width and height of whole pictures, where they are read as such and known.
    """

    source: Source
    bucket_widths: NDArray[np.int32] | None
    lost: dict[str, int]
    sizes: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Prepared:
    """What training needs to know of its data.

    Attributes:
        train: the training sets, mixed.
        val: validation sets by name.
        task: settled on the training labels.
        synthetic: what synthetic samples are drawn from, None for none.
        real: whether `train` holds real samples; else it stands for the synthetic ones.
    """

    train: PreparedSet
    val: dict[str, PreparedSet]
    task: Task
    synthetic: Settings | None = None
    real: bool = True

    @property
    def resize(self) -> Resize:
        """How images are brought to the input size."""
        return self.task.resize

    def header(self, spec: Spec, scores: dict[str, Any], history: Sequence[dict[str, Any]] = ()) -> ModelHeader:
        """Return the header of the model's file.

        Args:
            spec: the resolved spec.
            scores: of the best validation so far.
            history: how the file was made that training started from.
        """
        return ModelHeader(
            task=self.task.name,
            model=spec.model,
            task_header=self.task.header(),
            provenance={
                "inkmill": __version__,
                "made": [*history, step("train", **_beginning(spec))],
                "scores": scores,
                "data": self.summary(),
                "licence": spec.licence.model_dump(),
                "settings": _settings(spec) | self._pattern(spec),
            },
        )

    def _pattern(self, spec: Spec) -> dict[str, str]:
        """Return dataset.label_pattern where training labels came from names; `evaluate` compares it."""
        named = any(leaf.label_pattern for leaf in self.train.source.leaves())
        return {"label_pattern": spec.dataset.label_pattern} if named else {}

    def summary(self) -> dict[str, Any]:
        """Return how many samples are used and lost, by set and reason, and which data these are."""
        sets = {"train": self.train, **{f"val/{name}": one for name, one in self.val.items()}}
        return {
            name: {"used": len(one.source), "lost": one.lost, "fingerprint": one.source.fingerprint}
            for name, one in sets.items()
        }


def _beginning(spec: Spec) -> dict[str, Any]:
    """Return what the history says of the file that training began with; the name alone, for the file may travel."""
    source = spec.train.pretrained_model_path or spec.model.pruned_graph_path or spec.model.quantize_model_path
    facts = {"simulates": "int8"} if spec.model.quantize else {}
    return facts | ({"source": Path(source).name} if source else {})


def _settings(spec: Spec) -> dict[str, Any]:
    """Return how training differed from the defaults; without paths, for the file may travel."""
    paths = {"results_dir", "resume_training_checkpoint_path", "pretrained_model_path", "pretrained_character_list"}
    differs = spec.train.model_dump(mode="json", exclude_defaults=True, exclude=paths)
    differs.setdefault("optim", {})["lr"] = spec.train.optim.rate  # also where the optimiser chose it
    random = spec.dataset.augmentation.model_dump(mode="json", exclude_defaults=True, exclude={"albumentations"})
    return {"batch_size": spec.dataset.batch_size, "train": differs, "augmentation": random}


def prepare(spec: Spec, cache: Path, say: Say) -> Prepared:
    """Open, split and check the data of a run, and settle its task.

    Args:
        spec: the resolved spec.
        cache: folder where verdicts are kept, so that an unchanged set is not decoded again.
        say: prints one line.

    Raises:
        DataError: no data, nothing usable, or more lost than dataset.max_lost.
        InkmillError: the task cannot be settled, for example for want of a usable character list.
    """
    # 1. Open the sets.
    train, val = open_sets(spec, "train", say), open_sets(spec, "val", say)
    check_share(spec, len(train))
    # 2. Hold some out where no validation set is given.
    parts = [] if val else [_parts(source, spec.dataset.val_fraction, say) for source in train]
    # 3. Settle the task on all training labels: those held out may have characters of their own.
    drawn = spec.dataset.synthetic.share > 0
    task = settle(spec, [*train, alphabet(spec)] if drawn else train, say)
    synthetic = settings_of(spec, task, say) if drawn else None
    rules = task.rules()
    # 4. Check whole sets, as `inkmill check` does, which knows of no parts: so both refuse the same sets.
    checked = [_checked(source, rules, spec, cache, say) for source in train]
    # 5. Leave out what cannot be used.
    if val:
        train_sets = [_usable(*one, rules.resize) for one in checked]
        val_sets = [_usable(*_checked(source, rules, spec, cache, say), rules.resize) for source in val]
    else:
        train_sets = [_usable(*one, rules.resize, kept) for one, (kept, _) in zip(checked, parts, strict=True)]
        val_sets = [_usable(*one, rules.resize, held) for one, (_, held) in zip(checked, parts, strict=True)]
        val_sets = [replace(one, lost={}) for one in val_sets]  # counted once, with the part to train on
    # 6. Mix the training sets, show rare classes more often, and name the validation sets.
    if train:
        weights = [one.weight for one in spec.dataset.sources("train")]
        joined = train_sets[0] if weights == [1.0] else _mixed(train_sets, weights)
        joined = _repeated(joined, task, say)
    elif synthetic is not None:
        joined = PreparedSet(alone(synthetic), None, {})
        val_sets = val_sets or [_drawn(held_out(synthetic), rules.resize)]
    named: dict[str, PreparedSet] = {}
    for one in val_sets:
        named[fresh_name(one.source.name, named)] = one
    return Prepared(joined, named, task, synthetic, bool(train))


def open_sets(spec: Spec, side: Literal["train", "val"], say: Say) -> list[Source]:
    """Open the sets of one side and print what each was detected as.

    Raises:
        DataError: one is missing, unknown or empty.
    """
    sources = []
    for one in spec.dataset.sources(side):
        source = open_source(
            one, label_pattern=spec.dataset.label_pattern, folder_format=find_task(spec.task).folder_format
        )
        if len(source) == 0:
            raise DataError(f"{one.path}: the data set is empty; expected images with labels")
        say(f"{source.name}: {len(source):,} samples")
        for note in source.notes:
            say(f"  {note}")
        sources.append(source)
    return sources


def settle(spec: Spec, sources: Sequence[Source], say: Say) -> Task:
    """Return the spec's task, settled on training sets.

    Raises:
        ConfigError: no such task.
        InkmillError: see Task.from_data.
    """
    return find_task(spec.task).from_data(spec, sources, say)


def prepare_targets(
    spec: Spec, source: Source, rows: NDArray[np.int64], say: Say, task: Task | None = None
) -> Prepared:
    """Return some rows of a set as a training set, without those whose target cannot be used; no image is opened.

    Args:
        spec: the resolved spec.
        source: all training samples.
        rows: int64, those that may be used.
        say: prints one line.
        task: a settled one; by default the task is settled on these rows.

    Raises:
        DataError: none of the rows can be used.
    """
    some = Subset(source, rows)
    task = task or settle(spec, [some], say)
    kept, lost = check_targets(some, task.rules(), np.arange(len(rows)))
    if not len(kept):
        raise DataError(f"{source.name}: no label of {len(rows):,} samples can be used; `inkmill check` shows why")
    if lost:
        count = len(rows) - len(kept)
        say(f"{count:,} of {len(rows):,} samples have labels that cannot be used; `inkmill check` shows why")
    return Prepared(PreparedSet(Subset(source, rows[kept]), None, lost), {}, task)


def _parts(source: Source, fraction: float, say: Say) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and those to hold out for validation."""
    kept, held = holdout(source, fraction)
    say(f"{source.name}: {len(held):,} samples held out for validation (dataset.val_fraction={fraction})")
    return kept, held


def _checked(source: Source, rules: SampleRules, spec: Spec, cache: Path, say: Say) -> tuple[Source, CheckReport]:
    workers = spec.dataset.workers if len(source) > CHECKED_HERE else 0
    report = check_once(source, rules, cache, workers=workers)
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in report.counts.items())
    if report.lost:
        say(f"{source.name}: {report.lost:,} of {len(source):,} samples cannot be used: {reasons}")
        for reason, examples in report.dropped.items():
            say(f"  e.g. {reason.replace('_', ' ')}: {examples[0].key} {examples[0].detail}")
    if report.lost_share > spec.dataset.max_lost:
        raise DataError(
            f"{source.name}: {report.lost_share:.1%} of its samples cannot be used ({reasons}), more than "
            f"dataset.max_lost={spec.dataset.max_lost:g}; `inkmill check` shows which"
        )
    return source, report


def _usable(source: Source, report: CheckReport, resize: Resize, part: NDArray[np.int64] | None = None) -> PreparedSet:
    """Return what can be used of a set, or of the part of its rows that is given."""
    rows = report.keep if part is None else np.intersect1d(part, report.keep, assume_unique=True)
    if not len(rows):
        if part is None or not len(report.keep):
            raise DataError(f"{source.name}: none of its {len(source)} samples can be used; `inkmill check` shows why")
        raise DataError(
            f"{source.name}: {len(report.keep)} of its {len(source)} samples can be used, and none of the {len(part)} "
            "of one of its two parts, for training and for validation: fix them, or give dataset.val"
        )
    widths = None
    if resize.buckets:
        widths = np.array([resize.bucket_width(int(w), int(h)) for w, h in report.sizes[rows]], dtype=np.int32)
    sizes = report.sizes[rows] if resize.mode == "page" else None
    used = source if len(rows) == len(source) else Subset(source, rows)
    return PreparedSet(used, widths, dict(report.counts), sizes)


def _drawn(source: SyntheticSource, resize: Resize) -> PreparedSet:
    widths = [resize.bucket_width(*size) for size in source.sizes().tolist()] if resize.buckets else None
    return PreparedSet(source, None if widths is None else np.array(widths, np.int32), {})


def _repeated(one: PreparedSet, task: Task, say: Say) -> PreparedSet:
    """Return the set with its samples as often as the task wants to see them; each copy is augmented by itself."""
    repeats = task.repeats(one.source)
    if repeats is None:
        return one
    # A fraction is spread evenly: the running sum passes a whole number once for every copy.
    ends = np.floor(np.cumsum(repeats) + 1e-9).astype(np.int64)
    rows = np.repeat(np.arange(len(repeats)), np.diff(ends, prepend=0))
    say(f"an epoch shows {len(rows):,} samples: {len(rows) - len(repeats):,} of them are repeats of rare classes")
    widths = None if one.bucket_widths is None else one.bucket_widths[rows]
    sizes = None if one.sizes is None else one.sizes[rows]
    return replace(one, source=Subset(one.source, rows), bucket_widths=widths, sizes=sizes)


def _mixed(sets: list[PreparedSet], weights: list[float]) -> PreparedSet:
    lost: dict[str, int] = {}
    for one in sets:
        for reason, count in one.lost.items():
            lost[reason] = lost.get(reason, 0) + count
    # The loader measures the widths or sizes of a mix itself.
    return PreparedSet(Mix([one.source for one in sets], weights), None, lost)
