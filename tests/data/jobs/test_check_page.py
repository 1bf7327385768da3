from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from inkmill.data.jobs.check import check
from inkmill.data.jobs.check_page import write_page
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source
from inkmill.data.types import Text
from inkmill.errors import DataError
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.tasks.recognition.rules import TextRules

RULES = TextRules(Resize(32, 96), make_codec("CTC", Charset(tuple("0123456789-<")), 40), Normaliser(["typographic"]))


@dataclass
class MemorySource(Source):
    rows: list[tuple[bytes | None, str]]
    name: str = "memory"
    notes: tuple[str, ...] = ("3 lines of <labels.tsv> were blank",)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.rows).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, index: int) -> bytes:
        image, _ = self.rows[index]
        if image is None:
            raise DataError(f"{self.key(index)}: no such file")
        return image

    def key(self, index: int) -> str:
        return f"{index}<b>.png"

    def target(self, index: int) -> Text:
        return Text(self.rows[index][1])


def png(value: int) -> bytes:
    return cv2.imencode(".png", np.full((8, 20), value, np.uint8))[1].tobytes()


def written(tmp_path: Path, **rows: list[tuple[bytes | None, str]]) -> str:
    sources = {name: MemorySource(found, name) for name, found in rows.items()}
    write_page(
        tmp_path / "check.html", {name: check(source, RULES) for name, source in sources.items()}, sources, RULES
    )
    return (tmp_path / "check.html").read_text("utf-8")


def test_page_shows_losses_by_reason_with_examples_and_pictures(tmp_path: Path) -> None:
    text = written(tmp_path, train=[(png(1), "1–2"), (png(2), "a<"), (b"bad", "3"), (None, "4")])
    assert "<td>train</td><td class=n>4</td><td class=n>1</td><td class=n>3</td><td class=n>0.7500</td>" in text
    for reason in ("missing", "unreadable", "out_of_charset"):
        assert f"<td>{reason}</td><td class=n>1</td>" in text
    assert "<td>1&lt;b&gt;.png</td><td>a&lt;</td>" in text
    assert "&#x27;–&#x27; → &#x27;-&#x27;" in text
    assert "&#x27;a&#x27; U+0061" in text
    assert len(re.findall(r'<figure class="wrong">', text)) == 2
    assert len(re.findall(r'<figure class="ok"><img', text)) == 1
    assert "<p>3 lines of &lt;labels.tsv&gt; were blank</p>" in text
    assert "<b>" not in text


def test_page_shows_what_is_shared_within_and_across_sets(tmp_path: Path) -> None:
    text = written(tmp_path, train=[(png(1), "1"), (png(2), "2"), (png(1), "3")], val=[(png(2), "2"), (png(4), "4")])
    assert "1 files repeat an earlier one byte for byte" in text
    assert "1 images of val are also in train" in text
    assert "are also in val" not in text


def test_clean_set_says_so(tmp_path: Path) -> None:
    text = written(tmp_path, train=[(png(value), str(value)) for value in range(60)])
    assert "Every sample would be used." in text
    assert text.count('<figure class="ok">') == 48


def test_empty_set_and_very_long_labels_make_a_page(tmp_path: Path) -> None:
    text = written(tmp_path, nothing=[], long=[(png(1), "1" * 5000), (png(2), "2")])
    assert "<td>over_length</td>" in text
    assert len(re.findall("<rect", text)) < 200
