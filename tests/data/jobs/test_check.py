from __future__ import annotations

import importlib
import json
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Literal

import cv2
import numpy as np
import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.check import check, check_once, check_targets
from inkmill.data.jobs.check_report import CheckReport
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import open_source
from inkmill.data.types import Labels, Target
from inkmill.errors import DataError
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.tasks.recognition.rules import TextRules

DIGITS = Charset(tuple("0123456789"))

# A module of its own, because worker processes must be able to import what they are sent.
MEMORY_SOURCE = '''
import hashlib
from dataclasses import dataclass
from inkmill.data.sources import Source
from inkmill.data.types import Text
from inkmill.errors import DataError


@dataclass
class MemorySource(Source):
    """Samples in memory; an image of None is a file that is not there."""

    rows: list
    name: str = "memory"
    deadly: bool = False

    @property
    def fingerprint(self):
        return hashlib.sha256(repr(self.rows).encode("utf-8", "backslashreplace")).hexdigest()

    def __len__(self):
        return len(self.rows)

    def image(self, index):
        if self.deadly:
            import os

            os._exit(1)
        image, _ = self.rows[index]
        if image is None:
            raise DataError(f"{self.key(index)}: no such file")
        return image

    def key(self, index):
        return f"{index:04}.png"

    def target(self, index):
        if self.rows[index][1] is None:
            raise DataError(f"{self.key(index)}: its label is missing")
        target = self.rows[index][1]
        return Text(target) if isinstance(target, str) else target
'''


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    place = tmp_path / "importable"
    place.mkdir()
    (place / "memory_source.py").write_text(MEMORY_SOURCE)
    monkeypatch.syspath_prepend(place)
    return importlib.reload(importlib.import_module("memory_source"))


def png(width: int = 40, height: int = 16, value: int = 200) -> bytes:
    return cv2.imencode(".png", np.full((height, width), value, np.uint8))[1].tobytes()


def rules(
    charset: Charset = DIGITS,
    longest: int = 6,
    resize: Resize = Resize(32, 96),  # noqa: B008 - frozen
    normaliser: Normaliser | None = None,
    head: Literal["CTC", "Attn", "Slots"] = "CTC",
    columns_a_step: int | None = None,
) -> TextRules:
    capacity = None if columns_a_step is None else lambda width: width // columns_a_step
    return TextRules(resize, make_codec(head, charset, longest), normaliser or Normaliser(), capacity)


def with_model(resize: Resize, charset: Charset = DIGITS, longest: int = 50) -> TextRules:
    return rules(charset, longest, resize, columns_a_step=8)


def verdicts(report: CheckReport) -> dict[int, tuple[str, str]]:
    return {entry.position: (reason, entry.detail) for reason, found in report.dropped.items() for entry in found}


def test_every_sample_is_kept_or_left_out_for_one_named_reason(memory: ModuleType) -> None:
    rows: list[tuple[bytes | None, str | None]] = [
        (png(), "123"),
        (None, "123"),
        (png()[:50], "123"),
        (b"", "123"),
        (png(), ""),
        (png(), "1a2b"),
        (png(), "1234567"),
        (png(), None),
        (png(), "1 2"),
    ]
    report = check(memory.MemorySource(rows), rules())
    assert report.keep.tolist() == [0]
    assert verdicts(report) == {
        1: ("missing", "0001.png: no such file"),
        2: ("unreadable", "the PNG data are damaged or cut short"),
        3: ("unreadable", "the image is empty (0 bytes)"),
        4: ("empty", "the label is empty"),
        5: ("out_of_charset", "not in the character list: 'ab'"),
        6: ("over_length", "7 characters, 6 allowed"),
        7: ("missing", "0007.png: its label is missing"),
        8: ("out_of_charset", "not in the character list: ' '"),
    }
    assert report.counts == {"missing": 2, "unreadable": 2, "empty": 1, "out_of_charset": 2, "over_length": 1}
    assert report.lost_share == pytest.approx(8 / 9)
    assert report.facts["unknown_characters"] == {"a": 1, "b": 1, " ": 1}


def test_label_with_a_space_is_kept_where_the_charset_has_the_space(memory: ModuleType) -> None:
    report = check(memory.MemorySource([(png(), "1 2")]), rules(Charset(("1", "2", " "))))
    assert report.keep.tolist() == [0]


def test_over_long_label_counts_composed_characters(memory: ModuleType) -> None:
    label = unicodedata.normalize("NFD", "ếếế")
    report = check(memory.MemorySource([(png(), label)]), rules(Charset(("ế",)), longest=3))
    assert report.facts["label_lengths"] == {"3": 1}
    assert report.keep.tolist() == [0]


def test_labels_are_normalised_before_they_are_judged_and_the_changes_reported(memory: ModuleType) -> None:
    shared = Normaliser(["typographic"])
    source = memory.MemorySource([(png(), "1–2"), (png(), "3")])
    report = check(source, rules(Charset(tuple("123-")), normaliser=shared))
    assert report.lost == 0
    assert report.facts["normalised"] == {"'–' → '-'": 1}
    assert not shared.report


