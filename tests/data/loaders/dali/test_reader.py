"""DALI's own reader of tar shards: its order, our samples, exact epochs, exact resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from inkmill.config.dataset import AugmentationSpec, SourceSpec
from inkmill.data.augment import Augmentation, apply_cv
from inkmill.data.jobs.convert import convert
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Concat, ShardSource, Source, Subset, open_source
from inkmill.data.types import Batch
from inkmill.errors import ConfigError, DataError

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.dali

from inkmill.data.loaders.dali.loader import DaliLoader  # noqa: E402

FIT = Resize(32, 64, 3)
STRONG = Augmentation.from_spec(AugmentationSpec(preset="scene_text"))


@pytest.fixture(scope="module")
def shards(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> ShardSource:
    """67 captchas in four shards of up to 20: JPEGs of the input's size, and every third as it is, transparent PNG."""
    folder = tmp_path_factory.mktemp("captchas")
    (folder / "images").mkdir()
    lines = (captchas / "labels.tsv").read_text("utf-8").splitlines()[:67]
    for number, line in enumerate(lines):
        name = line.split("\t")[0]
        data = (captchas / name).read_bytes()
        if number % 3:
            data = cv2.imencode(".jpg", FIT.apply(decode(data, 3))[0])[1].tobytes()
        (folder / name).write_bytes(data)
    (folder / "labels.tsv").write_text("\n".join(lines), "utf-8")
    convert(open_source(SourceSpec(path=str(folder))), folder / "shards", "shards", shard_size=20)
    source = open_source(SourceSpec(path=str(folder / "shards")))
    assert isinstance(source, ShardSource)
    return source


@pytest.fixture
def plan(shards: ShardSource) -> Callable[..., LoadPlan]:
    def planned(source: Source = shards, **changes: Any) -> LoadPlan:
        return LoadPlan(source, **({"resize": FIT, "batch_size": 8, "seed": 3} | changes))

    return planned


def reading(plan: LoadPlan) -> DaliLoader:
    return DaliLoader(plan, dali_reader="dali")


def indices(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch.index.tolist()]


def test_three_epochs_lose_and_repeat_nothing(plan: Callable[..., LoadPlan]) -> None:
    with reading(plan()) as loader:
        epochs = [list(loader) for _ in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [8] * 8 + [3]
        assert sorted(indices(batches)) == list(range(67))
    assert indices(epochs[0]) != indices(epochs[1]) != indices(epochs[2])


def test_each_picture_has_its_own_target_key_and_numbers(plan: Callable[..., LoadPlan], shards: ShardSource) -> None:
    with reading(plan(augmentation=STRONG)) as loader:
        for batch in loader:
            assert batch.keys == [shards.key(i) for i in batch.index]
            assert batch.targets == [shards.target(i) for i in batch.index]
            resized = [FIT.apply(decode(shards.image(i), 3))[0] for i in batch.index]
            table = STRONG.sample(3, 0, batch.index, 32, 64)
            expected = apply_cv(np.stack(resized), table)
            assert np.abs(batch.images.astype(int) - expected).mean() < 0.6


def test_validation_is_read_by_inkmill(plan: Callable[..., LoadPlan], shards: ShardSource) -> None:
    both = Concat([shards, shards])  # which DALI's reader cannot read
    with reading(plan(both, shuffle=False)) as loader:
        assert indices(list(loader)) == list(range(2 * 67))


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_each_epoch_and_change_their_part(plan: Callable[..., LoadPlan], world: int) -> None:
    loaders = [reading(plan(batch_size=4, rank=rank, world_size=world)) for rank in range(world)]
    parts = [[list(loader) for _ in range(2)] for loader in loaders]
    for epoch in range(2):
        assert sorted(i for part in parts for i in indices(part[epoch])) == list(range(67))
        assert {len(part[epoch]) for part in parts} == {len(loaders[0])}
    assert set(indices(parts[0][0])) != set(indices(parts[0][1]))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("position", [0, 1, 5, 8])
def test_resume_gives_the_remaining_batches(
    plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], position: int
) -> None:
    with reading(plan(augmentation=STRONG)) as loader:
        epochs = [snapshot(loader) for _ in range(3)]
        loader.set_epoch(1)
        list(islice(loader, position))
        state = json.loads(json.dumps(loader.state_dict()))
        list(islice(loader, 2))  # whatever happens in between
        loader.load_state_dict(state)
        assert snapshot(loader) == epochs[1][position:]
    with reading(plan(augmentation=STRONG)) as another:
        another.load_state_dict(state)
        assert snapshot(another) == epochs[1][position:]
        assert snapshot(another) == epochs[2]


