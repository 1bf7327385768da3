"""Synthetic text in a training run: what it may show, how it joins real sets, and that a reader learns from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import ConfigError
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.fonts import CARRIED
from inkmill.synth.source import SyntheticSource
from inkmill.training.prepare import prepare, settle
from inkmill.training.run import train
from inkmill.training.synthetic import alphabet, check_share, settings_of, with_files

MakeSpec = Callable[..., Spec]
FONT = f"dataset.synthetic.fonts={CARRIED / 'OpenSans-Regular.ttf'}"


@pytest.mark.parametrize(
    ("share", "sets", "message"),
    [
        (0, 0, r"dataset.train=PATH.*share=1"),
        (0.5, 0, r"leaves the rest to real sets"),
        (1, 2, r"leaves no place for dataset.train"),
    ],
)
def test_a_share_that_does_not_go_with_the_sets_is_refused(share: float, sets: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_share(load_spec(None, [f"dataset.synthetic.share={share}"]), sets)


def test_a_reader_without_data_knows_all_characters_of_synthetic_text() -> None:
    spec = load_spec(None, ["dataset.synthetic.share=1"])
    task = settle(spec, [alphabet(spec)], lambda line: None)
    settings = settings_of(spec, task, lambda line: None)
    assert sorted(settings.characters) == sorted(CHARACTERS) == sorted(task.class_names[1:])
    assert settings.longest == 18  # three quarters of the 25 steps of an input of 100 columns


def test_a_character_list_says_what_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "digits.txt").write_text("\n".join("0123456789"), "utf-8")
    spec = load_spec(
        None,
        ["dataset.synthetic.share=1", f"dataset.character_list_file={tmp_path}/digits.txt", "model.prediction=CTC"],
    )
    settings = settings_of(spec, settle(spec, [alphabet(spec)], lambda line: None), lambda line: None)
    assert sorted(settings.characters) == sorted("0123456789")


@pytest.mark.slow
def test_on_a_cpu_synthetic_files_get_their_share_and_their_sizes(small_spec: MakeSpec, tmp_path: Path) -> None:
    spec = small_spec("dataset.synthetic.share=0.75", FONT)
    prepared = prepare(spec, tmp_path / "check", lambda line: None)
    assert prepared.synthetic is not None
    real = prepared.train.source
    resize = Resize(32, 128, 1, "aspect")
    plan = with_files(LoadPlan(real, resize, seed=3), prepared.synthetic, real=True)
    assert len(plan.source) == 4 * len(real)
    assert plan.bucket_widths is not None
    assert len(plan.bucket_widths) == len(plan.source)
    assert set(np.unique(plan.bucket_widths[len(real) :])) == {64, 96, 112, 128}
    assert isinstance(plan.source.parts()[1], SyntheticSource)


@pytest.mark.slow
def test_a_reader_trains_on_nothing_but_synthetic_text(tmp_path: Path) -> None:
    given = [
        *("dataset.synthetic.share=1", "dataset.synthetic.samples=96", FONT, "model.backbone=Tiny"),
        *("train.num_epochs=1", "dataset.workers=0", "dataset.batch_size=32", f"results_dir={tmp_path}"),
    ]
    result = train(load_spec(None, given))
    assert result.metrics["data"]["train"]["used"] == 96
    assert np.isfinite(result.metrics["history"][0]["val_loss"])
