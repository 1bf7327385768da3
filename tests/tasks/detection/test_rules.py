"""Which pictures and regions a detector learns from."""

from __future__ import annotations

import numpy as np
import pytest

from inkmill.data.pipeline.pages import PageResize
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Polygons, Text
from inkmill.report import Page
from inkmill.tasks.detection.decode import DecodeOptions
from inkmill.tasks.detection.rules import RegionRules
from inkmill.tasks.detection.targets import MapOptions

RULES = RegionRules(Resize(100, 200, 3), min_side=8)


def box(left, top, width, height):
    right, bottom = left + width, top + height
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def judged(*targets, sizes=None, lost=()):
    judge = RULES.judge()
    sizes = np.array(sizes or [(400, 200)] * len(targets), np.int32)
    return judge.judge(list(targets), sizes, lost), judge.facts()


def test_a_picture_without_regions_is_used():
    verdict, facts = judged(Polygons((), (), ()))
    assert verdict.faults == []
    assert (facts["samples"], facts["without_regions"], facts["regions"]) == (1, 1, 0)


def test_regions_without_texts_are_learned():
    verdict, facts = judged(Polygons((box(0, 0, 100, 40),), (False,)))
    assert verdict.faults == []
    assert (facts["learned"], facts["texts"]) == (1, 0)


def test_every_reason_to_ignore_a_region_is_counted():
    shapes = (box(0, 0, 100, 40), box(0, 0, 90, 40), box(0, 50, 90, 12), box(50, 50, 60, 0), box(380, 0, 200, 40))
    _, facts = judged(Polygons(shapes, (False, True, False, False, False)))
    assert facts["ignored"] == {"marked": 1, "too small": 1, "no area": 1, "outside": 1}
    assert (facts["regions"], facts["learned"]) == (5, 1)


def test_what_is_too_small_is_told_in_pixels_of_the_input():
    region = Polygons((box(0, 0, 100, 12),), (False,))
    assert judged(region, sizes=[(200, 100)])[1]["learned"] == 1
    assert judged(region, sizes=[(400, 200)])[1]["ignored"]["too small"] == 1
    assert judged(region, sizes=[(0, 0)])[1]["learned"] == 1, "the size is not known"


def test_of_whole_pictures_the_input_is_as_large_as_they_are_read():
    judge = RegionRules(PageResize(96, 192, 3), min_side=8).judge()
    judge.judge([Polygons((box(0, 0, 40, 9), box(0, 20, 40, 7)), (False, False))], np.array([[96, 192]], np.int32), ())
    assert judge.facts()["ignored"]["too small"] == 1
    assert judge.facts()["short_sides"]["8-12"] == 1


def test_the_page_tells_what_perfect_maps_reach():
    rules = RegionRules(PageResize(96, 192, 3), 8, MapOptions(), DecodeOptions())
    judge = rules.judge()
    judge.judge(
        [Polygons((box(10, 10, 60, 20), box(10, 50, 60, 20)), (False, False))], np.array([[96, 96]], np.int32), ()
    )
    assert judge.facts()["ceiling"]["h-mean"] == 1
    assert judge.facts()["ceiling"]["mean IoU"] > 0.9
    assert rules.digest() != RegionRules(PageResize(96, 192, 3), 8).digest()


def test_a_sample_that_is_lost_is_not_counted():
    assert judged(Polygons((box(0, 0, 100, 40),), (False,)), lost=(0,))[1]["samples"] == 0


def test_a_text_teaches_no_detector():
    verdict, _ = judged(Text("hello"), None)
    assert [(offset, reason) for offset, reason, _ in verdict.faults] == [(0, "no_regions_known")]


@pytest.mark.parametrize(
    "target",
    [
        Polygons((box(0, 0, 9, 9),), (), ()),
        Polygons((np.zeros((2, 2), np.float32),), (False,)),
        Polygons((np.full((4, 2), np.nan, np.float32),), (False,)),
        Polygons((np.zeros((2000, 2), np.float32),), (False,)),
    ],
)
def test_a_target_that_no_format_gives_is_left_out(target):
    assert [reason for _, reason, _ in judged(target)[0].faults] == ["bad_region"]


def test_the_page_says_when_most_regions_would_be_ignored(tmp_path):
    _, facts = judged(Polygons((box(0, 0, 100, 40), box(0, 0, 90, 40), box(0, 0, 80, 40)), (False, True, True)))
    page = Page("check")
    RULES.show(page, facts)
    page.write(tmp_path / "page.html")
    assert "More than half of the regions would be ignored" in (tmp_path / "page.html").read_text()


def test_other_rules_have_another_digest():
    assert RegionRules(RULES.resize, 8).digest() == RULES.digest() != RegionRules(RULES.resize, 3).digest()
