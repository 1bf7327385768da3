from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from inkmill.errors import OutputError
from inkmill.report import MAX_SIDE, Page, Picture, draw_regions


def written(page: Page, folder: Path) -> str:
    page.write(folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def pictures_in(text: str) -> list[np.ndarray]:
    uris = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', text)
    return [cv2.imdecode(np.frombuffer(base64.b64decode(uri), np.uint8), cv2.IMREAD_COLOR) for uri in uris]


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_one_wellformed_file_that_loads_nothing(tmp_path: Path) -> None:
    page = Page("Title")
    page.add_heading("Part")
    page.add_text("words")
    page.add_table(["name", "n"], [["a", 1]], caption="c")
    page.add_bars(["1", "2"], [3, 4])
    page.add_pictures([Picture(np.zeros((4, 5), np.uint8), "x", "ok")])
    text = written(page, tmp_path)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "default-src 'none'" in text
    assert "http:" not in text.replace("http-equiv", "")
    assert "https:" not in text
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_strings_from_data_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>\"&'</script>"
    page = Page(evil)
    page.add_heading(evil)
    page.add_text(evil)
    page.add_table([evil], [[evil]], caption=evil)
    page.add_bars([evil], [1], caption=evil)
    page.add_pictures([Picture("no image", evil)])
    text = written(page, tmp_path)
    assert "<script" not in text
    assert text.count("&lt;script&gt;&quot;&amp;&#x27;&lt;/script&gt;") == 11


def test_unprintable_characters_and_surrogates_are_spelled_out(tmp_path: Path) -> None:
    page = Page("t")
    page.add_text("a\x00\ud800b")
    assert "a\\x00\\ud800b" in written(page, tmp_path)


def test_table_sets_numbers_to_the_right_and_none_as_a_dash(tmp_path: Path) -> None:
    page = Page("t")
    page.add_table(["reason", "count", "share"], [["x", 12345, 0.5], ["y", np.int64(2), None]])
    text = written(page, tmp_path)
    assert "<th>reason</th><th class=n>count</th><th class=n>share</th>" in text
    assert "<td>x</td><td class=n>12,345</td><td class=n>0.5000</td>" in text
    assert "<td class=n>–</td>" in text


def test_percentages_are_set_to_the_right_as_numbers_are(tmp_path: Path) -> None:
    page = Page("t")
    page.add_table(("set", "word accuracy"), [("a", "98.20%"), ("b", None)])
    assert "<td>a</td><td class=n>98.20%</td>" in written(page, tmp_path)


def test_a_single_bar_is_not_a_wall(tmp_path: Path) -> None:
    page = Page("t")
    page.add_bars(["4"], [5002])
    (width,) = re.findall(r'<rect [^>]*width="([\d.]+)"', written(page, tmp_path))
    assert float(width) <= 48


def test_bars_are_as_tall_as_their_counts(tmp_path: Path) -> None:
    page = Page("t")
    page.add_bars(["a", "b", "c"], [0, 5, 10])
    heights = [float(value) for value in re.findall(r'<rect [^>]*height="([\d.]+)"', written(page, tmp_path))]
    assert heights == [0, 70, 140]


def test_bars_of_nothing_are_drawn(tmp_path: Path) -> None:
    page = Page("t")
    page.add_bars([], [])
    assert "<svg" in written(page, tmp_path)


@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 1), (40, 60, 3)])
def test_gray_and_rgb_arrays_are_embedded_whole(tmp_path: Path, shape: tuple[int, ...]) -> None:
    page = Page("t")
    page.add_pictures([Picture(np.full(shape, 200, np.uint8), "x")])
    (picture,) = pictures_in(written(page, tmp_path))
    assert picture.shape == (40, 60, 3)
    assert abs(int(picture.mean()) - 200) <= 1


def test_array_is_rgb_not_bgr(tmp_path: Path) -> None:
    page = Page("t")
    page.add_pictures([Picture(np.full((8, 8, 3), [250, 0, 0], np.uint8), "red")])
    (picture,) = pictures_in(written(page, tmp_path))
    assert picture[4, 4, 2] > 200 > 50 > picture[4, 4, 0]


@pytest.mark.parametrize(("height", "width"), [(900, 1200), (2, 5000)])
def test_large_pictures_are_shrunk(tmp_path: Path, height: int, width: int) -> None:
    page = Page("t")
    page.add_pictures([Picture(np.zeros((height, width), np.uint8), "x")])
    (picture,) = pictures_in(written(page, tmp_path))
    assert picture.shape[1] == MAX_SIDE
    assert picture.shape[0] == max(1, round(height * MAX_SIDE / width))


def test_a_picture_that_cannot_be_shown_says_why(tmp_path: Path) -> None:
    page = Page("t")
    page.add_pictures([Picture(np.zeros((4, 5), np.uint8), "good", "ok"), Picture("cut <short>", "bad", "wrong")])
    text = written(page, tmp_path)
    assert len(pictures_in(text)) == 1
    assert 'class="wrong"><small>cut &lt;short&gt;</small>' in text


def test_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write"):
        Page("t").write(tmp_path / "file" / "page.html")


def test_regions_are_drawn_and_large_pictures_stay_large(tmp_path: Path) -> None:
    picture = np.zeros((300, 900, 3), np.uint8)
    draw_regions(picture, [np.array([[100, 100], [200, 100], [200, 150]], np.float32)], (0, 255, 0))
    assert picture[100, 150].tolist() == [0, 255, 0]
    assert not picture[200:].any()
    page = Page("x")
    page.add_pictures([Picture(picture, "x")], large=True)
    page.add_pictures([Picture(picture, "x")])
    text = written(page, tmp_path)
    assert [image.shape[1] for image in pictures_in(text)] == [900, 400]
    assert 'class="pictures large"' in text
