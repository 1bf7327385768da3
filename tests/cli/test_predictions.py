from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table

from inkmill.cli.options import make_console, visible
from inkmill.cli.predictions import write_predictions
from inkmill.errors import DataError, OutputError
from inkmill.tasks.recognition.decoder import Reading

FIELDS = ("text", "confidence")
READINGS = [Reading('a,"b', 0.98765, "x.png"), Reading("[red]đường[/red]", 1.0, "y.png"), Reading("", 0.0, "z.png")]


def test_csv_survives_commas_quotes_and_diacritics(tmp_path: Path) -> None:
    write_predictions(READINGS, FIELDS, "csv", tmp_path / "out.csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert rows[0] == ["file", "text", "confidence"]
    assert rows[1:] == [["x.png", 'a,"b', "0.9877"], ["y.png", "[red]đường[/red]", "1.0000"], ["z.png", "", "0.0000"]]


def test_json_lines_hold_one_object_a_line(tmp_path: Path) -> None:
    write_predictions(READINGS, FIELDS, "jsonl", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == [reading.text for reading in READINGS]
    assert json.loads(lines[0]) == {"file": "x.png", "text": 'a,"b', "confidence": 0.9877}


def test_the_table_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions(READINGS, FIELDS, "table")
    said = capsys.readouterr().out
    assert "[red]đường[/red]" in said
    assert "0.9877" in said


def test_a_table_in_a_file_cuts_nothing(tmp_path: Path) -> None:
    names = [f"{'a_long_name_' * 12}{number}.png" for number in range(2)]
    write_predictions([Reading("x" * 300, 0.5, name) for name in names], FIELDS, "table", tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert [name for line in lines for name in names if name in line and "x" * 300 in line] == names


def test_a_reading_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    def readings() -> Iterator[Reading]:
        yield READINGS[0]
        raise DataError("the disk with the images has gone")

    with pytest.raises(DataError, match="has gone"):
        write_predictions(readings(), FIELDS, "csv", tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_name_that_is_not_valid_unicode_costs_no_reading(kind: str, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    write_predictions([Reading("12", 1.0, name), *READINGS], FIELDS, kind, tmp_path / "out")
    lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(READINGS) + 1 + (kind == "csv")
    assert kind == "csv" or json.loads(lines[0])["file"] == name


def test_tsv_holds_what_was_read_between_tabs_unquoted(tmp_path: Path) -> None:
    write_predictions([*READINGS, Reading("q", 0.5, "a\tb\n.png")], FIELDS, "tsv", tmp_path / "out.tsv")
    lines = (tmp_path / "out.tsv").read_text(encoding="utf-8").split("\n")
    assert lines[:2] == ["file\ttext\tconfidence", 'x.png\ta,"b\t0.9877']
    assert lines[4:] == ["a\\tb\\n.png\tq\t0.5000", ""]


@pytest.mark.parametrize("kind", ["table", "csv", "tsv", "jsonl"])
def test_a_file_of_the_users_is_not_replaced_unless_told_and_one_of_ours_is(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text("x.png\tmy label\n")
    with pytest.raises(OutputError, match=r"labels\.tsv is there, and holds no predictions: .* --overwrite"):
        write_predictions(READINGS, FIELDS, kind, file)
    assert file.read_text() == "x.png\tmy label\n"
    write_predictions(READINGS, FIELDS, kind, file, overwrite=True)
    write_predictions(READINGS[:1], FIELDS, kind, file)
    assert "y.png" not in file.read_text()


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(OutputError, match="/dev/null: it is a device; a regular file was expected"):
        write_predictions(READINGS, FIELDS, "csv", Path("/dev/null"))


def test_names_that_would_steer_the_terminal_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2Jb\u202ec\x9b1m.png"
    assert visible(f"{name}\tq\nđ") == "a\\x1b[2Jb\\u202ec\\x9b1m.png\tq\nđ"
    write_predictions([Reading("x", 0.5, name)], FIELDS, "table")
    console = make_console()
    console.print(name, markup=False)
    table = Table("set")
    table.add_row(name)
    console.print(table)
    said = capsys.readouterr().out
    assert said.count("a\\x1b[2Jb\\u202ec\\x9b1m.png") == 3
    assert "\x1b" not in said
    assert "\u202e" not in said
