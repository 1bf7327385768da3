"""Grounds: the same numbers give the same bank, no picture is like another, folders are cut from at several scales."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from inkmill.errors import DataError
from inkmill.synth.grounds import make_grounds


def test_the_same_seed_makes_the_same_bank_whatever_its_size():
    few, _ = make_grounds(5, 32, seed=3)
    more, _ = make_grounds(9, 32, seed=3)
    assert np.array_equal(few, more[:5])
    assert not np.array_equal(few, make_grounds(5, 32, seed=4)[0])


def test_grounds_differ_in_brightness_in_colour_and_in_detail():
    bank, notes = make_grounds(64, 32)
    assert notes == []
    assert (bank.shape, bank.dtype) == ((64, 32, 32, 3), np.uint8)
    grey = bank.mean(axis=3)
    assert np.ptp(grey.mean(axis=(1, 2))) > 120
    detail = np.abs(np.diff(grey, axis=2)).mean(axis=(1, 2))
    assert np.quantile(detail, 0.9) > 8 * np.quantile(detail, 0.1)
    assert np.abs(bank[..., 0].astype(int) - bank[..., 2]).mean(axis=(1, 2)).max() > 40


def test_a_folder_of_pictures_gives_its_share_of_the_bank(tmp_path):
    picture = np.zeros((60, 90, 3), np.uint8)
    picture[..., 2] = 200  # red, in OpenCV's order
    cv2.imwrite(str(tmp_path / "red.png"), picture)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    bank, notes = make_grounds(8, 16, folders=[str(tmp_path)], share=0.5)
    assert (bank[:4] == [200, 0, 0]).all()
    assert not (bank[4:] == [200, 0, 0]).all(axis=(1, 2, 3)).any()
    assert len(notes) == 1
    assert "1 of 2 pictures" in notes[0]


def test_a_folder_in_which_nothing_can_be_read_is_an_error(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of its 1 pictures can be read"):
        make_grounds(4, 16, folders=[str(tmp_path)])
    with pytest.raises(DataError, match="no image there"):
        make_grounds(4, 16, folders=[str(tmp_path / "missing")])


@pytest.mark.parametrize(("count", "side"), [(0, 32), (1, 8), (1, 48)])
def test_a_bank_that_no_composer_takes_is_refused(count, side):
    with pytest.raises(ValueError, match="power of two"):
        make_grounds(count, side)
