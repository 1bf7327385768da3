from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.workers import WorkerLoader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Subset, open_source
from inkmill.diagnose.cold import drop, resident

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="looks into Linux's page cache")


@pytest.mark.parametrize("kind", ["tsv", "lmdb", "shards"])
def test_only_the_sets_own_files_are_dropped_and_come_back_when_read(
    kind: str, captchas: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    whole = open_source(SourceSpec(path=str(captchas)))
    source = Subset(whole, range(0, 5000, 50))
    other = whole.files([1])
    if kind != "tsv":
        convert(source, tmp_path / "store", kind, workers=0)
        source = open_source(SourceSpec(path=str(tmp_path / "store")))
    index = range(len(source))
    for i in index:
        source.get(i)
    other[0].read_bytes()
    files = source.files(index)
    dropped = drop(source, index)
    if resident([captchas / "labels.tsv"]) is None or "stayed" in dropped.why_not:
        pytest.skip(f"this file system does not drop pages: {dropped.why_not}")
    assert dropped.cold
    assert dropped.files == len(files)
    assert dropped.bytes == sum(file.stat().st_size for file in files)
    assert resident(files) < 0.1
    assert resident(other) == 1
    for i in index:
        source.get(i)
    assert resident(files) > 0.5


def test_pages_that_someone_has_mapped_are_seen_to_stay(captchas: Path, tmp_path: Path) -> None:
    class Mapped(Subset):
        def files(self, index: object) -> list[Path]:
            return [tmp_path / "file"]

    (tmp_path / "file").write_bytes(bytes(1 << 20))
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        assert sum(pages[::4096]) == 0
        dropped = drop(Mapped(open_source(SourceSpec(path=str(captchas))), range(3)), range(3))
    assert not dropped.cold
    assert "stayed in memory" in dropped.why_not


def test_files_of_mixes_and_subsets_are_those_of_their_samples(captchas: Path) -> None:
    whole = open_source(SourceSpec(path=str(captchas)))
    mix = Mix([Subset(whole, [5, 6, 7]), Subset(whole, [7, 8])], [1, 2])
    expected = [Path(captchas, whole.key(i)) for i in (6, 7, 8)]
    assert mix.files([1, 2, 3, 4, 5]) == expected


def test_samples_in_no_file_cannot_be_made_cold(captchas: Path) -> None:
    class Elsewhere(Subset):
        def files(self, index: object) -> list[Path]:
            return []

    found = drop(Elsewhere(open_source(SourceSpec(path=str(captchas))), [1]), [0])
    assert not found.cold
    assert "no file" in found.why_not


def test_workers_let_go_of_what_they_have_mapped_and_go_on(captchas: Path, tmp_path: Path) -> None:
    """Ending them instead would take seconds for each cold measurement."""
    pytest.importorskip("lmdb")
    convert(Subset(open_source(SourceSpec(path=str(captchas))), range(400)), tmp_path / "lmdb", "lmdb", workers=0)
    source = open_source(SourceSpec(path=str(tmp_path / "lmdb")))
    plan = LoadPlan(source, Resize(32, 64, 1), None, 20, seed=3)
    with make_loader(plan, 0) as alone, make_loader(plan, 2) as loader:
        assert isinstance(loader, WorkerLoader)
        expected = [batch.keys for batch in alone]
        assert [batch.keys for batch in loader] == expected
        index, processes = range(len(source)), [worker.process.pid for worker in loader._pool._workers]
        if "stayed" not in drop(source, index).why_not:
            pytest.skip("this file system drops, or says it drops, what is mapped")
        loader.release()
        assert drop(source, index).cold
        loader.set_epoch(0)
        assert [batch.keys for batch in loader] == expected
        assert [worker.process.pid for worker in loader._pool._workers] == processes
