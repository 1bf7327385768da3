from __future__ import annotations

import itertools
from time import monotonic

import pytest

pytest.importorskip("torch")

from inkmill.diagnose.timing import Deadline, Rounds, measure_in_rounds, without_outliers


def test_windows_are_taken_in_turn_until_they_agree() -> None:
    order: list[str] = []
    noise = itertools.cycle([0.9, 1.1])

    def steady(name: str, value: float) -> float:
        order.append(name)
        return value

    found = measure_in_rounds({"a": lambda: steady("a", 1.0), "b": lambda: steady("b", 2.0)}, Rounds(60, least=3))
    assert order == ["a", "b"] * 3
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert len(measure_in_rounds({"a": lambda: next(noise)}, Rounds(60, most=12))["a"]) == 12


def test_time_that_is_up_ends_it_but_not_before_the_floor() -> None:
    noise = itertools.count()
    assert len(measure_in_rounds({"a": lambda: float(next(noise))}, Rounds(0.0, floor=4))["a"]) == 4


def test_a_window_that_something_else_took_the_core_from_is_left_out() -> None:
    assert without_outliers([1.0, 1.2, 0.9, 50.0, 1.1]) == [1.0, 1.2, 0.9, 1.1]
    assert without_outliers([2.0]) == [2.0]


def test_a_round_that_would_end_late_does_not_begin() -> None:
    def slow() -> float:
        until = monotonic() + 0.05
        while monotonic() < until:
            pass
        return 1.0

    began = monotonic()
    assert len(measure_in_rounds({"a": slow}, Rounds(0.22, least=40))["a"]) in (3, 4)
    assert monotonic() - began < 0.3


def test_a_deadline_says_what_it_leaves_out() -> None:
    deadline = Deadline(100.0, monotonic() - 60.0)
    assert 39 < deadline.left() <= 40
    assert deadline.left(0.5) < 0
    assert deadline.part(0.1, 30.0) == 10.0
    assert deadline.part(0.5, 5.0) == 5.0
    assert 39 < deadline.part(0.9, 90.0) <= 40
    assert deadline.part(0.1, 9.0, until=0.5) == 0.0
    assert deadline.allows("a short test", 30.0)
    assert not deadline.allows("a long test", 50.0)
    assert not deadline.allows("a long test", 50.0)
    assert deadline.left_out == [
        "a long test was left out: it takes about 50 s, and there was less time left (see --seconds)"
    ]
