"""From maps back to regions: the exact inverse of the targets, whatever the rule, the aspect and the angle."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.data.pipeline.pages import PageResize
from inkmill.data.types import Polygons
from inkmill.tasks.detection.decode import DecodeOptions, MapDecoder, as_bytes, find_regions, growth
from inkmill.tasks.detection.metrics import match_regions
from inkmill.tasks.detection.targets import MapOptions, text_maps

SIZE = (192, 320)


def map_of(*regions: np.ndarray, rule: str = "inradius", share: float = 0.5, stride: int = 2) -> np.ndarray:
    points = np.concatenate(regions).astype(np.float32)
    starts = np.cumsum([0, *map(len, regions)]).astype(np.int32)
    options = MapOptions(rule, share, min_height=0, min_visible=0, stride=stride)  # type: ignore[arg-type]
    found = text_maps(
        points, starts, np.array([0, len(regions)], np.int32), np.zeros(len(regions), np.uint8), SIZE, options
    )
    return as_bytes(found[0, 0])


def overlap(region: np.ndarray, found: np.ndarray) -> float:
    match = match_regions(Polygons((region,), (False,)), [found], limit=0.0)
    return float(match.iou[0])


@settings(max_examples=60)
@given(
    st.sampled_from([("inradius", 0.5), ("inradius", 0.3), ("shrink", 0.4), ("shrink", 0.6)]),
    st.floats(12, 40),
    st.floats(1, 6),
    st.floats(0, 180),
    st.tuples(st.floats(120, 200), st.floats(90, 100)),
)
def test_what_the_targets_shrink_decoding_grows_back(
    rule: tuple[str, float], high: float, aspect: float, degrees: float, centre: tuple[float, float]
) -> None:
    region = cv2.boxPoints((centre, (min(high * aspect, 170), high), degrees))
    options = DecodeOptions(*rule, box_threshold=0.3)  # type: ignore[arg-type]
    (found,) = find_regions(map_of(region, rule=rule[0], share=rule[1]), options).found
    # Half a pixel on each side of a text of 12 pixels is an eighth of it.
    assert overlap(region, found.points) > (0.75 if high <= 20 else 0.85)


@given(st.sampled_from([("inradius", 0.5), ("shrink", 0.4), ("shrink", 0.7)]), st.floats(4, 400), st.floats(4, 400))
def test_growth_is_the_exact_inverse_of_both_rules(rule: tuple[str, float], wide: float, high: float) -> None:
    options = DecodeOptions(*rule)  # type: ignore[arg-type]
    grow = growth(options, wide, high)
    wide, high = wide + 2 * grow, high + 2 * grow
    shrunk = min(wide, high) / 2 * rule[1]
    if rule[0] == "shrink":
        shrunk = wide * high * (1 - rule[1] ** 2) / (2 * (wide + high))
    assert grow == pytest.approx(shrunk, rel=1e-6)


@pytest.mark.parametrize("rule", [("inradius", 0.5), ("shrink", 0.4)])
def test_polygons_follow_curved_text(rule: tuple[str, float]) -> None:
    angles = np.linspace(np.pi * 1.15, np.pi * 1.85, 12)
    centre = np.array([160, 190])
    outer, inner = (centre + r * np.stack([np.cos(angles), np.sin(angles)], 1) for r in (150, 120))
    region = np.concatenate([outer, inner[::-1]]).astype(np.float32)
    options = DecodeOptions(*rule, box_threshold=0.3, shape="polygon")  # type: ignore[arg-type]
    (found,) = find_regions(map_of(region, rule=rule[0], share=rule[1]), options).found
    assert len(found.points) > 6
    assert overlap(region, found.points) > 0.85
    quad = find_regions(map_of(region, rule=rule[0], share=rule[1]), DecodeOptions(*rule)).found[0]  # type: ignore[arg-type]
    assert overlap(region, quad.points) < overlap(region, found.points)


def test_corners_come_clockwise_from_the_upper_left_one() -> None:
    region = np.array([[40, 60], [200, 80], [196, 112], [36, 92]], np.float32)
    (found,) = find_regions(map_of(region), DecodeOptions()).found
    np.testing.assert_allclose(found.points, region, atol=2.5)


def test_scores_are_the_mean_of_the_map_and_decide() -> None:
    one = np.zeros((96, 160), np.uint8)
    one[20:30, 10:60], one[60:70, 10:60] = 230, 140
    found = find_regions(one, DecodeOptions(box_threshold=0.3)).found
    assert sorted(round(region.score, 2) for region in found) == [
        pytest.approx(140 / 255, abs=0.02),
        pytest.approx(0.9, abs=0.03),
    ]
    (sure,) = find_regions(one, DecodeOptions(box_threshold=0.7)).found
    assert sure.score > 0.8


def test_of_too_many_regions_the_smallest_are_left_out_and_counted() -> None:
    one = np.zeros((96, 160), np.uint8)
    for number in range(6):
        one[10 + 14 * number : 16 + 14 * number, 10 : 30 + 15 * number] = 255
    found = find_regions(one, DecodeOptions(max_regions=2))
    assert found.left_out == 4
    assert [round(float(np.ptp(region.points[:, 0]))) > 160 for region in found.found] == [True, True]


def test_the_rim_of_a_hole_is_no_region_but_text_in_it_is() -> None:
    one = np.zeros((96, 160), np.uint8)
    cv2.rectangle(one, (20, 10), (140, 86), 255, 8)
    assert len(find_regions(one, DecodeOptions(box_threshold=0.2)).found) == 1
    one[40:56, 60:100] = 255
    assert len(find_regions(one, DecodeOptions(box_threshold=0.2)).found) == 2


def test_an_empty_map_gives_no_regions_and_a_full_one_the_whole_picture() -> None:
    empty, full = np.zeros((96, 160), np.uint8), np.full((96, 160), 255, np.uint8)
    assert find_regions(empty, DecodeOptions()).found == ()
    (whole,) = find_regions(full, DecodeOptions()).found
    assert np.ptp(whole.points[:, 0]) >= 319


def test_regions_are_in_pixels_of_the_picture() -> None:
    region = np.array([[40, 60], [200, 60], [200, 92], [40, 92]], np.float32)
    decoder = MapDecoder(DecodeOptions(), PageResize(SIZE[0], SIZE[1], 3))
    maps = {"probabilities": np.stack([map_of(region) / np.float32(255)] * 3)}
    sizes = np.array([[320, 192], [640, 384], [160, 96]], np.int32)
    same, twice, half = (one.found[0].points for one in decoder.decode(maps, sizes))
    np.testing.assert_allclose(twice, (same + 0.5) * 2 - 0.5, atol=1e-3)
    np.testing.assert_allclose(half, (same + 0.5) / 2 - 0.5, atol=1e-3)
    np.testing.assert_allclose(decoder.decode(maps)[0].found[0].points, same)


def test_a_region_as_plain_values() -> None:
    (one,) = MapDecoder(DecodeOptions(), PageResize(SIZE[0], SIZE[1], 3)).decode(
        {"probabilities": map_of(np.array([[40, 60], [200, 60], [200, 92], [40, 92]]))[None]}
    )
    values = one.as_dict()
    assert values["count"] == 1
    assert values["left_out"] == 0
    assert values["regions"][0]["points"][0] == pytest.approx([40, 60], abs=1)
