"""Worker processes as such: who gets which task."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.heap import Arena
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inkmill import shared_memory as shared
from inkmill.data.loaders.pool import Pool, deserialize_job, serialize_job

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

    def release(self) -> None:
        pass


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    made = Pool(Relay(tmp_path / "flag"), 2)
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


@dataclass(frozen=True)
class Stamps:
    """Each task leaves its number in the memory."""

    slot_bytes: int = 8

    def open(self) -> Callable[[tuple[int, ...], Any], int]:
        def do(task: tuple[int, ...], memory: Any) -> int:
            memory[:] = task[1]
            return task[1]

        return do

    def release(self) -> None:
        pass


@pytest.mark.parametrize("count", [1, 2])
def test_an_answer_stays_as_it_is_while_the_next_one_is_taken(count: int) -> None:
    """A GPU fetches one meanwhile."""
    pool = Pool(Stamps(), count)
    last = None
    try:
        for number, answer in enumerate(pool.answers((0, number) for number in range(30))):
            for worker in pool._workers:
                assert not worker.tasks or worker.connection.poll(20)  # it has done all it may
            assert answer.memory.tolist() == [number] * 8
            assert last is None or last.memory.tolist() == [number - 1] * 8
            last = answer
    finally:
        pool.close()


@dataclass(frozen=True)
class Marks:
    """Each task marks its byte of the shared memory."""

    large: NDArray[np.int64]
    marked: Arena
    slot_bytes: int = 8

    def open(self) -> Callable[[tuple[int, ...], Any], int]:
        def do(task: tuple[int, ...], memory: Any) -> int:
            self.marked.buffer[task[1]] = 7
            return int(self.large[task[1]])

        return do

    def release(self) -> None:
        self.marked.buffer[9] = 8


def test_workers_are_handed_nothing_large_as_they_start() -> None:
    """A pipe holds 64 KiB, and nobody reads it before the process runs: each would start when the last one has."""
    job = Marks(np.arange(100_000), shared.allocate(10))
    packed, shares = serialize_job(job)
    assert len(packed) > job.large.nbytes
    assert shares == [job.marked]
    again = deserialize_job(packed, shares)
    assert isinstance(again, Marks)
    assert again.marked is job.marked
    assert np.array_equal(again.large, job.large)

    pool = Pool(job, 2)
    try:
        assert [answer.content for answer in pool.answers((0, number) for number in range(10))] == [*range(10)]
    finally:
        pool.close()
    assert bytes(job.marked.buffer[:10]) == b"\7" * 10


def test_each_batch_taken_has_one_more_made_and_not_all_workers_start_at_once() -> None:
    """Workers that pause and start together leave no core to the training process while they work."""
    job = Marks(np.arange(100), shared.allocate(100))
    pool = Pool(job, 2)
    asked = 0

    def tasks() -> Iterator[tuple[int, int]]:
        nonlocal asked
        for asked in range(1, 101):
            yield (0, asked - 1)

    def rest() -> None:
        for worker in pool._workers:
            assert not worker.tasks or worker.connection.poll(20)  # it has an answer to be taken

    try:
        answers = pool.answers(tasks())
        counts = []
        for _ in range(40):
            next(answers)
            rest()
            counts.append(asked)
    finally:
        pool.close()
    assert np.diff(counts[10:]).tolist() == [1] * 29, counts


@dataclass(frozen=True)
class Priority:
    """Tells the worker's own."""

    slot_bytes: int = 8

    def open(self) -> Callable[[tuple[int, ...], Any], int]:
        return lambda task, memory: os.getpriority(os.PRIO_PROCESS, 0)

    def release(self) -> None:
        pass


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no priorities")
def test_the_training_process_goes_before_its_workers() -> None:
    pool = Pool(Priority(), 1)
    try:
        (answer,) = pool.answers(iter([(0, 0)]))
        assert answer.content == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    finally:
        pool.close()


def test_processes_close_their_files_between_tasks_and_go_on() -> None:
    job = Marks(np.arange(100), shared.allocate(100))
    pool = Pool(job, 2)
    try:
        for _ in range(3):
            answers = pool.answers((0, number) for number in range(10, 90))
            assert next(answers).content == 10
            job.marked.buffer[9] = 0
            pool.release()  # while both are at work on what was asked for ahead
            assert job.marked.buffer[9] == 8
        assert [answer.content for answer in pool.answers((0, number) for number in range(20, 30))] == [*range(20, 30)]
    finally:
        pool.close()


def test_going_on_after_a_release_is_an_error_and_no_wait_for_ever() -> None:
    pool = Pool(Marks(np.arange(100), shared.allocate(100)), 2)
    try:
        answers = pool.answers((0, number) for number in range(10, 90))
        next(answers)
        pool.release()
        with pytest.raises(RuntimeError, match="released"):
            next(answers)
    finally:
        pool.close()
