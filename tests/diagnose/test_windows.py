from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.diagnose.windows import Interval, Rounds, difference, exactly, in_rounds, interval, steady, t95

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


@given(values, st.floats(0, 100))
def test_an_interval_holds_its_mean_and_scales(some: list[float], factor: float) -> None:
    one = interval(some)
    assert one.low <= one.mean <= one.high
    assert one.scaled(factor).half == pytest.approx(one.half * factor)
    assert (one + exactly(1.0)).half == pytest.approx(one.half)


def test_one_window_says_nothing_about_its_error() -> None:
    assert math.isinf(interval([1.0]).high)


@given(values)
def test_what_slows_a_whole_round_does_not_blur_the_difference(drift: list[float]) -> None:
    found = difference([level + 0.25 for level in drift], drift)
    assert found.mean == pytest.approx(0.25)
    assert found.half < 1e-6


def test_windows_are_taken_in_turn_until_they_agree() -> None:
    order: list[str] = []
    noise = itertools.cycle([0.9, 1.1])

    def steady(name: str, value: float) -> float:
        order.append(name)
        return value

    found = in_rounds({"a": lambda: steady("a", 1.0), "b": lambda: steady("b", 2.0)}, Rounds(60, least=3))
    assert order == ["a", "b"] * 3
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert len(in_rounds({"a": lambda: next(noise)}, Rounds(60, most=12))["a"]) == 12


def test_time_that_is_up_ends_it_but_not_before_the_least() -> None:
    noise = itertools.count()
    assert len(in_rounds({"a": lambda: float(next(noise))}, Rounds(0.0, least=4))["a"]) == 4


def test_sums_of_quantities_measured_apart_add_their_errors_squared() -> None:
    assert (Interval(1, 0.7, 1.3, 5) + Interval(2, 1.6, 2.4, 7)).half == pytest.approx(0.5)


def test_a_window_that_something_else_took_the_core_from_is_left_out() -> None:
    assert steady([1.0, 1.2, 0.9, 50.0, 1.1]) == [1.0, 1.2, 0.9, 1.1]
    assert steady([2.0]) == [2.0]
