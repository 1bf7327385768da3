from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.data.sources.open import find_images
from inkmill.errors import DataError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.infer import infer
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "deep/c.webp", "notes.txt", "@d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def names(found: list[Path], folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in found]


def test_folders_are_searched_and_every_image_comes_once(folder: Path) -> None:
    found = find_images([str(folder / "b.png"), str(folder), str(folder / "*.png")])
    assert names(found, folder) == ["b.png", "@d.png", "a.JPG", "deep/c.webp"]


def test_a_list_holds_images_and_never_lists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("list.txt").write_text("\ufeffdeep\n\n@d.png\n*.JPG\n", "utf-8")
    assert find_images(["@list.txt"]) == [Path("deep/c.webp"), Path("@d.png"), Path("a.JPG")]
    Path("round.txt").write_text("@round.txt\n", "utf-8")
    with pytest.raises(DataError, match=r"^@round\.txt: no image there"):
        find_images(["@round.txt"])


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\n \n", "the list is empty"), (b"\xff\xfe\x00", "the list is not UTF-8"), (None, "the list cannot be read")],
)
def test_a_list_that_cannot_be_used_is_one_sentence(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        find_images([f"@{path}"])


@pytest.mark.parametrize("name", ["nowhere", "*.tiff", "a**b", "deep/../**c/x"])
def test_a_name_of_no_image_is_named(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(DataError) as caught:
        find_images([name])
    assert str(caught.value).startswith(f"{name}: no image there; expected")


def test_pages_given_to_a_reader_of_lines_are_counted_and_named(tmp_path: Path) -> None:
    for name, shape in (("a_page.png", (900, 700, 3)), ("line.png", (600, 2000, 3)), ("z_photo.jpg", (600, 900, 3))):
        assert cv2.imwrite(str(tmp_path / name), np.zeros(shape, np.uint8))
    model = ModelSpec(backbone="Tiny", sequence="none", input_width=64)
    header = ModelHeader.of(Recognition(model, Charset(tuple("0123456789")), 6))
    reader = tmp_path / "reader.safetensors"
    save_model(reader, build_recognizer(model, 11, 6).state_dict(), header)
    said: list[str] = []
    _, found = infer(load_spec(None, [f"inference.checkpoint={reader}"]), [f"{tmp_path}/*.*g"], say=said.append)
    assert len(list(found)) == 3
    assert said[1:] == [
        f"{tmp_path}/a_page.png: 700x900 pixels look like a whole page or photo, and this model reads one line of text "
        "(and 1 more); `inkmill convert --crop` cuts the lines out of a labelled set of pages"
    ]