def test_ctc_needs_a_step_a_character_and_one_more_a_repeat(memory: ModuleType) -> None:
    source = memory.MemorySource([(png(), "1212121212"), (png(), "1122334455"), (png(), "123456789012")])
    report = check(source, with_model(Resize(32, 96)))  # 12 steps
    assert report.keep.tolist() == [0, 2]
    assert verdicts(report) == {1: ("too_narrow", "needs 15 time steps, its width of 96 pixels gives 12")}


def test_with_free_width_each_image_has_its_own_time_steps(memory: ModuleType) -> None:
    source = memory.MemorySource([(png(20, 32), "12345"), (png(64, 32), "12345")])
    report = check(source, with_model(Resize(32, 256, mode="height")))
    assert report.keep.tolist() == [1]
    assert verdicts(report) == {0: ("too_narrow", "needs 5 time steps, its width of 32 pixels gives 4")}


def test_with_the_size_chosen_by_aspect_each_image_has_its_own_time_steps(memory: ModuleType) -> None:
    source = memory.MemorySource([(png(20, 32), "123456789"), (png(128, 32), "123456789")])
    report = check(source, with_model(Resize(32, 128, mode="aspect")))
    assert report.keep.tolist() == [1]
    assert verdicts(report) == {0: ("too_narrow", "needs 9 time steps, its width of 64 pixels gives 8")}


def test_a_header_of_a_huge_image_is_enough_to_leave_it_out(memory: ModuleType) -> None:
    huge = bytearray(png())
    huge[16:24] = (100_000).to_bytes(4, "big") * 2
    report = check(memory.MemorySource([(png(), "1"), (b"text", "1"), (bytes(huge), "1")]), rules())
    assert report.keep.tolist() == [0]
    assert verdicts(report)[1][1].startswith("not an image in a known format")
    assert verdicts(report)[2][1].startswith("the image is 100000x100000, more than")


def test_targets_alone_tell_which_samples_can_be_used(memory: ModuleType) -> None:
    source = memory.MemorySource([(None, "12"), (None, "x"), (None, "1234567"), (None, "112")], deadly=True)
    kept, lost = check_targets(source, rules(resize=Resize(32, 24), columns_a_step=8), np.array([0, 1, 3]))
    assert kept.tolist() == [0]
    assert lost == {"out_of_charset": 1, "too_narrow": 1}


def test_shapes_lengths_and_characters_are_counted(memory: ModuleType) -> None:
    source = memory.MemorySource([(png(40, 16), "12"), (png(20, 20), "113"), (None, "9"), (png(640, 10), "x")])
    report = check(source, rules())
    assert report.sizes.tolist() == [[40, 16], [20, 20], [0, 0], [640, 10]]
    assert report.facts["label_lengths"] == {"1": 2, "2": 1, "3": 1}
    ratios = report.aspect_ratio_histogram()
    assert {name: count for name, count in ratios.items() if count} == {"2.5-3": 1, "1-1.5": 1, "≥32": 1}
    assert report.facts["characters"] == {"1": 3, "2": 1, "3": 1}
    assert report.facts["unseen_characters"] == list("0456789")


def test_repeated_files_are_found_within_and_across_sets(memory: ModuleType) -> None:
    train = memory.MemorySource([(png(value=1), "1"), (png(value=2), "2"), (png(value=1), "1"), (None, "3")])
    val = memory.MemorySource([(png(value=9), "1"), (png(value=2), "2"), (png(value=1), "1"), (None, "3")])
    one, other = check(train, rules()), check(val, rules())
    assert one.duplicates.tolist() == [[2, 0]]
    assert other.duplicates.tolist() == []
    assert other.across(one).tolist() == [[1, 1], [2, 0]]
    assert one.across(other).tolist() == [[0, 2], [1, 1], [2, 2]]
    assert one.across(check(memory.MemorySource([]), rules())).tolist() == []


def test_targets_other_than_text_are_left_out(memory: ModuleType) -> None:
    rows: Sequence[tuple[bytes | None, Target]] = [(png(), Labels(("cat",))), (b"x", Labels(("dog",)))]
    report = check(memory.MemorySource(rows), with_model(Resize(32, 96)))
    assert verdicts(report)[0] == ("no_text", "it has labels, not a text")
    assert report.counts == {"unreadable": 1, "no_text": 1}
    assert report.facts["label_lengths"] == {}


def test_empty_set_gives_an_empty_report(memory: ModuleType) -> None:
    report = check(memory.MemorySource([]), rules())
    assert (len(report), report.lost_share, report.keep.tolist()) == (0, 0, [])
    assert json.dumps(report.as_dict())


