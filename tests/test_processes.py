"""Processes start lightly, and executors give results in order with a bounded number of tasks in flight."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from inkmill.processes import Executor, ProcessExecutor, SerialExecutor, WorkerDiedError

sys.path.insert(0, str(Path(__file__).parent))  # handed on to the processes, which import this module

NO_GUARD = """
print("imported", flush=True)
import math
from inkmill.processes import ProcessExecutor
print(list(ProcessExecutor(2).map(math.pow, 2.0, [1.0, 3.0])))
"""

OF_MAIN = """
print("imported", flush=True)
from inkmill.processes import ProcessExecutor
def times(factor, number):
    return factor * number
if __name__ == "__main__":
    print(list(ProcessExecutor(1).map(times, 2, [4, 9])))
"""

FIRST_OF_ALL = """
import multiprocessing, signal
from inkmill.processes import light_start

def blocked():
    return sorted(signal.Signals(number).name for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))

def tell():
    print("in it", blocked(), flush=True)

if __name__ == "__main__":
    with light_start(needs_main=True):
        process = multiprocessing.get_context("spawn").Process(target=tell)
        process.start()
    process.join()
    print("after it", blocked())
"""


@pytest.mark.parametrize(
    ("script", "imports", "said"), [(NO_GUARD, 1, "[2.0, 8.0]"), (OF_MAIN, 2, "[8, 18]")], ids=["no guard", "of main"]
)
def test_a_script_is_imported_by_processes_only_where_they_need_it(
    tmp_path: Path, script: str, imports: int, said: str
) -> None:
    file = tmp_path / "script.py"
    file.write_text(script)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n").count("imported") == imports
    assert said in done.stdout


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this system masks no signals")
def test_signals_do_not_reach_even_the_first_process_while_it_starts(tmp_path: Path) -> None:
    """With the first one multiprocessing starts its tracker of resources, and unblocks what was blocked."""
    file = tmp_path / "script.py"
    file.write_text(FIRST_OF_ALL)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["in it ['SIGINT', 'SIGTERM']", "after it []"]


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(2)], ids=["serial", "processes"])
def test_results_come_in_the_order_of_the_tasks(executor: Executor) -> None:
    assert list(executor.map(math.pow, 2.0, map(float, range(40)))) == [2.0**number for number in range(40)]


def test_tasks_are_drawn_as_processes_become_free() -> None:
    drawn = []

    def tasks() -> Iterator[float]:
        for number in range(40):
            drawn.append(number)
            yield float(number)

    results = ProcessExecutor(2).map(math.pow, 2.0, tasks())
    assert next(results) == 1.0
    assert len(drawn) == 5  # two in flight a process, and the one whose result was handed over
    assert list(results) == [2.0**number for number in range(1, 40)]


def test_what_all_tasks_share_may_be_large() -> None:
    """More than fits a pipe, or the memory page that it is put on."""
    shared = bytes(range(256)) * 5000
    assert list(ProcessExecutor(2).map(_repeats, shared, [5000, 4999, 5000])) == [True, False, True]


def _repeats(shared: bytes, times: int) -> bool:
    return shared == bytes(range(256)) * times


def test_each_process_is_initialised_before_its_first_task() -> None:
    assert list(ProcessExecutor(1, _initialise).map(_was_initialised, "yes", [1, 2])) == ["yes", "yes"]


def _initialise() -> None:
    os.environ["INKMILL_TEST_INITIALISED"] = "yes"


def _was_initialised(expected: str, task: int) -> str:
    return os.environ.get("INKMILL_TEST_INITIALISED", "no")


def test_what_a_task_raises_arrives_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        list(ProcessExecutor(1).map(_divide, 1.0, [1.0, 0.0]))


def _divide(a: float, b: float) -> float:
    return a / b


def test_a_process_that_dies_is_reported() -> None:
    with pytest.raises(WorkerDiedError):
        list(ProcessExecutor(1).map(_exit, None, [1]))


def _exit(_: None, status: int) -> None:
    os._exit(status)


def test_a_killed_process_ends_the_others_whatever_they_work_on() -> None:
    results = ProcessExecutor(2).map(_sleep, None, [0.0, 60.0, 60.0, 60.0])
    next(results)
    started = time.monotonic()
    os.kill(active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        list(results)
    assert not active_children()
    assert time.monotonic() - started < 30


def _sleep(_: None, seconds: float) -> None:
    time.sleep(seconds)
