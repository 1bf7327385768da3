"""A conversion that is killed at any moment leaves the old data or none, and no leavings after the next one."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.jobs.staging import Staging
from inkmill.data.sources import Source, Subset, open_source
from inkmill.errors import OutputError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")]

# Kills itself at the N-th call of anything that touches the disk or reports progress: no clock is involved, so that
# every moment between two such calls can be hit, and a failure comes again.
CHILD = """
import os, pathlib, shutil, signal, sys
import numpy as np
from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs import convert as module
from inkmill.data.sources import Subset, open_source

moment, folder, destination, kind = int(sys.argv[1]), *sys.argv[2:]
calls = []

def counted(call, name):
    def wrapped(*args, **named):
        calls.append(name)
        if len(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **named)
    return wrapped

source = Subset(open_source(SourceSpec(path=folder)), np.arange(0, 5002, 20))
module._CHUNK = 32
for owner, name in (
    (pathlib.Path, "replace"), (pathlib.Path, "mkdir"), (os, "fsync"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")
):
    setattr(owner, name, counted(getattr(owner, name), name))
report = counted(lambda done, total: None, "progress")
module.convert(source, destination, kind, overwrite=True, shard_size=60, workers=0, progress=report)
print(*calls)
"""


def child(moment: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(moment), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def source_of(path: Path) -> Source:
    return open_source(SourceSpec(path=str(path)))


def labels(path: Path) -> list[str]:
    source = source_of(path)
    for index in range(len(source)):
        source.get(index)
    return sorted(repr(source.target(index)) for index in range(len(source)))


@pytest.mark.parametrize("kind", ["lmdb", "shards"])
def test_a_kill_leaves_the_old_data_or_none_and_the_next_run_cleans_up(
    kind: str, captchas: Path, tmp_path: Path
) -> None:
    everything = source_of(captchas)
    old, new = Subset(everything, np.arange(7)), Subset(everything, np.arange(0, 5002, 20))
    destination = tmp_path / "set"
    convert(new, tmp_path / "whole", kind)
    allowed = [sorted(repr(s.target(i)) for i in range(len(s))) for s in (old, new)]
    convert(old, destination, kind)
    calls = child(10**9, captchas, destination, kind).stdout.split()
    last_move = len(calls) - calls[::-1].index("replace")
    seen = []
    for moment in (int(np.random.default_rng(5).integers(1, last_move - 1)), last_move - 1, last_move, last_move + 1):
        convert(old, destination, kind, overwrite=True)
        assert child(moment, captchas, destination, kind).returncode == -signal.SIGKILL
        state = labels(destination) if destination.exists() else []
        assert state in (*allowed, [])
        seen.append(len(state))
    assert seen == [7, 7, 0, 251]  # somewhere on the way; before the two moves; between them; after them
    convert(new, destination, kind, overwrite=True)
    assert labels(destination) == allowed[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "whole"]


def test_data_set_aside_by_a_killed_run_are_put_back(captchas: Path, tmp_path: Path) -> None:
    convert(Subset(source_of(captchas), np.arange(5)), tmp_path / "set")
    (tmp_path / "set").rename(tmp_path / ".set.inkmill-old")
    with pytest.raises(OutputError, match="is not empty"):
        convert(source_of(captchas), tmp_path / "set")
    assert len(source_of(tmp_path / "set")) == 5


def test_two_conversions_to_one_place_do_not_mix(captchas: Path, tmp_path: Path) -> None:
    with Staging(tmp_path / "set"), pytest.raises(OutputError, match="another conversion is writing to this place"):
        convert(source_of(captchas), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.errors import OutputError

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    convert(open_source(SourceSpec(path=sys.argv[1])), sys.argv[2], sys.argv[3], workers=0)
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["lmdb", "shards"])
def test_a_disk_that_takes_no_more_is_one_sentence_and_leaves_nothing(
    kind: str, captchas: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FULL, str(captchas), str(tmp_path / "set"), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("cannot write ")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


ORPHANS = """
import os, sys
from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source

def report(done, total):
    print(os.getpid(), flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    convert(open_source(SourceSpec(path=sys.argv[1])), sys.argv[2], workers=1, progress=report)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists processes in /proc")
def test_workers_do_not_outlive_a_killed_parent(captchas: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    command = [sys.executable, str(script), str(captchas), str(tmp_path / "set")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()
        # The pipe has its end when the last process that could write to it is gone: the workers, too.
        ended, _, _ = select.select([parent.stdout], [], [], 60)
        assert ended
        assert parent.stdout.read() == ""
    assert children
    assert not [pid for pid in children if str(tmp_path) in cmdline(pid)]


def cmdline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
