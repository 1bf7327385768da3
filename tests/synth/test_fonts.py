from pathlib import Path

import pytest

from inkmill.errors import DataError
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.fonts import CARRIED, FontReport, find_fonts, read_faces, report_text


def test_the_carried_fonts_have_their_licence_beside_them_and_are_small():
    files = find_fonts([CARRIED])
    licence = (CARRIED / "OFL.txt").read_text(encoding="utf-8")
    assert "SIL OPEN FONT LICENSE Version 1.1" in licence
    assert all(file.name in licence for file in files)
    assert sum(file.stat().st_size for file in files) < 1.5e6


def test_each_carried_font_maps_ascii_and_every_vietnamese_letter():
    letters = {ord(character) for character in CHARACTERS[: 95 + 134]}
    for file in find_fonts([CARRIED]):
        (face,) = read_faces(file.read_bytes())
        assert letters <= face.code_points, file.name
        assert face.name


def test_a_folder_without_fonts_is_an_error_that_says_what_was_expected(tmp_path: Path):
    (tmp_path / "readme.txt").write_text("no font")
    with pytest.raises(DataError, match=r"no font in .*\.ttf"):
        find_fonts([tmp_path])
    with pytest.raises(DataError, match="no font file or folder"):
        find_fonts([tmp_path / "nowhere"])


@pytest.mark.parametrize("data", [b"", b"ttcf", b"\0\1\0\0" * 20, b"OTTO" + bytes(100)])
def test_a_damaged_font_is_an_error_and_not_a_traceback(data: bytes):
    with pytest.raises(DataError, match="cannot be read as a font"):
        read_faces(data)


def test_the_report_says_what_is_used_what_is_missing_and_why_the_rest_is_not():
    whole = [FontReport(f"{n}.ttf", f"Font {n}", "", n == 0, "") for n in range(20)]
    others = [FontReport("a.ttf", "Poor", "é₫", False, ""), FontReport("b.ttf", "", "", False, "it is damaged")]
    text = report_text(whole + others, "aé₫")
    assert "21 of 22 fonts are used, 20 with all 3 characters, 1 write capitals only" in text
    assert "Poor: lacks é₫" in text
    assert "b.ttf: left out: it is damaged" in text
    assert "less than a tenth" not in text
    assert "'é' (0)" in report_text(others, "aé")