def test_examples_are_bounded_and_counts_exact(memory: ModuleType) -> None:
    report = check(memory.MemorySource([(None, "1")] * 2500), rules())
    assert report.counts == {"missing": 2500}
    assert len(report.dropped["missing"]) == 1000


def test_workers_find_the_same_as_one_process(memory: ModuleType) -> None:
    images = [png(value=value) for value in range(7)]
    rows = [(None if i % 500 == 3 else images[i % 7], "" if i % 700 == 5 else str(i)) for i in range(2100)]
    source, done = memory.MemorySource(rows), []
    alone = check(source, rules())
    shared = check(source, rules(), workers=2, progress=lambda *state: done.append(state))
    assert shared.as_dict() == alone.as_dict()
    assert shared.keep.tolist() == alone.keep.tolist()
    assert shared.image_hashes.tolist() == alone.image_hashes.tolist()
    assert done == [(1000, 2100), (2000, 2100), (2100, 2100)]


def test_worker_that_dies_is_one_sentence(memory: ModuleType) -> None:
    source = memory.MemorySource([(png(), "1")] * 1001, deadly=True)
    with pytest.raises(DataError, match="a process that checked memory died, most often for want of memory"):
        check(source, rules(), workers=1)


def test_saved_report_reads_back_whole(memory: ModuleType, tmp_path: Path) -> None:
    source = memory.MemorySource([(png(), "12"), (None, "1"), (png(), "\ud800"), (png(), "é")])
    report = check(source, rules())
    report.save(tmp_path / "report.npz")
    again = CheckReport.load(tmp_path / "report.npz")
    assert again.as_dict() == report.as_dict()
    assert again.dropped == report.dropped
    for name in ("keep", "sizes", "image_hashes"):
        assert getattr(again, name).tolist() == getattr(report, name).tolist()
        assert getattr(again, name).dtype == getattr(report, name).dtype
    assert json.dumps(report.as_dict(), ensure_ascii=False).encode()


def test_report_with_damaged_bytes_is_one_sentence(memory: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "report.npz"
    check(memory.MemorySource([(png(), "12")] * 50), rules()).save(file)
    data = file.read_bytes()
    for place in range(0, len(data), 5):
        file.write_bytes(data[:place] + b"\xff\xff\xff" + data[place + 3 :])
        with suppress(DataError):
            CheckReport.load(file)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x80\x04K\x01.", None])
def test_file_that_is_no_report_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "report.npz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"report\.npz"):
        CheckReport.load(file)


def test_unchanged_set_is_not_checked_twice(memory: ModuleType, tmp_path: Path) -> None:
    source = memory.MemorySource([(png(), "12"), (png(), "x")])
    first = check_once(source, rules(), tmp_path)
    source.deadly = True  # reading an image would end the process
    again = check_once(source, rules(), tmp_path)
    assert again.as_dict() == first.as_dict()


def test_changed_set_changed_rules_or_torn_file_are_checked_again(memory: ModuleType, tmp_path: Path) -> None:
    source = memory.MemorySource([(png(), "12"), (png(), "x")])
    check_once(source, rules(), tmp_path)
    assert check_once(source, rules(longest=1), tmp_path).counts == {"out_of_charset": 1, "over_length": 1}
    source.rows[1] = (png(), "3")
    assert check_once(source, rules(), tmp_path).lost == 0
    for file in tmp_path.glob("*.npz"):
        file.write_bytes(file.read_bytes()[:-40])
    assert check_once(source, rules(), tmp_path).lost == 0


def test_rules_digest_tells_every_rule_apart() -> None:
    base = rules()
    others = [
        rules(Charset(("1",))),
        rules(longest=7),
        rules(resize=Resize(32, 100)),
        rules(normaliser=Normaliser(["typographic"])),
        rules(columns_a_step=8),
        rules(columns_a_step=4),
        rules(head="Attn"),
    ]
    assert len({rule.digest() for rule in [base, *others]}) == len(others) + 1
    assert rules().digest() == base.digest()


def test_real_folder_with_a_missing_a_cut_and_an_unlabelled_image(captchas: Path, tmp_path: Path) -> None:
    lines = (captchas / "labels.tsv").read_text("utf-8").splitlines()[:1200]
    names = [line.split("\t")[0] for line in lines]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((captchas / name).read_bytes())
    (tmp_path / names[3]).unlink()
    (tmp_path / names[1100]).write_bytes((tmp_path / names[1100]).read_bytes()[:300])
    lines[7] = f"{names[7]}\t12345"
    (tmp_path / "labels.tsv").write_text("\n".join(lines), "utf-8")
    source = open_source(SourceSpec(path=str(tmp_path)))
    report = check(source, with_model(Resize(32, 96), longest=4), workers=2)
    assert report.counts == {"missing": 1, "unreadable": 1, "over_length": 1}
    assert {entry.key for found in report.dropped.values() for entry in found} == {names[i] for i in (3, 7, 1100)}
    assert len(report.keep) == 1197
    assert report.facts["unseen_characters"] == []
