"""Worker processes that die, fail, or are left alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from multiprocessing import active_children
from pathlib import Path

import pytest

from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.errors import DataError

HERE = Path(__file__).parent
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc and /dev/shm")


def test_a_worker_that_dies_is_told_in_a_sentence(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan(faults={"deadly": frozenset({5})})
    sentence = r"inkmill-loader-\d \(pid \d+\) was killed by SIGKILL while it made batch \d"
    loader = make_loader(plan, 2)
    with pytest.raises(DataError, match=sentence):
        list(loader)
    assert not active_children()


def test_a_loader_goes_on_after_its_workers_died(captcha_plan: Callable[..., LoadPlan]) -> None:
    with make_loader(captcha_plan(), 1) as loader:
        next(iter(loader))
        os.kill(active_children()[0].pid or 0, signal.SIGKILL)
        with pytest.raises(DataError, match="SIGKILL"):
            list(loader)
        loader.set_epoch(5)
        assert sum(len(batch) for batch in loader) == 67


def test_sigterm_to_every_process_of_a_job_leaves_workers_to_their_parent(
    captcha_plan: Callable[..., LoadPlan],
) -> None:
    with make_loader(captcha_plan(), 2) as loader:
        batches = iter(loader)
        seen = len(next(batches))
        for child in active_children():
            os.kill(child.pid or 0, signal.SIGTERM)
        assert seen + sum(len(batch) for batch in batches) == 67


def test_a_bug_in_a_worker_comes_back_with_its_traceback(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan(faults={"buggy": frozenset({5})})
    with make_loader(plan, 1) as loader, pytest.raises(RuntimeError, match="ZeroDivisionError: a bug in a source"):
        list(loader)


def test_closing_ends_the_workers(captcha_plan: Callable[..., LoadPlan]) -> None:
    with make_loader(captcha_plan(), 2) as loader:
        next(iter(loader))
        assert len(active_children()) == 2
    assert not active_children()


def test_views_lie_in_shared_memory_and_copies_do_not(captcha_plan: Callable[..., LoadPlan]) -> None:
    with make_loader(captcha_plan(), 1) as loader:
        assert not next(loader.views()).images.flags.owndata
        assert next(iter(loader)).images.flags.owndata


SCRIPT = """
import os, signal, sys
from multiprocessing import active_children
sys.path.insert(0, {here!r})
from pathlib import Path
from captcha_source import CaptchaSource
from inkmill.data.pipeline.resize import Resize
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.loaders import LoadPlan, make_loader

plan = LoadPlan(CaptchaSource.first(Path({captchas!r}), 40), Resize(32, 64, 3), batch_size=4, cache=CacheConfig("ram"))
loader = make_loader(plan, 2)
batches = iter(loader)
next(batches)
pids = [child.pid for child in active_children()]
assert "torch" not in sys.modules
print(os.getpid(), *pids, flush=True)
{end}
"""


def run_script(place: Path, captchas: Path, end: str) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run a training script without a `__main__` guard; return how it ended, its pid and those of its workers."""
    script = place / "script.py"
    script.write_text(SCRIPT.format(here=str(HERE), captchas=str(captchas), end=end))
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)
    return done, [int(pid) for pid in done.stdout.split()]


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.killpg(0, signal.SIGINT)", -signal.SIGINT),
        ("os.killpg(0, signal.SIGTERM)", -signal.SIGTERM),
    ],
    ids=["end of the script", "kill -9", "Ctrl-C", "SIGTERM"],
)
def test_nothing_is_left_behind(tmp_path: Path, captchas: Path, end: str, code: int) -> None:
    done, pids = run_script(tmp_path, captchas, end)
    assert done.returncode == code, done.stderr
    assert len(pids) == 3
    for pid in pids[1:]:
        wait_for_end(pid)
    shared = [path.name for path in Path("/dev/shm").iterdir()]
    assert not [name for name in shared if any(str(pid) in name for pid in pids)]
    assert "Warning" not in done.stderr
    assert done.stderr == "" or code == -signal.SIGINT


def wait_for_end(pid: int) -> None:
    """Return when a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10)[0], f"worker {pid} outlives its loader"
    finally:
        os.close(descriptor)


def test_an_epoch_left_early_keeps_its_workers(captcha_plan: Callable[..., LoadPlan]) -> None:
    with make_loader(captcha_plan(), 2) as loader:
        list(islice(loader, 2))
        workers = {child.pid for child in active_children()}
        list(islice(loader, 2))
        assert {child.pid for child in active_children()} == workers


def test_a_batch_larger_than_the_set_takes_no_more_memory_than_the_set(captcha_plan: Callable[..., LoadPlan]) -> None:
    plan = captcha_plan(count=9, batch_size=65_536)
    assert plan.batch_bytes == 9 * 32 * 64 * 3
    with make_loader(plan, workers=1) as loader:
        assert [len(batch) for batch in loader] == [9]
