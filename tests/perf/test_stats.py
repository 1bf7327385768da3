from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.perf.stats import Interval, difference, exactly, interval, stall_of, t95

values = st.lists(st.floats(0.001, 10), min_size=2, max_size=30)


def test_quantiles_are_those_of_students_t() -> None:
    known = {1: 12.7062, 4: 2.7764, 15: 2.1314, 16: 2.1199, 20: 2.0860, 30: 2.0423, 60: 2.0003, 120: 1.9799}
    for degrees, quantile in known.items():
        assert t95(degrees) == pytest.approx(quantile, abs=0.004)


def test_95_of_100_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    for count in (4, 12):
        found = [interval(rng.normal(5, 1, count).tolist()) for _ in range(2000)]
        held = np.mean([one.low <= 5 <= one.high for one in found])
        assert 0.935 < held < 0.965


@given(values)
def test_an_interval_holds_its_mean_and_adds(some: list[float]) -> None:
    one = interval(some)
    assert one.low <= one.mean <= one.high
    assert (one + exactly(1.0)).half == pytest.approx(one.half)


def test_one_window_says_nothing_about_its_error() -> None:
    assert math.isinf(interval([1.0]).high)


@given(values)
def test_what_slows_a_whole_round_does_not_blur_the_difference(drift: list[float]) -> None:
    found = difference([level + 0.25 for level in drift], drift)
    assert found.mean == pytest.approx(0.25)
    assert found.half < 1e-6


def test_sums_of_quantities_measured_apart_add_their_errors_squared() -> None:
    assert (Interval(1, 0.7, 1.3, 5) + Interval(2, 1.6, 2.4, 7)).half == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("mean", "half", "state"),
    [
        (0.5, 0.1, "real"),  # milliseconds of a step of ten
        (5.2, 0.3, "real"),
        (0.6, 0.3, "absent"),  # below a tenth as a whole
        (0.4, 30.0, "absent"),  # small beside the step, whatever two windows of a slow step say of the noise
        (1.0, 1.5, "unclear"),
        (9.0, 9.0, "unclear"),
    ],
)
def test_a_stall_is_real_absent_or_unclear(mean: float, half: float, state: str) -> None:
    mean += 0.2 * (mean == 0.5)
    assert stall_of("prepare", Interval(mean, mean - half, mean + half, 3), 10.0).state == state
