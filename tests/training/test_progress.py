from __future__ import annotations

import io
from pathlib import Path

import cv2
import pytest
from rich.console import Console

from inkmill.config.results import Results
from inkmill.config.spec import Spec
from inkmill.data.loaders.plan import Stats
from inkmill.errors import OutputError
from inkmill.training.progress import Reporter, draw_curves, estimate

FIGURES = {"word_accuracy": "word accuracy", "cer": "CER"}
HISTORY = [
    {"epoch": 1, "train_loss": 2.0, "val_loss": 1.5, "word_accuracy": 0.1, "cer": 0.6},
    {"epoch": 2, "train_loss": 0.0, "val_loss": 0.5, "word_accuracy": 0.9, "cer": 0.1},
]


def test_what_a_loader_notes_while_it_runs_is_said_once(tmp_path: Path) -> None:
    """What the memory of its workers lies in is known with their first batch."""
    stats, text = Stats(notes=["at first"]), io.StringIO()
    reporter = Reporter(Console(file=text), Results(tmp_path, Spec(), "train"), 2, FIGURES)
    reporter.notes(stats)
    for epoch in range(2):
        reporter.epoch_starts(epoch, 0, 1, stats)
        stats.notes[1:] = ["with the first batch"]
        reporter.epoch_ends(epoch, 1.0)
    reporter.close()
    lines = text.getvalue().splitlines()
    assert [line for line in lines if "first" in line] == ["at first", "with the first batch"]


@pytest.mark.parametrize("history", [HISTORY, HISTORY[:1], [row | {"ema_word_accuracy": 0.5} for row in HISTORY]])
def test_curves_are_a_picture_and_nothing_else_is_left(history: list[dict[str, float]], tmp_path: Path) -> None:
    draw_curves(tmp_path / "curves.png", history, FIGURES)
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    picture = cv2.imread(str(tmp_path / "curves.png"))
    assert picture is not None
    assert picture.std() > 1


def test_curves_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="it is a file, and a folder is needed"):
        draw_curves(tmp_path / "file" / "curves.png", HISTORY, FIGURES)


def test_a_long_run_is_estimated_from_its_first_steps_once_and_a_short_one_is_not(tmp_path: Path) -> None:
    assert estimate(0.1, 5000) == ""
    assert estimate(40.2, 2700) == "at 40 s a step the 2,700 steps of this run take about 30 hours"
    assert estimate(0.5, 3000) == "at 0.5 s a step the 3,000 steps of this run take about 25 minutes"
    assert estimate(60.0, 10**6) == "at 60 s a step the 1,000,000 steps of this run take about 694 days"
    text = io.StringIO()
    reporter = Reporter(Console(file=text, width=200), Results(tmp_path, Spec(), "train"), 2, FIGURES, hint="; smaller")
    reporter.epoch_starts(0, 10, 1000, Stats())
    for at in (0.5, 1.0, 6.5, 20.0):  # seconds after the start; the first batch waited for the loader
        reporter._estimate(reporter._started + at, 1990) if reporter._batches_left else None
    assert text.getvalue() == "at 3 s a step the 1,990 steps of this run take about 100 minutes; smaller\n"
    reporter.close()
