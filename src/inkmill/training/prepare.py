"""From the spec's data sets to what training needs: checked samples, characters, codec."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill import __version__
from inkmill.config.spec import Spec
from inkmill.data.jobs.check import CheckRules, check_once
from inkmill.data.jobs.check_report import CheckReport
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Source, Subset, holdout, open_source
from inkmill.data.types import Text
from inkmill.errors import ConfigError, DataError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step
from inkmill.runtime.reader import input_resize
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import Codec, make_codec
from inkmill.tasks.recognition.normalise import Normaliser

Say = Callable[[str], None]

CHECKED_HERE = 5000
"""Sets up to this size are decoded in this process: starting others takes longer."""


@dataclass(frozen=True)
class PreparedSet:
    """The usable samples of one side.

    Attributes:
        source: only what can be used.
        bucket_widths: int32 (N,) input widths where the width is free, else None.
        lost: samples left out, by reason; those of what is held out of a training set count with the rest of it.
    """

    source: Source
    bucket_widths: NDArray[np.int32] | None
    lost: dict[str, int]


@dataclass(frozen=True)
class Prepared:
    """What training needs to know of its data."""

    train: PreparedSet
    val: dict[str, PreparedSet]
    charset: Charset
    codec: Codec
    normaliser: Normaliser
    resize: Resize

    def card(self, spec: Spec, scores: dict[str, Any], history: Sequence[dict[str, Any]] = ()) -> ModelHeader:
        """Return the card that goes into the model's file; `history` is how that was made which training began with."""
        return ModelHeader(
            model=spec.model,
            charset=list(self.charset.chars),
            normalise=spec.dataset.normalise,
            max_label_length=spec.dataset.max_label_length,
            provenance={
                "inkmill": __version__,
                "made": [*history, step("train", **_beginning(spec))],
                "scores": scores,
                "data": self.summary(),
                "licence": spec.licence.model_dump(),
                "settings": _settings(spec),
            },
        )

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
    told = {"simulates": "int8"} if spec.model.quantize else {}
    return told | ({"source": Path(source).name} if source else {})


def _settings(spec: Spec) -> dict[str, Any]:
    """Return how training differed from the defaults; without paths, for the file may travel."""
    paths = {"results_dir", "resume_training_checkpoint_path", "pretrained_model_path", "pretrained_character_list"}
    differs = spec.train.model_dump(mode="json", exclude_defaults=True, exclude=paths)
    differs.setdefault("optim", {})["lr"] = spec.train.optim.rate  # also where the optimiser chose it
    random = spec.dataset.augmentation.model_dump(mode="json", exclude_defaults=True, exclude={"albumentations"})
    return {"batch_size": spec.dataset.batch_size, "train": differs, "augmentation": random}


def prepare(spec: Spec, cache: Path, say: Say) -> Prepared:
    """Open, split and check the data of a run, and settle its characters.

    Args:
        spec: the resolved spec.
        cache: folder where verdicts are kept, so that an unchanged set is not decoded again.
        say: prints one line.

    Raises:
        DataError: no data, nothing usable, or more lost than dataset.max_lost.
        CharsetError: the character list cannot be used.
    """
    train, val = _open(spec, "train", say), _open(spec, "val", say)
    if not train:
        raise ConfigError("train needs data: give dataset.train=PATH, or dataset.train_dataset_dir")
    parts = [] if val else [_parts(source, spec.dataset.val_fraction, say) for source in train]
    normaliser = Normaliser(spec.dataset.normalise)
    charset = _charset(spec, train, normaliser, say)
    rules = check_rules(spec, charset)
    # As `inkmill check` does, which knows of no parts: so both refuse the same sets.
    checked = [_checked(source, rules, spec, cache, say) for source in train]
    if val:
        train_sets = [_usable(*one, rules.resize) for one in checked]
        val_sets = [_usable(*_checked(source, rules, spec, cache, say), rules.resize) for source in val]
    else:
        train_sets = [_usable(*one, rules.resize, kept) for one, (kept, _) in zip(checked, parts, strict=True)]
        val_sets = [_usable(*one, rules.resize, held) for one, (_, held) in zip(checked, parts, strict=True)]
        val_sets = [replace(one, lost={}) for one in val_sets]  # counted once, with the part to train on
    weights = [one.weight for one in spec.dataset.sources("train")]
    joined = train_sets[0] if weights == [1.0] else _mixed(train_sets, weights)
    codec = make_codec(spec.model.prediction, charset, spec.dataset.max_label_length)
    named: dict[str, PreparedSet] = {}
    for one in val_sets:
        named[fresh_name(one.source.name, named)] = one
    return Prepared(joined, named, charset, codec, normaliser, rules.resize)


