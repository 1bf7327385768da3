"""A random part of the training data, ready to train on: enough to measure with, whatever the size of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from inkmill.config.spec import Spec
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import Mix, Source, Subset, open_source
from inkmill.diagnose.storage import Storage
from inkmill.errors import ConfigError, DataError
from inkmill.machine import cores
from inkmill.tasks.base import Say, Task
from inkmill.training.prepare import Prepared, prepare_targets

MOST_SAMPLES = 20_000
MOST_TO_TRY = 100_000
"""Where a plan is tried that makes many large batches at a time and reads each from the disk."""

_ROUNDS = 4  # of all workers, in an epoch that is read from the disk


@dataclass(frozen=True)
class Sampled:
    """A part of the data and how large the whole is.

    Attributes:
        prepared: what training needs; no validation sets.
        whole: all training samples.
        taken: how many of them were chosen, those included whose labels cannot be used.
    """

    prepared: Prepared
    whole: Source
    taken: int

    @property
    def source(self) -> Source:
        """The samples to measure with."""
        return self.prepared.train.source

    def cut(self, most: int) -> Sampled:
        """Return at most `most` of the samples: the first ones, which are in no order."""
        if len(self.source) <= most:
            return self
        part = replace(self.prepared.train, source=Subset(self.source, np.arange(most)))
        return replace(self, prepared=replace(self.prepared, train=part), taken=most)


def open_whole(spec: Spec, say: Say) -> Source:
    """Open all training sets of a spec as one source.

    Raises:
        ConfigError: none is named.
        DataError: one is missing or unknown.
    """
    wanted = spec.dataset.sources("train")
    if not wanted:
        raise ConfigError("diagnose needs data: give dataset.train=PATH, or dataset.train_dataset_dir")
    sources = [open_source(one, label_pattern=spec.dataset.label_pattern) for one in wanted]
    for source in sources:
        say(f"{source.name}: {len(source):,} samples")
    weights = [one.weight for one in wanted]
    return sources[0] if weights == [1.0] else Mix(sources, weights)


def take_sample(
    spec: Spec, whole: Source, say: Say, most: int = MOST_SAMPLES, seed: int = 0, task: Task | None = None
) -> Sampled:
    """Take a random part of the data, without the samples whose label cannot be trained on; no image is opened.

    Args:
        spec: the resolved spec.
        whole: all training samples.
        say: prints one line.
        most: size of the part.
        seed: of the choice.
        task: a settled one; by default it is settled on the part's labels.

    Raises:
        DataError: no label of the part can be used.
    """
    if not len(whole):
        raise DataError(f"{whole.name} holds no samples: there is nothing to measure with")
    rows = np.random.default_rng(seed).choice(len(whole), min(most, len(whole)), replace=False).astype(np.int64)
    return Sampled(prepare_targets(spec, whole, rows, say, task), whole, len(rows))


def affordable(sampled: Sampled, spec: Spec, storage: Storage, pass_s: float) -> Sampled:
    """Cut the sample so that reading it cold takes so long, and so does making its batches; two batches at least."""
    began, done = perf_counter(), 0
    for row in range(min(64, len(sampled.source))):
        try:
            decode(sampled.source.get(row).image, sampled.prepared.resize.channels)
        except (DataError, OSError):
            continue
        done += 1
        if perf_counter() - began > pass_s:
            break
    makers = max(1, min(spec.dataset.workers, cores()))
    each = max((perf_counter() - began) / max(1, done) / makers, (storage.cold_s or 0.0) / storage.at_a_time)
    return sampled.cut(min(MOST_SAMPLES, max(2 * spec.dataset.batch_size, int(pass_s / each))))


def enough_to_try(sampled: Sampled, spec: Spec) -> Sampled:
    """Return a larger part of the data where this one has too few batches for `spec` to be read from the disk.

    All that is made ahead, some times over: else what is read comes from memory, where it was read just before. Where
    widths are free all pictures would have to be looked at first, and the sample stays as it is.
    """
    needed = min(_ROUNDS * max(1, spec.dataset.workers) * spec.dataset.batch_size, MOST_TO_TRY)
    if sampled.taken >= min(needed, len(sampled.whole)) or sampled.prepared.resize.mode == "height":
        return sampled
    return take_sample(spec, sampled.whole, lambda line: None, needed, task=sampled.prepared.task)