def test_its_state_is_of_its_order_and_no_other(plan: Callable[..., LoadPlan]) -> None:
    with reading(plan()) as loader, make_loader(plan()) as inline:
        with pytest.raises(DataError, match='shuffle was "by DALI\'s reader, for 1 ranks" and is True'):
            inline.load_state_dict(loader.state_dict())
        with pytest.raises(DataError, match="shuffle was True and is \"by DALI's reader"):
            loader.load_state_dict(inline.state_dict())


def test_a_part_of_the_shards_is_read_and_nothing_else(plan: Callable[..., LoadPlan], shards: ShardSource) -> None:
    some = Subset(shards, [66, 3, 21, 22, 5, 40, 41, 60, 20])
    with reading(plan(some, batch_size=2)) as loader:
        batches = list(loader)
    assert sorted(indices(batches)) == list(range(9))
    assert all(batch.keys == [some.key(i) for i in batch.index] for batch in batches)


def test_foreign_shards_need_no_index_of_their_own(
    plan: Callable[..., LoadPlan], shards: ShardSource, tmp_path: Path
) -> None:
    copies = [tmp_path / shard.name for shard in shards.shards]
    for shard, copy in zip(shards.shards, copies, strict=True):
        copy.write_bytes(shard.read_bytes())
    with reading(plan(ShardSource(copies, "foreign"))) as loader:
        assert sorted(indices(list(loader))) == list(range(67))


def test_a_picture_that_kills_the_pipeline_is_skipped_and_counted(
    plan: Callable[..., LoadPlan], shards: ShardSource, tmp_path: Path
) -> None:
    copies = [tmp_path / shard.name for shard in shards.shards]
    for shard, copy in zip(shards.shards, copies, strict=True):
        copy.write_bytes(shard.read_bytes())
    bad = next(i for i in range(67) if shards.image(i).startswith(b"\xff\xd8"))
    number, offset, size = shards.places[bad].tolist()
    data = bytearray(copies[number].read_bytes())
    image = bytes(data[offset : offset + size])
    data[offset : offset + size] = image.replace(b"\xff\xdb", b"\xff\xfe")  # a JPEG without tables
    copies[number].write_bytes(data)
    with reading(plan(ShardSource(copies, "damaged"), on_bad_sample="skip", max_bad=0.05)) as loader:
        for epoch in (1, 2):
            assert sorted(indices(list(loader))) == [i for i in range(67) if i != bad]
            assert loader.stats.left_out == epoch
        assert sum("pipeline died" in note for note in loader.stats.notes) == 1


def test_a_shard_that_shrank_is_one_sentence(
    plan: Callable[..., LoadPlan], shards: ShardSource, tmp_path: Path
) -> None:
    copy = tmp_path / "one.tar"
    copy.write_bytes(shards.shards[0].read_bytes())
    source = ShardSource([copy], "one")
    copy.write_bytes(copy.read_bytes()[:5000])
    with reading(plan(source)) as loader, pytest.raises(DataError, match="DALI's reader failed on one: "):
        list(loader)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"resize": Resize(32, 64, 3, "height"), "bucket_widths": np.full(67, 64)}, "cannot sort pictures by size"),
        ({"cache": CacheConfig("ram")}, "would read again what is cached"),
        ({"rank": 0, "world_size": 99}, "needs a sample for each of 99 ranks"),
    ],
)
def test_what_the_reader_cannot_do_is_refused(
    plan: Callable[..., LoadPlan], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        reading(plan(**changes))


def test_what_is_no_shards_is_refused(plan: Callable[..., LoadPlan], shards: ShardSource) -> None:
    with pytest.raises(ConfigError, match="reads one set of tar shards"):
        reading(plan(Concat([shards, shards])))
