from __future__ import annotations

import cv2
import numpy as np
import pytest

from inkmill.bench.workload import render_crop, strong_ops, strong_ranges, strong_spec, write_crops
from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import Curve, Elastic, load_preset
from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import LmdbSource
from inkmill.data.types import Text


def test_a_crop_depends_on_seed_and_index_alone():
    assert render_crop(1, 7) == render_crop(1, 7)
    assert len({render_crop(seed, index) for seed in (1, 2) for index in (7, 8)}) == 4


def test_crops_are_colour_jpegs_of_the_size_of_real_ones():
    crops = [render_crop(1, index) for index in range(300)]
    images = [decode(data, 3) for data, _ in crops]
    assert all(data.startswith(b"\xff\xd8") for data, _ in crops)
    assert 2200 < np.mean([len(data) for data, _ in crops]) < 3200
    heights = [image.shape[0] for image in images]
    assert (min(heights), max(heights)) == (20, 64)
    assert len({image.shape[1] for image in images}) > 100
    assert any(np.ptp(image.mean(axis=(0, 1))) > 10 for image in images)  # not gray in disguise


def test_a_crop_shows_its_word_dark_on_light():
    data, word = render_crop(1, 3)
    gray = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
    ink = (gray < 0.6 * np.median(gray)).any(axis=0)
    assert np.ptp(np.flatnonzero(ink)) > 0.4 * gray.shape[1]
    assert 2 <= len(word) <= 12


def test_crops_are_written_as_an_lmdb_that_any_loader_reads(tmp_path):
    source = LmdbSource(write_crops(tmp_path / "crops", 20))
    assert len(source) == 20
    data, word = render_crop(1, 19)
    assert source.get(19).image == data
    assert source.target(19) == Text(word)


def test_strong_is_the_scene_text_preset_without_its_local_warps():
    preset = load_preset("scene_text")
    assert strong_ops() == [op for op in preset if not isinstance(op, Curve | Elastic)]
    assert len(strong_ops()) == len(preset) - 2


def test_inkmill_and_the_peers_read_the_same_strong_list():
    layout = Augmentation.from_spec(strong_spec()).layout
    assert layout == Augmentation(strong_ops()).layout
    assert layout.waves == 0
    assert strong_ranges().jpeg in strong_ops()


def test_one_affine_happens_as_often_as_any_of_its_four_ops():
    ranges = strong_ranges()
    none = 1.0
    for op in (ranges.rotate, ranges.shear, ranges.scale, ranges.shift):
        none *= 1 - op.p
    assert ranges.affine_p == pytest.approx(1 - none)
