from __future__ import annotations

from pathlib import Path

from inkmill.nn.backbones import BACKBONES

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_of_models_describes_every_registered_backbone() -> None:
    rows = [line for line in (DOCS / "models.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    described = {row.split("`")[1] for row in rows}
    assert set(BACKBONES.names()) <= described


def test_every_file_of_backbones_adds_at_least_one() -> None:
    shared = {"__init__", "base", "blocks", "timm"}
    files = {path.stem for path in (DOCS.parent / "src/inkmill/nn/backbones").glob("*.py")} - shared
    modules = {BACKBONES.get(name).__module__.rpartition(".")[2] for name in BACKBONES.names()}
    assert files == modules
