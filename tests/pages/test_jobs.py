"""`inkmill read` over many documents: what is written where, what goes on, what is listed."""

from __future__ import annotations

import io
import json
import struct

import pytest
from PIL import Image

from inkmill import weights
from inkmill.cli.main import run
from inkmill.errors import ConfigError, DataError
from inkmill.pages.jobs import ReadJob
from inkmill.pages.outputs import FORMATS


@pytest.fixture
def folder(tmp_path, drawn, draw_page):
    """A picture, a TIFF of two pages in a subfolder, and a file that is none."""
    where = tmp_path / "in"
    (where / "more").mkdir(parents=True)
    first = Image.fromarray(drawn.pixels)
    second = Image.fromarray(draw_page([(20, 20, "PUTTY 12")], (220, 70)).pixels)
    first.save(where / "a.png")
    second.save(where / "more" / "b.tif", save_all=True, append_images=[Image.fromarray(drawn.pixels)])
    (where / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    return where


def test_one_bad_file_is_listed_and_the_others_are_read(folder, page_reader, tmp_path):
    job = ReadJob([str(folder)], "text,json", tmp_path / "out")
    job.run(lambda: page_reader)
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert written == ["a.png.json", "a.png.txt", "more/b.tif.json", "more/b.tif.txt"]
    assert (tmp_path / "out" / "more" / "b.tif.txt").read_text().startswith("PUTTY 12\n\fQUEBEC 7146\n")
    assert len(job.problems) == 1
    assert "bad.jpg" in job.problems[0]
    assert list(job.report())[-1] == "3 pages were read, 1 pages or documents could not be"


def test_a_bad_page_does_not_cost_the_others_of_its_document(folder, page_reader, tmp_path):
    broken = tmp_path / "half.tif"
    broken.write_bytes(_second_page_without_width((folder / "more" / "b.tif").read_bytes()))
    job = ReadJob([str(broken)], "text", tmp_path / "out")
    job.run(lambda: page_reader)
    assert (tmp_path / "out" / "half.tif.txt").read_text() == "PUTTY 12\n"
    assert [problem for problem in job.problems if "page 2" in problem] == job.problems
    assert len(job.problems) == 1


def _second_page_without_width(data):
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    (second,) = struct.unpack_from("<I", data, first + 2 + 12 * count)
    (count,) = struct.unpack_from("<H", data, second)
    changed = bytearray(data)
    for entry in range(second + 2, second + 2 + 12 * count, 12):
        if struct.unpack_from("<H", data, entry)[0] == 256:
            struct.pack_into("<I", changed, entry + 8, 0)
    return bytes(changed)


def test_what_is_done_is_not_read_again_unless_asked(folder, page_reader, tmp_path):
    ReadJob([str(folder)], "text", tmp_path / "out").run(lambda: page_reader)
    (folder / "c.png").write_bytes((folder / "a.png").read_bytes())
    second = ReadJob([str(folder)], "text", tmp_path / "out")
    second.run(lambda: page_reader)
    assert (second.pages, second.skipped) == (1, 2)
    again = ReadJob([str(folder)], "text", tmp_path / "out", again=True)
    again.run(lambda: page_reader)
    assert (again.pages, again.skipped) == (4, 0)


def test_where_all_is_done_no_model_is_opened(folder, page_reader, tmp_path):
    (folder / "bad.jpg").unlink()
    ReadJob([str(folder)], "page,picture", tmp_path / "out").run(lambda: page_reader)
    assert (tmp_path / "out" / "more" / "b.tif-0002.page.xml").exists()
    ReadJob([str(folder)], "page,picture", tmp_path / "out").run(lambda: pytest.fail("opened"))


def test_without_a_folder_the_text_goes_to_the_standard_output_in_order(folder, page_reader):
    out = io.BytesIO()
    job = ReadJob([str(folder / "more" / "b.tif"), str(folder / "a.png")], "text")
    moved = []
    job.run(lambda: page_reader, lambda *state: moved.append(state), out)
    assert out.getvalue().decode().startswith("PUTTY 12\n\fQUEBEC 7146\n")
    assert moved[-1] == (3, 3)


def test_what_a_job_cannot_do_is_said_before_anything_is_read(folder, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'hocr'"):
        ReadJob([str(folder)], "hocrr", tmp_path)
    with pytest.raises(ConfigError, match="--output FOLDER"):
        ReadJob([str(folder)], "text,json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="without documents"):
        ReadJob([str(tmp_path / "empty")])
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"another file is called a.png"):
        ReadJob([str(folder / "a.png"), str(tmp_path / "a.png")], "text", tmp_path)


def test_the_verb_writes_every_format_and_tells_by_its_exit_code(folder, detector_file, reader_file, tmp_path, capfd):
    models = ["--detector", str(detector_file), "--reader", str(reader_file), "--threads", "1"]
    (folder / "bad.jpg").unlink()
    code = run(["read", str(folder), "--format", ",".join(FORMATS), "--output", str(tmp_path / "out"), *models])
    assert code == 0
    assert len(list((tmp_path / "out").rglob("b.tif*"))) == len(FORMATS) + 2
    page = json.loads((tmp_path / "out" / "a.png.json").read_text())["pages"][0]
    assert (page["width"], page["height"], page["number"]) == (420, 300, 1)
    assert run(["read", str(folder / "a.png"), "nowhere.png", *models]) == 1
    assert "nowhere.png: cannot be read" in capfd.readouterr().err


def test_the_verb_without_models_says_which_options_give_them(folder, capfd):
    if all((weights.FOLDER / f"{name}.onnx").exists() for name in weights.NAMES):
        pytest.skip("this inkmill carries weights")
    assert run(["read", str(folder / "a.png")]) == 2
    said = capfd.readouterr().err
    assert "--detector FILE" in said
    assert "--reader FILE" in said
