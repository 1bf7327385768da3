from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import thread_time

import numpy as np
import pytest

from injected import SlowDisk
from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import Subset, open_source
from inkmill.diagnose import storage
from inkmill.diagnose.storage import Storage, disk_kind, kind_of_place, line_of, measure_storage


def captchas_source(captchas: Path) -> Subset:
    return Subset(open_source(SourceSpec(path=str(captchas))), range(600))


def test_many_small_files_on_a_slow_disk_are_recognised_and_shards_gain(
    captchas: Path, tmp_path: Path, undisturbed: Callable[[Callable[[], bool]], bool]
) -> None:
    def recognised() -> bool:
        disk = SlowDisk(captchas_source(captchas), 0.01, tmp_path / "flags.npy")
        found = measure_storage(disk, tmp_path / "s", 0.8)
        assert not list((tmp_path / "s").iterdir())
        assert found.cold_s is not None
        assert found.at_a_time <= 16
        if found.shard_s is None:
            assert "could not be read cold" in found.notes[0]
        gains = found.shard_s is None or ((found.gain or 0) > 3 and found.converting_pays)
        waits = found.wait_s == pytest.approx(found.cold_s - found.warm_s, rel=0.3)  # sleeping takes no core
        return waits and 0.01 < found.cold_s < 0.03 and found.warm_s < 0.004 and found.at_a_time > 5 and gains

    assert undisturbed(recognised)


class BusyDisk(SlowDisk):
    """First reads take the core, as the system's own work of fetching does."""

    def image(self, index: int) -> bytes:
        data = self.source.image(index)
        if not self._cached()[index]:
            self._cached()[index] = 1
            until = thread_time() + self.latency_s
            while thread_time() < until:
                pass
        return data


def test_what_a_cold_read_takes_of_the_core_is_no_waiting(captchas: Path, tmp_path: Path) -> None:
    busy = measure_storage(BusyDisk(captchas_source(captchas), 0.003, tmp_path / "busy.npy"), tmp_path / "s", 0.4)
    assert 0.0025 < busy.fetch_s < 0.0035
    slow = measure_storage(SlowDisk(captchas_source(captchas), 0.003, tmp_path / "slow.npy"), tmp_path / "s", 0.4)
    assert slow.fetch_s < 0.001
    assert slow.wait_s > 0.002


def test_converting_is_recommended_for_small_files_that_shards_make_much_faster() -> None:
    slow = Storage("rotating disk", 4000, 1e-5, cold_s=8e-3, small_files=True, shard_s=1e-3)
    assert slow.converting_pays
    assert not replace(slow, small_files=False).converting_pays
    assert not replace(slow, shard_s=7e-3).converting_pays
    assert not replace(slow, shard_s=None).converting_pays


def test_large_files_in_a_store_are_not_small_files(captchas: Path, tmp_path: Path) -> None:
    convert(captchas_source(captchas), tmp_path / "shards", "shards", workers=0)
    found = measure_storage(open_source(SourceSpec(path=str(tmp_path / "shards"))), tmp_path, 0.2)
    assert not found.small_files
    assert found.shard_s is None


def test_latency_and_bandwidth_come_from_the_middle_of_the_times() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1000, 200_000, 400)
    times = 0.004 + sizes / 50e6
    times[::20] *= 10  # a disk that stutters
    latency, bandwidth = line_of(sizes.tolist(), times.tolist())
    assert latency == pytest.approx(0.004, rel=0.1)
    assert bandwidth == pytest.approx(50e6, rel=0.1)


def test_files_of_one_size_tell_nothing_of_the_bandwidth() -> None:
    assert line_of([1000] * 40, [0.01] * 40) == (0.01, None)
    assert line_of([1], [1.0]) == (None, None)


@pytest.mark.skipif(not Path("/proc/mounts").exists(), reason="reads Linux's /proc")
def test_the_kind_of_storage_is_looked_up(captchas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/shm").is_dir():
        assert kind_of_place(Path("/dev/shm")) == "memory"
    assert disk_kind(captchas_source(captchas)) in ("SSD", "rotating disk", "memory", "unknown")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {tmp_path}/my\\040data nfs4 rw 0 0\n", encoding="utf-8")
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **kw: real(mounts if str(path) == "/proc/mounts" else path, **kw)
    )
    assert kind_of_place(tmp_path / "my data" / "a.png") == "network (nfs4)"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_scratch_that_cannot_be_written_is_a_note(captchas: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    found = measure_storage(
        SlowDisk(captchas_source(captchas), 0.01, tmp_path / "f.npy"), tmp_path / "closed" / "s", 0.3
    )
    assert "cannot be written" in found.notes[0]


def test_network_file_systems_are_known_by_name() -> None:
    assert {"nfs4", "cifs", "fuse", "lustre"} <= set(storage._NETWORK)
