"""Processes start lightly, answer in order, and take no more work than they can do."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children
from pathlib import Path

import pytest

from inkmill.processes import in_order

sys.path.insert(0, str(Path(__file__).parent))  # handed on to the processes, which import this module

NO_GUARD = """
print("imported", flush=True)
import math
from inkmill.processes import in_order
print(list(in_order(math.sqrt, [(4.0,), (9.0,)], 2, int)))
"""

OF_MAIN = """
print("imported", flush=True)
from inkmill.processes import in_order
def double(number):
    return 2 * number
if __name__ == "__main__":
    print(list(in_order(double, [(4,), (9,)], 1, int)))
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
    ("script", "imports", "said"), [(NO_GUARD, 1, "[2.0, 3.0]"), (OF_MAIN, 2, "[8, 18]")], ids=["no guard", "of main"]
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
def test_signals_reach_not_even_the_first_process_while_it_starts(tmp_path: Path) -> None:
    """With the first one multiprocessing starts its tracker of resources, and unblocks what was blocked."""
    file = tmp_path / "script.py"
    file.write_text(FIRST_OF_ALL)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["in it ['SIGINT', 'SIGTERM']", "after it []"]


def test_answers_come_in_order_and_tasks_are_drawn_as_needed() -> None:
    drawn = []

    def tasks() -> object:
        for number in range(40):
            drawn.append(number)
            yield (float(number * number),)

    answers = in_order(math.sqrt, tasks(), 2, int)  # type: ignore[arg-type]
    assert next(answers) == 0.0
    assert len(drawn) == 5  # two a process that run or wait, and the one that was answered
    assert list(answers) == [float(number) for number in range(1, 40)]


def test_what_is_handed_to_all_may_be_large() -> None:
    """More than fits a pipe, or the memory page that it is put on."""
    handed = bytes(range(256)) * 5000
    assert list(in_order(math.sqrt, [(4.0,)] * 3, 2, _compare, handed, 5000)) == [2.0] * 3
    with pytest.raises(BrokenProcessPool):
        list(in_order(math.sqrt, [(4.0,)], 1, _compare, handed, 4999))


def _compare(handed: bytes, times: int) -> None:
    assert handed == bytes(range(256)) * times


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(BrokenProcessPool):
        list(in_order(os._exit, [(1,)], 1, int))


def test_a_process_that_is_killed_ends_the_others_whatever_they_are_at() -> None:
    answers = in_order(time.sleep, [(0.0,), (60.0,), (60.0,), (60.0,)], 2, int)
    next(answers)
    started = time.monotonic()
    os.kill(active_children()[0].pid or 0, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        list(answers)
    assert not active_children()
    assert time.monotonic() - started < 30
