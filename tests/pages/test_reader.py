"""Pages that are drawn and read: text, places, rotation, ways to read a line, batches, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from inkmill.errors import ConfigError
from inkmill.pages.geometry import apply, turned
from inkmill.pages.reader import PageReader, batches
from inkmill.pages.types import PageImage

TEXT = "QUEBEC 7146\nRAT CLUB TAPE\nFAQ 25 PUTTY\nBRAVE GRAY JURY 3"


def image_of(pixels, name="drawn"):
    return PageImage(name, 1, np.ascontiguousarray(pixels))


def text_of(page):
    """The text without the empty lines between blocks: these lines stand far apart."""
    return page.text.replace("\n\n", "\n")


def words_of(page):
    return [word for line in page.lines for word in line.words]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_page_is_read_in_whichever_direction_it_lies(page_reader, drawn, rotation):
    page = page_reader.read_page(image_of(np.rot90(drawn.pixels, -rotation // 90)))
    assert page.rotation == rotation
    assert text_of(page) == TEXT
    assert (page.width, page.height) == ((420, 300) if rotation in (0, 180) else (300, 420))


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_words_lie_where_they_are_on_the_displayed_page(page_reader, drawn, rotation):
    page = page_reader.read_page(image_of(np.rot90(drawn.pixels, -rotation // 90)))
    upright = turned(page.width, page.height, rotation)
    for word, (text, left, top, right, bottom) in zip(words_of(page), drawn.words, strict=True):
        assert word.text == text
        # From the top left of the text on: turned back, that is the top left of the picture.
        corners = apply(upright, word.polygon)
        assert corners[0] == pytest.approx([left, top], abs=7)
        assert corners[2] == pytest.approx([right, bottom], abs=7)
        assert len(word.characters) == len(text)
        inside = apply(upright, word.characters)
        assert (np.diff(inside[:, 0, 0]) > 0).all()


@pytest.mark.parametrize("angle", [-4.0, 3.0])
def test_a_page_that_lies_askew_is_read_and_its_angle_told(page_reader, drawn, angle):
    turn = cv2.getRotationMatrix2D((210, 150), -angle, 1)
    pixels = cv2.warpAffine(drawn.pixels, turn, (420, 300), flags=cv2.INTER_CUBIC, borderValue=(255, 255, 255))
    page = page_reader.read_page(image_of(pixels))
    assert text_of(page) == TEXT
    assert page.skew == pytest.approx(angle, abs=0.7)


def test_two_columns_are_read_one_after_the_other(page_reader, draw_page):
    left = [(20, 20 + 40 * row, text) for row, text in enumerate(["QUEBEC BRAVE", "RAT PLATE 12", "CRAB TUB 345"])]
    right = [(330, 20 + 40 * row, text) for row, text in enumerate(["FAQ JURY 77", "GRAY TULA 61", "PUTTY BAR 23"])]
    page = page_reader.read_page(image_of(draw_page([*left, *right], (560, 160)).pixels))
    assert text_of(page).split("\n") == [text for _, _, text in [*left, *right]]


@pytest.mark.parametrize("turn", [1, -1])
def test_a_turned_line_on_an_upright_page_is_read_its_own_way(page_reader, drawn, draw_page, turn):
    pixels = drawn.pixels.copy()
    pixels[20:180, 360:400] = np.rot90(draw_page([(4, 6, "TAPE 431")], (160, 40)).pixels, turn)
    page = page_reader.read_page(image_of(pixels))
    assert page.rotation == 0
    assert "TAPE 431" in [line.text for line in page.lines]


@pytest.mark.parametrize("text", ["J", "7", "T4"])
def test_high_crops_are_read_upright_and_turned_and_the_surer_reading_stays(page_reader, drawn, draw_page, text):
    pixels = drawn.pixels.copy()
    pixels[230:290, 350:400] = draw_page([(8, 8, text)], (50, 60), height=34).pixels
    assert page_reader.read_page(image_of(pixels)).lines[-1].text == text


def test_a_line_longer_than_the_reader_takes_is_read_in_parts(draw_page, ink_detector, nearest_letter):
    text = "QUEBEC 7146 RAT CLUB TAPE FAQ 25 PUTTY BRAVE GRAY JURY 3"
    image = image_of(draw_page([(20, 20, text)], (960, 60)).pixels)
    whole = PageReader(ink_detector(), nearest_letter()).read_page(image)
    parts = PageReader(ink_detector(), nearest_letter(longest=7.0))
    assert len(parts.find(image).crops) + len(parts.find(image).known) > 3
    page = parts.read_page(image)
    assert page.text == whole.text == text
    for one, other in zip(words_of(page), words_of(whole), strict=True):
        assert one.polygon == pytest.approx(other.polygon, abs=2)


def test_a_long_strip_goes_to_the_detector_in_tiles_and_every_line_is_found_once(
    draw_page, nearest_letter, ink_detector
):
    lines = [(20, 20 + 40 * row, f"RAT {row % 7 + 1} CLUB") for row in range(90)]
    detector = ink_detector()
    page = PageReader(detector, nearest_letter()).read_page(image_of(draw_page(lines, (260, 3640)).pixels))
    assert [line.text for line in page.lines] == [text for _, _, text in lines]
    assert max(max(size) for size in detector.sizes) <= 1100


def test_lines_of_several_pages_read_together_say_what_they_say_alone(page_reader, drawn, draw_page):
    images = [image_of(drawn.pixels), image_of(draw_page([(20, 20, "PUTTY")], (200, 80)).pixels)] * 2
    jobs = [page_reader.find(image) for image in images]
    texts = iter(page_reader.recognise([crop for job in jobs for crop in job.crops]))
    together = [text_of(page_reader.finish(job, [next(texts) for _ in job.crops])) for job in jobs]
    assert together == [text_of(page_reader.read_page(image)) for image in images] == [TEXT, "PUTTY"] * 2


def test_threads_that_share_a_reader_get_what_one_alone_gets(page_reader, drawn, draw_page):
    pages = [draw_page([(20, 20, f"RAT {n % 7 + 1}{n // 7 + 1} CLUB")], (220, 70)).pixels for n in range(24)]
    serial = [page_reader.read_page(image_of(pixels)).text for pixels in pages]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pixels: page_reader.read_page(image_of(pixels)).text, pages)) == serial


def test_batches_hold_crops_of_one_size_and_every_crop_once(page_reader, drawn, draw_page):
    pages = [drawn.pixels, draw_page([(20, 20, "PUTTY"), (20, 60, "RAT")], (200, 120)).pixels]
    crops = [crop for pixels in pages for crop in page_reader.find(image_of(pixels)).crops]
    found = batches(crops)
    assert sorted(index for batch in found for index in batch) == list(range(len(crops)))
    assert all(len({crops[index].size for index in batch}) == 1 for batch in found)


def test_an_empty_page_has_no_lines(page_reader):
    page = page_reader.read_page(image_of(np.full((80, 120, 3), 255, np.uint8)))
    assert (page.lines, page.text, page.notes) == ((), "", ())


def test_what_is_hardly_read_is_left_out_and_counted(drawn, draw_page, ink_detector, nearest_letter):
    pixels = drawn.pixels.copy()
    pixels[230:262, 40:160] = np.random.default_rng(1).choice([0, 255], (32, 120, 1)).astype(np.uint8)
    page = PageReader(ink_detector(), nearest_letter(), min_confidence=0.6).read_page(image_of(pixels))
    assert text_of(page) == TEXT
    assert page.notes == ("1 region was left out: read with a confidence below 0.6",)


def test_a_confidence_that_is_none_is_refused(ink_detector, nearest_letter):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        PageReader(ink_detector(), nearest_letter(), min_confidence=50)


@pytest.mark.parametrize("wrong", [3, object()])
def test_an_object_that_is_no_model_is_refused(ink_detector, nearest_letter, wrong):
    with pytest.raises(ConfigError, match="detector"):
        PageReader(wrong, nearest_letter())
    with pytest.raises(ConfigError, match="read_lines"):
        PageReader(ink_detector(), wrong)
