"""What every loader promises: LOADERS x promises. The inline loader is the reference.

The samples have the input's size already, half of them as JPEG: resizing, which DALI rounds differently, has nothing
left to do, and every loader must give the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from captcha_source import CaptchaSource, PaintedSource
from conformance import CASES, Case

from inkmill.config.dataset import AugmentationSpec, SourceSpec
from inkmill.data.augment import AlbumentationsPipeline, Augmentation, open_augmentation
from inkmill.data.augment.ops import parse_ops
from inkmill.data.jobs.convert import convert
from inkmill.data.loaders import LOADERS, Loader, LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Source, Subset, open_source
from inkmill.data.types import Polygons
from inkmill.errors import ConfigError, DataError

Snapshot = Callable[[Any], list[Any]]
Plan = Callable[..., LoadPlan]

COUNT = 67
RESIZE = Resize(32, 64, 3)
STORES = ["lmdb", "shards", "mix"]
MOVING = Augmentation(parse_ops([{"op": "rotate", "degrees": 20}, {"op": "perspective"}, {"op": "elastic"}]))


@pytest.fixture(scope="module", params=[pytest.param(case, id=name, marks=case.marks) for name, case in CASES.items()])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def folder(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """67 captchas of the input's size, every second one a JPEG."""
    folder = tmp_path_factory.mktemp("resized")
    (folder / "images").mkdir()
    source = CaptchaSource.first(captchas, COUNT)
    for index, name in enumerate(source.names):
        image, _ = RESIZE.apply(decode(source.get(index).image, 3))
        suffix = ".jpg" if index % 2 else ".png"
        (folder / name).write_bytes(cv2.imencode(suffix, image)[1].tobytes())
    (folder / "labels.tsv").write_text(
        "".join(f"{name}\t{source.target(i).value}\n" for i, name in enumerate(source.names))
    )
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    def planned(count: int = COUNT, broken: frozenset[int] = frozenset(), **changes: Any) -> LoadPlan:
        source = CaptchaSource.first(folder, count, broken=broken)
        return LoadPlan(source, **({"resize": RESIZE, "batch_size": 8, "seed": 3} | changes))

    return planned


@pytest.fixture(scope="module")
def loader(case: Case, plan: Plan) -> Iterator[Loader]:
    with case.open(plan()) as loader:
        yield loader


@pytest.fixture(scope="module")
def reference(plan: Plan, snapshot: Snapshot) -> list[Any]:
    """Three epochs of the inline loader."""
    inline = make_loader(plan())
    return [snapshot(inline) for _ in range(3)]


# Batches and epochs


def test_batches_are_those_of_the_inline_loader(loader: Loader, reference: list[Any], snapshot: Snapshot) -> None:
    loader.set_epoch(0)
    assert len(loader) == 9
    assert [snapshot(loader) for _ in range(3)] == reference


def test_each_epoch_has_every_sample_once(loader: Loader) -> None:
    loader.set_epoch(10)
    orders = []
    for _ in range(3):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [8] * 8 + [3]
        orders.append([key for batch in batches for key in batch.keys])
        assert sorted(orders[-1]) == sorted(loader.plan.source.key(i) for i in range(COUNT))
    assert orders[0] != orders[1] != orders[2]
    assert loader.epoch == 12


def test_labels_belong_to_their_images(loader: Loader) -> None:
    batch = next(iter(loader))
    assert all(key.startswith(f"images/{text}.") for key, text in zip(batch.keys, batch.texts, strict=True))
    assert [loader.plan.source.key(i) for i in batch.index] == batch.keys


def test_validation_is_the_same_each_time(case: Case, plan: Plan, snapshot: Snapshot) -> None:
    in_order = snapshot(make_loader(plan(shuffle=False)))
    with case.open(plan(shuffle=False)) as loader:
        assert [snapshot(loader) for _ in range(3)] == [in_order] * 3
        loader.set_epoch(0)
        assert snapshot(loader) == in_order


def test_batches_stay_as_they_are_while_more_are_loaded(
    loader: Loader, reference: list[Any], snapshot: Snapshot
) -> None:
    loader.set_epoch(0)
    batches = list(loader)
    list(loader)
    assert snapshot(batches) == reference[0]


def test_leaving_an_epoch_early_begins_the_next_one(loader: Loader, reference: list[Any], snapshot: Snapshot) -> None:
    loader.set_epoch(0)
    for batches in (2, 0, 1):
        early = snapshot(islice(loader, batches))
        assert early == reference[loader.epoch][:batches]
        if batches == 0:
            loader.set_epoch(1)
    assert snapshot(loader) == reference[2]