def check_rules(spec: Spec, charset: Charset) -> CheckRules:
    """Return what a sample must fulfil to be trained on; without torch `capacity` is None, so widths go unchecked."""
    codec = make_codec(spec.model.prediction, charset, spec.dataset.max_label_length)
    return CheckRules(
        resize=input_resize(spec.model),
        charset=charset,
        normaliser=Normaliser(spec.dataset.normalise),
        max_label_length=spec.dataset.max_label_length,
        capacity=_capacity(spec, codec.num_classes),
        required_steps=codec.required_steps,
        texts_only=True,
    )


def _capacity(spec: Spec, num_classes: int) -> Callable[[int], int] | None:
    """Return the function from input width to the model's time steps, None without torch."""
    try:
        import torch
    except ModuleNotFoundError:  # `check` runs on the base install
        return None
    from inkmill.tasks.recognition.model import build_recognizer

    settings = spec.model.model_copy(update={"backbone_pretrained": False})
    with torch.device("meta"):  # shapes without weights
        model = build_recognizer(settings, num_classes, spec.dataset.max_label_length)
    return lambda width: model.time_steps(spec.model.input_height, width)


def _open(spec: Spec, side: Literal["train", "val"], say: Say) -> list[Source]:
    sources = []
    for one in spec.dataset.sources(side):
        source = open_source(one, label_pattern=spec.dataset.label_pattern)
        if len(source) == 0:
            raise DataError(f"{one.path}: the data set is empty")
        say(f"{source.name}: {len(source):,} samples")
        for note in source.notes:
            say(f"  {note}")
        sources.append(source)
    return sources


def _parts(source: Source, fraction: float, say: Say) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and those to hold out for validation."""
    kept, held = holdout(source, fraction)
    say(f"{source.name}: {len(held):,} samples held out for validation (dataset.val_fraction={fraction})")
    return kept, held


def fresh_name(name: str, taken: Container[str]) -> str:
    """Return `name`, with a number where it is taken: two sets may have the same file name."""
    number = 2
    fresh = name
    while fresh in taken:
        fresh, number = f"{name}-{number}", number + 1
    return fresh


def _charset(spec: Spec, sources: list[Source], normaliser: Normaliser, say: Say) -> Charset:
    if spec.dataset.character_list_file:
        charset = Charset.from_file(spec.dataset.character_list_file)
        for line in charset.notes:
            say(f"{spec.dataset.character_list_file}: {line}")
        return charset
    texts = (normaliser.apply(text) for source in sources for text in texts_of(source))
    charset = Charset.from_texts(texts)
    say(f"characters from the training labels: {len(charset)}")
    return charset


def texts_of(source: Source) -> Iterator[str]:
    """Yield the texts of a set; raises DataError where it holds something else."""
    for index in range(len(source)):
        target = source.target(index)
        if not isinstance(target, Text):
            raise DataError(
                f"{source.name}: {source.key(index)} has {type(target).__name__.lower()}; a reader learns from texts"
            )
        yield target.value


def _checked(source: Source, rules: CheckRules, spec: Spec, cache: Path, say: Say) -> tuple[Source, CheckReport]:
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
            "of one of its two parts, for training and for validation: mend them, or give dataset.val"
        )
    widths = None
    if resize.mode == "height":
        widths = np.array([resize.bucket_width(int(w), int(h)) for w, h in report.sizes[rows]], dtype=np.int32)
    return PreparedSet(source if len(rows) == len(source) else Subset(source, rows), widths, dict(report.counts))


def _mixed(sets: list[PreparedSet], weights: list[float]) -> PreparedSet:
    lost: dict[str, int] = {}
    for one in sets:
        for reason, count in one.lost.items():
            lost[reason] = lost.get(reason, 0) + count
    # The loader measures the widths of a mix itself.
    return PreparedSet(Mix([one.source for one in sets], weights), None, lost)
