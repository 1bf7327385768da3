from __future__ import annotations

from pathlib import Path

import pytest

from inkmill.config.describe import as_markdown, as_yaml
from inkmill.config.keys import all_keys
from inkmill.config.load import load_spec, preset_names
from inkmill.config.spec import Spec

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_commented_yaml_is_a_spec_file_of_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(as_yaml(), encoding="utf-8")
    assert load_spec(tmp_path / "spec.yaml") == Spec()


@pytest.mark.parametrize("name", preset_names())
def test_the_commented_yaml_holds_the_values_of_its_spec(name: str, tmp_path: Path) -> None:
    spec = load_spec(name, ["dataset.train=[{path: a, weight: 2}]", "dataset.label_pattern='#: x'"])
    (tmp_path / "spec.yaml").write_text(as_yaml(spec), encoding="utf-8")
    assert load_spec(tmp_path / "spec.yaml") == spec


def test_every_key_stands_under_what_it_takes_and_means() -> None:
    lines = as_yaml().splitlines()
    where = lines.index("  num_epochs: 10")
    assert lines[where - 1] == "  # whole number >= 1 and <= 1,000,000. Passes over the training data."
    assert len(lines) > len(list(all_keys()))


def test_every_key_is_described() -> None:
    assert [line for line in as_markdown().splitlines() if line.endswith("|  |")] == []
    assert all(f"`{key}" in as_markdown() for key in all_keys())


def test_the_page_of_the_spec_is_up_to_date() -> None:
    page = (DOCS / "spec.md").read_text(encoding="utf-8")
    assert page == as_markdown(), "run: inkmill spec --markdown > docs/spec.md"