def test_an_iteration_that_another_one_replaced_is_an_error(loader: Loader) -> None:
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 9
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        next(first)


def test_a_closed_loader_starts_again(loader: Loader, reference: list[Any], snapshot: Snapshot) -> None:
    loader.close()
    loader.close()
    loader.set_epoch(2)
    assert snapshot(loader) == reference[2]


def test_closing_ends_every_process(case: Case, plan: Plan) -> None:
    before = set(active_children())
    with case.open(plan()) as loader:
        next(iter(loader))
    assert set(active_children()) <= before


def test_files_can_be_released_between_epochs(case: Case, stores: dict[str, Source], snapshot: Snapshot) -> None:
    loaded = LoadPlan(stores["lmdb"], RESIZE, batch_size=6)
    inline = make_loader(loaded)
    expected = [snapshot(inline) for _ in range(2)]
    with case.open(loaded) as loader:
        for epoch in expected:
            assert snapshot(loader) == epoch
            loader.release()


# State


@pytest.mark.parametrize("position", [0, 1, 5, 8, 9])
def test_resume_gives_the_remaining_batches(
    loader: Loader, reference: list[Any], snapshot: Snapshot, position: int
) -> None:
    loader.set_epoch(1)
    taken = list(islice(loader, position))
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(taken) == position
    list(islice(loader, 2))  # whatever happens in between
    loader.load_state_dict(state)
    if position == 9:
        assert snapshot(loader) == reference[2]
    else:
        loader.set_epoch(1)  # a trainer says so at the start of each epoch; the position stays
        assert snapshot(loader) == reference[1][position:]


def test_a_state_goes_to_another_kind_of_loader_and_back(
    loader: Loader, plan: Plan, reference: list[Any], snapshot: Snapshot
) -> None:
    inline = make_loader(plan())
    list(islice(inline, 4))
    loader.load_state_dict(inline.state_dict())
    assert snapshot(islice(loader, 2)) == reference[0][4:6]
    inline.load_state_dict(loader.state_dict())
    assert snapshot(inline) == reference[0][6:]


def test_a_state_with_other_bad_samples_counts_from_its_first_batch(
    loader: Loader, plan: Plan, snapshot: Snapshot
) -> None:
    loader.set_epoch(20)
    list(loader)  # batches of epoch 21 are prefetched now
    key = loader.plan.source.key(5)
    state = loader.state_dict() | {"epoch": 21, "batches": 0, "blocked": {key: 5}}
    alone = make_loader(plan())
    alone.load_state_dict(state)
    clean = loader.state_dict()
    loader.load_state_dict(state)
    taken = snapshot(loader)
    loader.load_state_dict(clean)
    assert taken == snapshot(alone)
    assert key not in [name for keys, *_ in taken for name in keys]


# Ranks


def test_ranks_share_each_epoch_and_take_over_each_others_state(case: Case, plan: Plan) -> None:
    whole = [batch.keys for batch in make_loader(plan(batch_size=16))]
    seen: list[list[list[str]]] = []
    for rank in range(2):
        with case.open(plan(batch_size=8, rank=rank, world_size=2)) as loader:
            seen.append([batch.keys for batch in islice(loader, 2)])
            state = loader.state_dict()
    assert [one + other for one, other in zip(*seen, strict=True)] == whole[:2]
    rest = []
    for rank in range(4):
        with case.open(plan(batch_size=4, rank=rank, world_size=4)) as loader:
            loader.load_state_dict(state)
            rest.append([batch.keys for batch in loader])
    assert [list(chain.from_iterable(parts)) for parts in zip(*rest, strict=True)] == whole[2:]


def test_a_rank_without_samples_in_the_last_batch_gets_an_empty_one(case: Case, plan: Plan) -> None:
    with case.open(plan(9, batch_size=2, rank=0, world_size=4)) as loader:
        assert [batch.images.shape for batch in loader] == [(2, 32, 64, 3), (0, 32, 64, 3)]


# Bad samples


def test_a_bad_sample_is_an_error_that_names_it(case: Case, plan: Plan) -> None:
    faulty = plan(broken=frozenset({5}))
    sentence = f"sample '{faulty.source.key(5)}' of captchas cannot be loaded: .*on_bad_sample=skip"
    with case.open(faulty) as loader, pytest.raises(DataError, match=sentence):
        list(loader)


