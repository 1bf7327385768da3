"""Drawn pages: their regions hold their ink, and a page depends on its number alone."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from inkmill.synth.pages import PageBank, draw_page


@pytest.fixture(scope="module")
def bank() -> PageBank:
    return PageBank.make(grounds=8)


def test_a_page_depends_on_its_number_alone(bank: PageBank) -> None:
    first, again, other = (draw_page(bank, 3, number, 320) for number in (5, 5, 6))
    assert np.array_equal(first[0], again[0])
    assert all(np.array_equal(a, b) for a, b in zip(first[1].points, again[1].points, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_regions_are_quads_with_their_texts_and_those_cut_off_are_ignored(bank: PageBank) -> None:
    for number in range(12):
        image, regions = draw_page(bank, 0, number, 320)
        assert image.shape == (320, 320, 3)
        assert image.dtype == np.uint8
        assert len(regions.points) == len(regions.ignore) == len(regions.texts)
        for points, ignore, text in zip(regions.points, regions.ignore, regions.texts, strict=True):
            assert points.shape == (4, 2)
            assert text.strip()
            assert ignore or (points.min() > -1 and points.max() < 320)


def test_the_strokes_of_a_document_lie_in_its_regions(bank: PageBank) -> None:
    shares = []
    for number in range(30):
        image, regions = draw_page(bank, 1, number, 320)
        if not regions.points:
            continue
        inside = np.zeros(image.shape[:2], np.uint8)
        cv2.fillPoly(inside, [np.round(points).astype(np.int32) for points in regions.points], 1)
        edges = np.abs(cv2.Laplacian(cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (0, 0), 1), cv2.CV_32F))
        shares.append(edges[inside == 1].mean() / max(edges[inside == 0].mean(), 1e-6))
    assert np.median(shares) > 2
