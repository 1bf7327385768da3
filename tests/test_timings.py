from __future__ import annotations

from inkmill.timings import PHASES, Phases


def test_phases_add_up_and_the_largest_comes_first() -> None:
    phases = Phases()
    phases.seconds |= {"loader": 0.5, "forward": 2.0, "decode": 0.25, "metric": 0.25}
    assert phases.total == 3.0
    assert phases.in_words() == "3.0 s: forward 67%, loader 17%, decode 8%, metric 8%"
    assert phases.as_dict() == {"loader": 0.5, "forward": 2.0, "decode": 0.25, "metric": 0.25, "total": 3.0}
    phases.seconds["ranks"] = 1.0
    assert phases.shares()["ranks"] == (1.0, 0.25)


def test_a_lap_is_what_passed_since_the_last_one() -> None:
    phases = Phases()
    phases.lap("forward")
    first = phases.seconds["forward"]
    assert 0 < first < 1
    phases.start()
    phases.lap("metric")
    assert phases.seconds["forward"] == first
    assert phases.total == first + phases.seconds["metric"]


def test_no_time_is_no_division_by_zero() -> None:
    assert Phases().in_words() == "0.0 s: loader 0%, forward 0%, decode 0%, metric 0%"
    assert tuple(Phases().seconds) == PHASES
