"""The pool of lines: everyone gets their own texts, in their order, whatever comes beside."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inkmill.pages.models import LineText
from inkmill.pages.reader import BATCH_PIXELS
from inkmill.serve.pool import LinePool


class Line:
    """As much of a crop as the pool looks at."""

    def __init__(self, text: str, cost: int = 1000) -> None:
        self.text, self.cost = text, cost


def upper(lines: Sequence[Any]) -> list[Any]:
    return [line.text.upper() for line in lines]


def lines_of(name: str, count: int, cost: int = 1000) -> list[Any]:
    return [Line(f"{name}{number}", cost) for number in range(count)]


def test_each_request_gets_its_own_texts_in_order() -> None:
    with LinePool(upper) as pool, ThreadPoolExecutor(8) as clients:
        answers = clients.map(lambda n: pool.submit(lines_of(f"r{n}-", n % 17)).result(10), range(200))
        for number, texts in enumerate(answers):
            assert texts == [f"R{number}-{line}" for line in range(number % 17)]


def test_what_gathers_while_the_reader_is_busy_is_read_together() -> None:
    busy, go = threading.Event(), threading.Event()
    rounds: list[int] = []

    def slow(lines: Sequence[Any]) -> list[Any]:
        busy.set()
        assert go.wait(10)
        return upper(lines)

    with LinePool(slow, rounds.append) as pool:
        first = pool.submit(lines_of("a", 1))
        assert busy.wait(10)
        others = [pool.submit(lines_of(name, 3)) for name in "bcd"]
        go.set()
        assert first.result(10) == ["A0"]
        assert [other.result(10)[0] for other in others] == ["B0", "C0", "D0"]
    assert rounds == [1, 9]


def test_a_book_does_not_hold_up_a_ticket() -> None:
    order: list[str] = []

    def note(lines: Sequence[Any]) -> list[Any]:
        order.extend(line.text for line in lines)
        return upper(lines)

    gate = threading.Event()
    with LinePool(lambda lines: (gate.wait(10), note(lines))[1]) as pool:
        pool.submit(lines_of("first", 1))
        book = pool.submit(lines_of("book", 100, BATCH_PIXELS // 4))
        ticket = pool.submit(lines_of("ticket", 1))
        gate.set()
        assert len(book.result(10)) == 100
        assert ticket.result(10) == ["TICKET0"]
    assert order.index("ticket0") < order.index("book20")


def test_a_cancelled_request_is_dropped_and_others_go_on() -> None:
    gate, seen = threading.Event(), []

    def wait(lines: Sequence[Any]) -> list[Any]:
        gate.wait(10)
        seen.extend(line.text for line in lines)
        return upper(lines)

    with LinePool(wait) as pool:
        pool.submit(lines_of("a", 1))
        gone = pool.submit(lines_of("gone", 5))
        stays = pool.submit(lines_of("stays", 1))
        gone.cancel()
        gate.set()
        assert stays.result(10) == ["STAYS0"]
    assert not any(text.startswith("gone") for text in seen)


def test_a_fault_reaches_those_whose_lines_it_met() -> None:
    def sometimes(lines: Sequence[Any]) -> list[LineText]:
        if any(line.text.startswith("bad") for line in lines):
            raise RuntimeError("no")
        return upper(lines)

    with LinePool(sometimes) as pool:
        with pytest.raises(RuntimeError, match="no"):
            pool.submit(lines_of("bad", 2)).result(10)
        assert pool.submit(lines_of("good", 1)).result(10) == ["GOOD0"]
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(lines_of("late", 1))