def test_a_skipped_sample_is_left_out_and_counted(case: Case, plan: Plan, reference: list[Any]) -> None:
    faulty = plan(broken=frozenset({5, 9}), on_bad_sample="skip", max_bad=0.05)
    bad = {faulty.source.key(5), faulty.source.key(9)}
    with case.open(faulty) as loader:
        for epoch in (1, 2):
            keys = [batch.keys for batch in loader]
            assert keys == [[key for key in expected[0] if key not in bad] for expected in reference[epoch - 1]]
            assert loader.stats.left_out == 2 * epoch
        assert {key for keys in loader.stats.skipped.values() for key in keys} == bad
        assert loader.stats.bad_samples == 2
        assert set(json.loads(json.dumps(loader.state_dict()))["blocked"]) == bad


def test_too_many_bad_samples_are_an_error(case: Case, plan: Plan) -> None:
    faulty = plan(broken=frozenset(range(20, 40)), on_bad_sample="skip", max_bad=0.1)
    with case.open(faulty) as loader, pytest.raises(DataError, match=r"\d+ of 67 samples.*10\.0% allowed"):
        list(loader)


def test_quarantine_copies_bad_samples_once_and_says_why(case: Case, plan: Plan, tmp_path: Path) -> None:
    quarantine = tmp_path / "results" / "quarantine"
    faulty = plan(broken=frozenset({5, 9}), on_bad_sample="quarantine", quarantine=quarantine, max_bad=0.05)
    for _ in range(2):  # a second run meets them again
        with case.open(faulty) as loader:
            assert sum(len(batch) for _ in range(2) for batch in loader) == 2 * 65
            assert loader.stats.bad_samples == 2
            assert loader.stats.notes == [f"bad samples are copied to {quarantine}"]
    rejects = [line.split("\t") for line in (quarantine / "rejects.tsv").read_text("utf-8").splitlines()]
    assert {key for key, _, _ in rejects} == {faulty.source.key(5), faulty.source.key(9)}
    assert len(rejects) == 2
    for key, reason, copy in rejects:
        assert "cut short" in reason
        assert (quarantine / copy).read_bytes() == faulty.source.get(faulty.source.names.index(key)).image
    assert len(list(quarantine.iterdir())) == 3


# Targets


def test_polygons_move_as_in_the_inline_loader_and_losses_are_counted(case: Case) -> None:
    painted = LoadPlan(PaintedSource(24), Resize(96, 192, 3, "pad"), MOVING, batch_size=7, seed=5)
    inline = make_loader(painted)
    expected = [described(inline) for _ in range(2)]
    with case.open(painted) as loader:
        assert [described(loader) for _ in range(2)] == expected
        if not case.reads_once:
            assert loader.stats.regions == inline.stats.regions


def described(loader: Loader) -> list[Any]:
    return [
        (key, [points.tobytes() for points in target.points], target.ignore, target.texts)
        if isinstance(target, Polygons)
        else (key, target)
        for batch in loader
        for key, target in zip(batch.keys, batch.targets, strict=True)
    ]


# Cache


@pytest.mark.parametrize(
    ("tier", "max_gib", "cached"), [("disk", 1, COUNT), ("ram", 1, COUNT), ("disk", 30 * 32 * 64 * 3 / 2**30, 30)]
)
def test_cached_images_are_the_same_bytes(
    case: Case,
    plan: Plan,
    reference: list[Any],
    snapshot: Snapshot,
    tmp_path: Path,
    tier: Any,
    max_gib: float,
    cached: int,
) -> None:
    with case.open(plan(cache=CacheConfig(tier, max_gib, tmp_path))) as loader:
        assert [snapshot(loader) for _ in range(3)] == reference
        # An epoch's first batches are prefetched while the last one ends, so two epochs fill the cache between them.
        assert cached <= loader.stats.cached <= 3 * COUNT
        assert bool(loader.stats.notes) == (cached < COUNT)


