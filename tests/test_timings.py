from __future__ import annotations

from inkmill.timings import TIMINGS, Timings


def test_phases_add_up_and_the_largest_comes_first() -> None:
    timings = Timings()
    timings.seconds |= {"loader": 0.5, "forward": 2.0, "decode": 0.25, "metric": 0.25}
    assert timings.total == 3.0
    assert timings.summary() == "3.0 s: forward 67%, loader 17%, decode 8%, metric 8%"
    assert timings.as_dict() == {"loader": 0.5, "forward": 2.0, "decode": 0.25, "metric": 0.25, "total": 3.0}
    timings.seconds["ranks"] = 1.0
    assert timings.shares()["ranks"] == (1.0, 0.25)


def test_a_lap_is_what_passed_since_the_last_one() -> None:
    timings = Timings()
    timings.lap("forward")
    first = timings.seconds["forward"]
    assert 0 < first < 1
    timings.start()
    timings.lap("metric")
    assert timings.seconds["forward"] == first
    assert timings.total == first + timings.seconds["metric"]


def test_no_time_is_no_division_by_zero() -> None:
    assert Timings().summary() == "0.0 s: loader 0%, forward 0%, decode 0%, metric 0%"
    assert tuple(Timings().seconds) == TIMINGS
