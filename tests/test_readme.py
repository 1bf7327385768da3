"""Every command and program that the README shows, run as it stands there but for the number of epochs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.cli.main import ALIASES, run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
SHORTER = re.compile(r"(?<=num_epochs=)\d+")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.split()[0] == program]


@pytest.fixture
def newcomers_folder(captchas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the README's commands name: receipt.png, captchas/, more-captchas/ and new/."""
    page = np.full((200, 640, 3), 255, np.uint8)
    cv2.putText(page, "TOTAL 12.50", (40, 110), cv2.FONT_HERSHEY_DUPLEX, 2, (0, 0, 0), 4)
    cv2.imwrite(str(tmp_path / "receipt.png"), page)
    lines = (captchas / "labels.tsv").read_text("utf-8").splitlines()
    for name, some in (("captchas", lines[::400]), ("more-captchas", lines[7::1000])):
        (tmp_path / name / "images").mkdir(parents=True)
        (tmp_path / name / "labels.tsv").write_text("\n".join(some) + "\n", "utf-8")
        for line in some:
            shutil.copy(captchas / line.split("\t")[0], tmp_path / name / "images")
    (tmp_path / "new").mkdir()
    for number, line in enumerate(lines[9::2000], 1):
        shutil.copy(captchas / line.split("\t")[0], tmp_path / "new" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(command: str, folder: Path) -> list[str]:
    """Split a command as a shell does, patterns filled in."""
    found = []
    for word in shlex.split(command):
        found += sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else [word]
    return found


@pytest.mark.slow
def test_the_shell_session_works_line_by_line(newcomers_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    session = [SHORTER.sub("2", command) for command in commands("inkmill")]
    assert len(session) >= 4
    for command in session:
        assert run(words(command, newcomers_folder)[1:]) == 0, command
    said = capsys.readouterr().out
    assert "TOTAL" in said
    assert all(f"new/{number}.png" in said for number in (1, 2, 3))
    assert json.loads(Path("results/evaluate/metrics.json").read_text("utf-8"))["samples"] == 5
    left = re.findall(r"^\| `(\w+)` \| (`\w+\..*) \|$", README, re.MULTILINE)
    assert [verb for verb, _ in left] == ["check", "train", "evaluate"]
    for verb, files in left:
        for name in re.findall(r"`([\w.]+)`", files):
            assert (Path("results") / verb / name).is_file(), f"{verb}: {name}"


@pytest.mark.slow
def test_the_python_program_works(newcomers_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (program,) = blocks("python")
    assert len([line for line in program.splitlines() if line]) <= 10
    exec(compile(SHORTER.sub("1", program), "README.md", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "runs/first/train/best_accuracy.safetensors" in said
    assert "new/2.png" in said


def test_every_other_command_exists() -> None:
    known = ("inkmill", "make", "pip")
    assert all(line.split()[0] in known for block in blocks("sh") for line in block.splitlines())
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(f"\n{command.split()[1]}:" in makefile for command in commands("make"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    shown = re.findall(r"'\.\[([\w,-]+)\]'", README)
    assert shown
    assert all(extra in extras for group in shown for extra in group.split(","))


def test_the_table_of_verbs_is_that_of_the_command() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)*) ?\| \w.* \|$", README, re.MULTILINE)
    shown = {verb: tuple(re.findall(r"`(\w+)`", aliases)) for verb, aliases in rows}
    assert shown == ALIASES
