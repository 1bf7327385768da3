"""Worker processes as such: who gets which task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inkmill.data.loaders.pool import Pool

sys.path.insert(0, str(Path(__file__).parent))  # handed on to the worker processes, which import this module


@dataclass(frozen=True)
class Relay:
    """Task 0 ends once task 4 was done: by somebody else, then."""

    flag: Path
    slot_bytes: int = 8

    def open(self) -> Callable[[tuple[int, ...], Any], int]:
        def do(task: tuple[int, ...], memory: Any) -> int:
            memory[0] = task[1]
            if task[1] == 4:
                self.flag.touch()
            patience = time.monotonic() + 20
            while task[1] == 0 and not self.flag.exists():
                assert time.monotonic() < patience, "task 4 waits for task 0, and task 0 for task 4"
                time.sleep(0.01)
            return task[1]

        return do


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    made = Pool(Relay(tmp_path / "flag"), (), 2)
    yield made
    made.close()


def test_a_slow_worker_holds_up_nothing_but_its_own_task(pool: Pool) -> None:
    answers = pool.answers((0, number) for number in range(20))
    taken = [(answer.error, answer.content, int(answer.memory[0])) for answer in answers]
    assert taken == [(None, number, number) for number in range(20)]


def test_a_run_left_early_does_not_cut_the_next_one_short(pool: Pool) -> None:
    for _ in range(10):  # each begins while the processes are busy with what was left of the last one
        answers = pool.answers((0, number) for number in range(5, 50))
        assert next(answers).content == 5
    assert [answer.content for answer in pool.answers((0, number) for number in range(5, 12))] == [*range(5, 12)]
