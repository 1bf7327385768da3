from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.errors import DataError
from inkmill.synth.atlas import MAX_SIDE, Atlas, build_atlas, capitals_of, draw_face, signed_distances, trim_cache
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.fonts import CARRIED, read_faces
from inkmill.synth.params import EM_PIXELS, SPREAD_PIXELS, STEPS_PER_PIXEL

FILES = [CARRIED / name for name in ("OpenSans-Regular.ttf", "Bangers-Regular.ttf", "Anton-Regular.ttf")]


def glyph(atlas: Atlas, font: int, character: str) -> tuple[np.ndarray, int, int]:
    """Return a glyph's signed distances in pixels, and its left and top."""
    offset, left, top, width, height = atlas.glyphs.boxes[atlas.fonts.glyphs[font, CHARACTERS.index(character)]]
    stored = atlas.glyphs.distances[offset : offset + width * height].reshape(height, width)
    return (stored.astype(float) - 128) / STEPS_PER_PIXEL, left, top


def test_distances_of_a_square_are_exact_inside_and_outside():
    stored, left, top = signed_distances(np.ones((80, 80), bool), 0, -80)  # 20 x 20 pixels of the atlas
    distances = (stored.astype(float) - 128) / STEPS_PER_PIXEL
    row, column = -10 - top, 10 - left  # the middle of the square
    assert distances[row, 0 - left] == pytest.approx(0, abs=0.1)  # on its left edge
    assert distances[row, 3 - left] == pytest.approx(3, abs=0.1)
    assert distances[row, -5 - left] == pytest.approx(-5, abs=0.1)
    assert distances[-24 - top, column] == pytest.approx(-4, abs=0.1)
    assert distances[[0, -1]].max() <= -7.9  # a frame that is out of reach
    assert distances[:, [0, -1]].max() <= -7.9


def test_a_glyph_lies_on_the_baseline_with_the_height_that_the_font_gives_it(atlas: Atlas):
    distances, left, top = glyph(atlas, 0, "H")
    rows = np.flatnonzero((distances > 0).any(axis=1)) + top
    assert rows[-1] in (-1, 0)  # the baseline
    assert rows[0] == pytest.approx(-0.714 * EM_PIXELS, abs=1)  # Open Sans: capitals are 1462 of 2048 units high
    ink = atlas.fonts.ink[0, CHARACTERS.index("H")]
    np.testing.assert_allclose(ink[[1, 3]], [-0.714, 0], atol=0.01)
    assert left < 0 < ink[0] < ink[2] < atlas.fonts.advances[0, CHARACTERS.index("H")]


def test_every_letter_with_marks_is_higher_than_its_base_and_its_own(atlas: Atlas):
    ink, codes = atlas.fonts.ink[0], [CHARACTERS.index(mark) for mark in "AÂẤẦ"]
    assert ink[codes[0], 1] > ink[codes[1], 1] > ink[codes[2], 1]
    acute, grave = glyph(atlas, 0, "Ấ")[0], glyph(atlas, 0, "Ầ")[0]
    assert acute.shape != grave.shape or np.abs(acute - grave).max() > 1


def test_a_space_is_covered_and_has_no_glyph(atlas: Atlas):
    code = CHARACTERS.index(" ")
    assert atlas.fonts.covered[:, code].all()
    assert (atlas.fonts.glyphs[:, code] == -1).all()
    assert (atlas.fonts.advances[:, code] > 0.1).all()


def test_fonts_of_capitals_are_found_and_others_are_not(atlas: Atlas):
    assert atlas.names == ["Open Sans", "Bangers", "Anton"]
    assert atlas.fonts.caps_only.tolist() == [False, True, False]
    capitals = capitals_of("aAé5É")
    assert capitals.tolist() == [1, 1, 4, 3, 4]


def test_a_sign_that_is_drawn_as_another_is_not_covered(atlas: Atlas):
    # Anton draws the hyphen for the en dash.
    report = next(report for report in atlas.reports if report.name == "Anton")
    assert report.missing == "–"
    assert not atlas.fonts.covered[2, CHARACTERS.index("–")]


def test_glyphs_come_from_the_cache_bit_by_bit_and_a_damaged_file_is_drawn_again(atlas: Atlas, glyph_cache: Path):
    kept = sorted(glyph_cache.glob("*.npz"))
    assert len(kept) >= 3
    kept[0].write_bytes(kept[0].read_bytes()[:1000])
    kept[1].write_bytes(b"not what it was")
    again = build_atlas(FILES, CHARACTERS, glyph_cache)
    np.testing.assert_array_equal(again.glyphs.distances, atlas.glyphs.distances)
    np.testing.assert_array_equal(again.glyphs.boxes, atlas.glyphs.boxes)
    assert again.reports == atlas.reports


def test_the_cache_keeps_what_was_used_last(tmp_path: Path):
    import os

    for number in range(4):
        (tmp_path / f"{number}.npz").write_bytes(bytes(100))
        os.utime(tmp_path / f"{number}.npz", (number, number))
    assert trim_cache(tmp_path, 250) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.npz", "3.npz"]


def test_what_cannot_be_used_is_reported_and_nothing_usable_is_an_error(glyph_cache: Path, tmp_path: Path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font at all")
    atlas = build_atlas([FILES[0], broken], "Hello", glyph_cache)
    assert [bool(report.problem) for report in atlas.reports] == [False, True]
    with pytest.raises(DataError, match="none of 1 fonts can be used, the first because: cannot be read as a font"):
        build_atlas([broken], "Hello", glyph_cache)
    with pytest.raises(DataError, match="no font has the characters '漢'"):
        build_atlas([FILES[0]], "a漢", glyph_cache)


@given(
    places=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=60),
    inside=st.sampled_from(["glyf", "loca", "hmtx", "cmap", "head", "maxp", "all"]),
)
@settings(max_examples=60)
def test_a_damaged_font_is_drawn_as_far_as_it_goes_or_refused(places: list[tuple[float, int]], inside: str):
    data = bytearray(FILES[2].read_bytes())
    first, size = 0, len(data)
    for record in range(12, 12 + 16 * data[5], 16):  # the table directory: tag, checksum, offset, length
        if data[record : record + 4] == inside.encode():
            first, size = (int.from_bytes(data[record + part : record + part + 4]) for part in (8, 12))
    for place, byte in places:
        data[first + int(place * size)] = byte
    try:
        faces = [draw_face(bytes(data), face, "AabẾ1 .") for face in read_faces(bytes(data))]
    except DataError:
        return
    for face in faces:
        assert np.isfinite(face.advances).all()
        assert (face.boxes[:, 3:].prod(axis=1).sum()) == len(face.distances)
        assert face.boxes[:, 3:].max(initial=0) <= MAX_SIDE + 2 * SPREAD_PIXELS + 4
