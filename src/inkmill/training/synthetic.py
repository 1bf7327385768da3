"""Synthetic text in a training run: which characters it may show, and how it joins the real sets.

On a GPU it is drawn where it is trained on, and each batch is composed of real and synthetic samples. On a CPU it is a
data set among the others, drawn by the loader's processes; every epoch then shows the same samples, augmented anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from inkmill.config.spec import Spec
from inkmill.data.jobs.check import check_targets
from inkmill.data.loaders import Loader, LoadPlan
from inkmill.data.loaders.plan import measure_buckets
from inkmill.data.sources import Concat, Source
from inkmill.data.sources.base import fingerprint
from inkmill.data.types import Target, Text
from inkmill.errors import ConfigError, DataError
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.engine import Settings
from inkmill.synth.params import MAX_CHARACTERS
from inkmill.synth.source import SyntheticSource
from inkmill.synth.stream import COLUMNS_PER_CHARACTER
from inkmill.tasks.base import Say, Task

HELD_OUT = 512
"""Synthetic samples for validation, where nothing else is given."""
HELD_OUT_SEED = 2**31
"""No run has this seed."""


class Alphabet(Source):
    """One sample a character, without images: what synthetic text may show, for a task to settle on and to judge."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__("synthetic text")
        self.texts = list(texts)

    def __len__(self) -> int:
        return len(self.texts)

    def key(self, index: int) -> str:
        """See Source.key."""
        return f"character-{index}"

    def target(self, index: int) -> Target:
        """See Source.target."""
        return Text(self.texts[self._checked(index)])

    def image(self, index: int) -> bytes:
        """See Source.image."""
        raise DataError("a character of the alphabet has no image")

    @property
    def fingerprint(self) -> str:
        """See Source.fingerprint."""
        return fingerprint("alphabet", "".join(self.texts))


def check_share(spec: Spec, sets: int) -> None:
    """Refuse a share of synthetic samples that does not go with the number of real training sets.

    Raises:
        ConfigError: no data at all, or no place for the real or the synthetic ones.
    """
    share = spec.dataset.synthetic.share
    if not sets and share == 0:
        raise ConfigError(
            "train needs data: give dataset.train=PATH, or dataset.train_dataset_dir, or dataset.synthetic.share=1"
        )
    if not sets and share < 1:
        raise ConfigError(f"dataset.synthetic.share={share:g} leaves the rest to real sets: give dataset.train, or 1")
    if sets and share == 1:
        raise ConfigError("dataset.synthetic.share=1 leaves no place for dataset.train: give a smaller share")


def alphabet(spec: Spec) -> Alphabet:
    """Return the characters that synthetic text knows: the shipped reader's, and those of the spec's own list."""
    characters = dict.fromkeys(CHARACTERS)
    if spec.dataset.character_list_file:  # whether it can be read, the task says
        file = Path(spec.dataset.character_list_file)
        listed = file.read_text("utf-8", errors="ignore") if file.is_file() else ""
        characters |= dict.fromkeys(character for character in listed if character.isprintable())
    return Alphabet(list(characters))


def settings_of(spec: Spec, task: Task, say: Say) -> Settings:
    """Return what synthetic text is drawn from: as many of its characters as the task can be asked to read.

    Raises:
        ConfigError: the task reads none of them.
    """
    rules = task.rules()
    known = alphabet(spec)
    marks = Alphabet([text for text in known.texts if text != " "])
    kept, _ = check_targets(marks, rules, np.arange(len(marks)))
    characters = "".join(marks.texts[row] for row in kept.tolist())
    if not characters:
        raise ConfigError("the model reads none of the characters of synthetic text: see dataset.character_list_file")
    space = Alphabet([f"{characters[0]} {characters[0]}"])
    if len(check_targets(space, rules, np.arange(1))[0]):
        characters = f" {characters}"
    # A text of nearly as many characters as the widest image has steps could not be told from its neighbours'.
    widest = max(task.resize.widths()) * 3 // (4 * COLUMNS_PER_CHARACTER)
    longest = max(1, min(MAX_CHARACTERS, spec.dataset.max_label_length, widest))
    say(f"synthetic text: {len(characters)} characters, up to {longest} in a text")
    return Settings(spec.dataset.synthetic, characters, longest)


def held_out(settings: Settings) -> SyntheticSource:
    """Return synthetic samples that no run trains on."""
    return SyntheticSource(settings, HELD_OUT, HELD_OUT_SEED, name="synthetic")


def alone(settings: Settings, seed: int = 0) -> SyntheticSource:
    """Return an epoch's samples, where there are no real ones."""
    return SyntheticSource(settings, settings.spec.samples, seed)


def with_files(plan: LoadPlan, settings: Settings, real: bool) -> LoadPlan:
    """Return a plan with synthetic samples as files, for a training on the CPU, beside the plan's or alone."""
    share = settings.spec.share
    count = max(1, round(len(plan.source) * share / (1 - share))) if real else settings.spec.samples
    synthetic = SyntheticSource(settings, count, plan.seed)
    _ = synthetic.engine  # what is wrong with fonts and texts is said here rather than by a loader's process
    source = Concat([plan.source, synthetic]) if real else synthetic
    if not plan.resize.buckets:
        return replace(plan, source=source, bucket_widths=None)
    widths = np.array([plan.resize.bucket_width(*size) for size in synthetic.sizes().tolist()], np.int32)
    if real:
        known = plan.bucket_widths if plan.bucket_widths is not None else measure_buckets(plan.source, plan.resize)
        widths = np.concatenate([known, widths]).astype(np.int32)
    return replace(plan, source=source, bucket_widths=widths)


def on_device(
    plan: LoadPlan, settings: Settings, device: torch.device, real: Callable[[LoadPlan], Loader] | None
) -> Loader:
    """Return the loader of a training on a GPU: synthetic samples drawn there, and real ones beside them.

    Args:
        plan: of the real samples; its source is not read where there are none.
        settings: of the synthetic ones.
        device: where both go.
        real: opens the loader of a plan; None where all samples are synthetic.

    Raises:
        ConfigError: the batch is too small for the share.
    """
    from inkmill.data.loaders.mix import MixedLoader, split_batch
    from inkmill.synth.loader import SyntheticLoader

    synthetic = replace(plan, source=alone(settings, plan.seed), bucket_widths=None, augmentation=None)
    if real is None:
        return SyntheticLoader(synthetic, device)
    share = settings.spec.share
    sizes = split_batch(plan.batch_size, [1 - share, share])
    parts = [real(replace(plan, batch_size=sizes[0])), SyntheticLoader(replace(synthetic, batch_size=sizes[1]), device)]
    return MixedLoader(parts, device)
