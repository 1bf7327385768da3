"""Trainings one after the other from one spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from inkmill.config.load import load_spec
from inkmill.config.stages import stages_of
from inkmill.errors import ConfigError

RECIPE = """
results_dir: out
model: {backbone: Tiny, input_width: 64}
train: {num_epochs: 5, optim: {name: adamw, lr: 1.0e-3}}
stages:
  first: {}
  second: {train: {num_epochs: 2, optim: {lr: 1.0e-4}}, dataset: {train: [words]}}
"""


def test_a_stage_is_the_spec_with_its_keys_changed(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    spec = load_spec(tmp_path / "recipe.yaml", ["stages.second.train.num_epochs=3", "encryption_key=secret"])
    first, second = stages_of(spec).values()
    assert (first.train.num_epochs, second.train.num_epochs) == (5, 3)
    assert (first.train.optim.lr, second.train.optim.lr) == (1e-3, 1e-4)
    assert first.train.optim.name == second.train.optim.name == "adamw"
    assert [one.path for one in second.dataset.train] == ["words"]
    assert not first.dataset.train
    assert [stage.results_dir for stage in (first, second)] == ["out/first", "out/second"]
    assert first.encryption_key == second.encryption_key == "secret"
    assert not first.stages


def test_a_spec_without_stages_is_its_own() -> None:
    spec = load_spec(None, [])
    assert stages_of(spec) == {"": spec}


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("first: {train: {epochs: 3}}", r"stages\.first\.train\.epochs: unknown key"),
        ("first: {model: {input_width: 3}}", r"stages\.first\.model\.input_width: Input should be greater"),
        ("a/b: {}", "'a/b' is to be the name of a folder"),
        ("first: {stages: {}, train: 3}", r"stages\.first\.train: Input should be a valid dictionary"),
    ],
)
def test_a_mistake_in_a_stage_is_one_sentence(tmp_path: Path, stage: str, says: str) -> None:
    (tmp_path / "recipe.yaml").write_text(f"stages:\n  {stage}\n")
    with pytest.raises(ConfigError, match=says):
        load_spec(tmp_path / "recipe.yaml")