# Augmentation


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AlbumentationsPipeline]:
    pytest.importorskip("albumentations")

    def opened(*transforms: dict[str, Any]) -> AlbumentationsPipeline:
        file = tmp_path_factory.mktemp("pipeline") / "pipeline.json"
        compose = {"__class_fullname__": "Compose", "p": 1.0, "transforms": list(transforms)}
        file.write_text(json.dumps({"__version__": "2.0.8", "transform": compose}))
        found = open_augmentation(AugmentationSpec(albumentations=str(file)))
        assert isinstance(found, AlbumentationsPipeline)
        return found

    return opened


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["none", "ram"])
def test_an_albumentations_pipeline_gives_the_same_bytes(
    case: Case, plan: Plan, snapshot: Snapshot, pipeline: Callable[..., AlbumentationsPipeline], cache: Any
) -> None:
    changes = pipeline(
        {"__class_fullname__": "Rotate", "p": 0.8, "limit": [-9, 9]},
        {"__class_fullname__": "GaussNoise", "p": 0.8, "std_range": [0.02, 0.05]},
        {"__class_fullname__": "ImageCompression", "p": 0.3, "quality_range": [30, 90]},
    )
    augmented = plan(20, augmentation=changes)
    inline = make_loader(augmented)
    expected = [snapshot(inline) for _ in range(2)]
    assert expected[0] != snapshot(make_loader(plan(20)))
    if LOADERS[case.kind].augments_on == ("gpu",):
        with pytest.raises(ConfigError, match="runs on the CPU, where batches are made"):
            case.open(augmented)
        return
    with case.open(replace(augmented, cache=CacheConfig(cache))) as loader:
        assert [snapshot(loader) for _ in range(2)] == expected


@pytest.mark.slow
def test_what_an_albumentations_pipeline_cannot_do_is_one_sentence(
    case: Case, plan: Plan, pipeline: Callable[..., AlbumentationsPipeline]
) -> None:
    if LOADERS[case.kind].augments_on == ("gpu",):
        pytest.skip("it takes no pipeline")
    resizes = pipeline({"__class_fullname__": "Resize", "height": 8, "width": 8, "p": 1.0})
    with (
        case.open(plan(20, augmentation=resizes)) as loader,
        pytest.raises((ConfigError, DataError), match="must keep an image uint8"),
    ):
        list(loader)
    painted = plan(20, augmentation=pipeline({"__class_fullname__": "Rotate", "p": 0.8, "limit": [-9, 9]}))
    with (
        case.open(replace(painted, source=PaintedSource(6))) as loader,
        pytest.raises(ConfigError, match="polygons cannot follow"),
    ):
        list(loader)


@pytest.mark.parametrize("preset", ["scene_text", "captcha"])
def test_augmentation_left_to_the_device_belongs_to_each_batch(case: Case, plan: Plan, preset: str) -> None:
    strong = Augmentation.from_spec(AugmentationSpec(preset=preset))
    if not {"gpu", "cpu"} <= set(LOADERS[case.kind].augments_on):
        pytest.skip("it augments itself")
    augmented = plan(augmentation=strong, broken=frozenset({5}), on_bad_sample="skip", max_bad=1.0)
    workers = 0 if case is CASES["inline"] else 1
    with make_loader(augmented, workers, case.kind, augment_on="gpu") as loader:
        left = [
            (batch.index, batch.augmentation) for batch in loader.views()
        ]  # their memory is written again meanwhile
    assert {len(deferred) for _, deferred in left} == {8, 7, 3}
    for index, deferred in left:
        drawn = strong.sample(augmented.seed, 0, index, RESIZE.height, RESIZE.width)
        assert np.array_equal(deferred.params.values, drawn.values)


# Kinds of storage


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """26 of the samples as an LMDB, as shards, and mixed from both by weight."""
    place = tmp_path_factory.mktemp("stores")
    loose = Subset(open_source(SourceSpec(path=str(folder / "labels.tsv"))), range(26))
    convert(loose, place / "lmdb", "lmdb")
    convert(loose, place / "shards", "shards", shard_size=7)
    lmdb, shards = (open_source(SourceSpec(path=str(place / name))) for name in ("lmdb", "shards"))
    return {"lmdb": lmdb, "shards": shards, "mix": Mix([Subset(lmdb, range(10)), shards], [1.6, 0.4])}


@pytest.mark.parametrize("store", STORES)
def test_every_kind_of_storage_has_exact_epochs_and_resume(
    case: Case, stores: dict[str, Source], snapshot: Snapshot, store: str
) -> None:
    source = stores[store]
    loaded = LoadPlan(source, RESIZE, batch_size=6, seed=3)
    inline = make_loader(loaded)
    expected = [snapshot(inline) for _ in range(2)]
    wanted = Counter(source.key(index) for index in range(len(source)))
    assert [Counter(chain.from_iterable(keys for keys, *_ in epoch)) for epoch in expected] == [wanted] * 2
    with case.open(loaded) as loader:
        for position in range(len(loader) + 1):
            loader.set_epoch(0)
            assert snapshot(islice(loader, position)) == expected[0][:position]
            state = json.loads(json.dumps(loader.state_dict()))
            list(islice(loader, 1))  # whatever happens in between
            loader.load_state_dict(state)
            assert snapshot(loader) == (expected[0][position:] or expected[1])
