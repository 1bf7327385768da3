"""Only regular files are data: pipes, devices and links in circles are one sentence, at once and in no memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.data.conftest import MakeImages

from inkmill.config.dataset import SourceSpec
from inkmill.crypt import read_plain
from inkmill.data.formats.lines import MAX_FILE_BYTES, head_lines, read_text
from inkmill.data.jobs.check_page import _picture
from inkmill.data.jobs.scan import scan
from inkmill.data.sources import Source, open_source
from inkmill.data.sources.open import find_images
from inkmill.errors import DataError, InkmillError, LabelFileError
from inkmill.files import read_data
from inkmill.modelfile.torch_file import load_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def source_of(path: Path) -> Source:
    return open_source(SourceSpec(path=str(path)))


def faults(source: Source) -> dict[str, str]:
    """What a check of the pictures finds wrong, by key."""
    found = [fault for result in scan(source, channels=3, workers=0) for fault in result.faults]
    return {source.key(index): f"{reason}: {detail}" for index, reason, detail in found}


def test_a_device_and_a_pipe_in_a_label_file_are_missing_images(make_images: MakeImages, tmp_path: Path) -> None:
    folder = make_images(tmp_path / "set", ["a.png"])
    os.mkfifo(folder / "pipe.png")
    (folder / "labels.tsv").write_text("a.png\tx\n/dev/zero\tx\npipe.png\tx\n/proc/self/pagemap\tx\n")
    found = faults(source_of(folder))
    assert found.keys() == {"/dev/zero", "pipe.png", "/proc/self/pagemap"}
    assert "it is a device; a regular file was expected" in found["/dev/zero"]
    assert "it is a named pipe; a regular file was expected" in found["pipe.png"]


def test_a_folder_with_links_in_circles_loses_only_them(make_images: MakeImages, tmp_path: Path) -> None:
    folder = make_images(tmp_path / "set", ["a.png"])
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "gone.png").symlink_to("nowhere.png")
    assert set(faults(source_of(folder))) == {"loop.png", "gone.png"}
    assert [path.name for path in find_images([str(folder)])] == ["a.png", "gone.png", "loop.png"]


@pytest.mark.parametrize("name", ["labels.tsv", "set.tar", "data.mdb"])
def test_a_pipe_in_place_of_a_set_is_one_sentence(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="it is a named pipe; a regular file was expected"):
        source_of(tmp_path / name)


def test_a_pipe_in_place_of_a_model_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    for read in (read_plain, load_checkpoint):
        with pytest.raises(InkmillError, match="it is a named pipe; a regular file was expected"):
            read(tmp_path / "model.onnx", None)


def test_a_label_file_that_is_too_large_to_hold_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "labels.json"
    with file.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)  # a hole: it takes no place on the disk
    with pytest.raises(LabelFileError, match="larger than the 1,024 MiB"):
        read_text(file)
    assert head_lines(file) == ["\0" * 65536]


def test_what_has_no_end_is_read_up_to_its_limit() -> None:
    with pytest.raises(OSError, match="larger than the 1 MiB"):
        read_data("/dev/zero", 1 << 20, pipes=True)


def test_inside_only_reads_nothing_from_outside_and_the_page_of_check_never_shows_it(
    make_images: MakeImages, tmp_path: Path
) -> None:
    make_images(tmp_path / "secret", ["s.png"])
    folder = make_images(tmp_path / "set", ["a.png"])
    (folder / "link.png").symlink_to(tmp_path / "secret" / "s.png")
    names = ["a.png", "../secret/s.png", str(tmp_path / "secret" / "s.png"), "link.png"]
    (folder / "labels.tsv").write_text("".join(f"{name}\tx\n" for name in names))
    assert faults(source_of(folder)) == {}
    guarded = open_source(SourceSpec(path=str(folder), inside_only=True))
    assert set(faults(guarded)) == set(names[1:])
    assert all("the image lies outside" in fault for fault in faults(guarded).values())
    open_set = source_of(folder)
    assert [open_set.outside(index) for index in range(4)] == [False, True, True, True]
    (shown,) = _picture(open_set, 3, "x", "ok")
    assert shown.image == "outside the folder of the set: not shown"
