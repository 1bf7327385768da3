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

from inkmill.data.processes import in_order

NO_GUARD = """
print("imported", flush=True)
import math
from inkmill.data.processes import in_order
print(list(in_order(math.sqrt, [(4.0,), (9.0,)], 2, int)))
"""

OF_MAIN = """
print("imported", flush=True)
from inkmill.data.processes import in_order
def double(number):
    return 2 * number
if __name__ == "__main__":
    print(list(in_order(double, [(4,), (9,)], 1, int)))
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
