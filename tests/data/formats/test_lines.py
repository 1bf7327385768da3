"""What a file of labels is where it is no text, in one true sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats.lines import head_lines, read_lines
from inkmill.data.sources import open_source
from inkmill.errors import DataError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a.png\tx\nb.png\ty\0z\n", r"labels\.tsv:2: it holds a NUL \(a byte 0\)"),
        (b"\0\0\0\0\0\0\0\0\n", r"it holds a NUL"),
        (b"a.png\tx\rb.png\ty\r", r"labels\.tsv:1: its lines end with CR alone, as on old Macs: save it with LF"),
        (gzip.compress(b"a.png\tx\n"), r"labels\.tsv: it is compressed with gzip: unpack it with `gunzip`"),
    ],
)
def test_what_is_no_plain_text_is_one_true_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(read_lines(file))
    with pytest.raises(DataError):
        open_source(SourceSpec(path=str(tmp_path)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig"])
@pytest.mark.parametrize("text", ["a.png\tx", "images/名前.png\t日本語の文字列です", "a.png\tx\r"])
def test_texts_with_and_without_a_mark_are_still_read(encoding: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_bytes(f"{text}\n{text}".encode(encoding))
    assert [line for _, line in read_lines(file)] == head_lines(file) == [text.removesuffix("\r")] * 2


def test_a_compressed_tar_is_told_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(DataError, match=r"set\.tar\.gz is a compressed tar, .*: unpack it with `tar -xf`"):
        open_source(SourceSpec(path=str(tmp_path / "set.tar.gz")))
    with pytest.raises(DataError, match=r"found no image, but set\.tar\.gz: unpack it first"):
        open_source(SourceSpec(path=str(tmp_path)))
