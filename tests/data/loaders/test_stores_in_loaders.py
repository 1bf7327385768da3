"""Every loader over every kind of store: exact epochs, ranks that share them, and resume at any batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import cv2
import pytest

from inkmill.config.dataset import AugmentationSpec, SourceSpec
from inkmill.data.augment import Augmentation
from inkmill.data.jobs.convert import convert
from inkmill.data.loaders import Loader, LoadPlan, make_loader
from inkmill.data.loaders.dali import has_dali
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Source, Subset, open_source

Snapshot = Callable[[Any], list[Any]]
STORES = ["lmdb", "shards", "mix"]
TAO = Augmentation.from_spec(AugmentationSpec(aug_prob=1.0))


@pytest.fixture(scope="module")
def stores(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """26 captchas, half of them JPEG, as an LMDB, as shards, and mixed from both by weight."""
    folder = tmp_path_factory.mktemp("stores")
    (folder / "loose").mkdir()
    lines = []
    for number, line in enumerate((captchas / "labels.tsv").read_text("utf-8").splitlines()[:26]):
        name, text = line.split("\t")
        image = (captchas / name).read_bytes()
        if number % 2:
            image = cv2.imencode(".jpg", decode(image, 3))[1].tobytes()
        (folder / "loose" / f"{number:02}.png").write_bytes(image)
        lines.append(f"{number:02}.png\t{text}\n")
    (folder / "loose" / "labels.tsv").write_text("".join(lines), "utf-8")
    loose = open_source(SourceSpec(path=str(folder / "loose")))
    convert(loose, folder / "lmdb", "lmdb")
    convert(loose, folder / "shards", "shards", shard_size=7)
    lmdb, shards = (open_source(SourceSpec(path=str(folder / name))) for name in ("lmdb", "shards"))
    mix = Mix([Subset(lmdb, range(10)), shards], [1.6, 0.4])
    return {"lmdb": lmdb, "shards": shards, "mix": mix}


def planned(source: Source, **changes: Any) -> LoadPlan:
    options = {"resize": Resize(32, 64, 3), "augmentation": TAO, "batch_size": 6, "seed": 3} | changes
    return LoadPlan(source, **options)


def dali(plan: LoadPlan) -> Loader:
    from inkmill.data.loaders.dali.loader import DaliLoader

    return DaliLoader(plan)


LOADERS = {
    "inline": make_loader,
    "workers": lambda plan: make_loader(plan, 2, "workers"),
    "dali": dali,
}
needs_dali = [pytest.mark.dali, pytest.mark.skipif(not has_dali(), reason="DALI is not installed")]
PAIRS = [
    pytest.param(store, kind, id=f"{store}-{kind}", marks=needs_dali if kind == "dali" else [])
    for store in STORES
    for kind in LOADERS
]


@pytest.fixture(scope="module")
def opened(stores: dict[str, Source]) -> Iterator[Callable[..., Loader]]:
    """Return a function that gives the one loader of a kind over a store."""
    loaders: dict[tuple[str, str], Loader] = {}

    def open_one(store: str, kind: str) -> Loader:
        if (store, kind) not in loaders:
            loaders[store, kind] = LOADERS[kind](planned(stores[store]))
        return loaders[store, kind]

    yield open_one
    for loader in loaders.values():
        loader.close()


@pytest.mark.parametrize(("store", "kind"), PAIRS)
def test_resume_at_any_batch_gives_the_remaining_ones(
    opened: Callable[..., Loader], snapshot: Snapshot, store: str, kind: str
) -> None:
    loader = opened(store, kind)
    loader.set_epoch(0)
    epochs = [snapshot(loader) for _ in range(2)]
    assert epochs[0] != epochs[1]
    for position in range(len(loader) + 1):
        loader.set_epoch(0)
        assert snapshot(islice(loader, position)) == epochs[0][:position]
        state = json.loads(json.dumps(loader.state_dict()))
        list(islice(loader, 1))  # whatever happens in between
        loader.load_state_dict(state)
        assert snapshot(loader) == (epochs[0][position:] or epochs[1])


@pytest.mark.parametrize(("store", "kind"), PAIRS)
def test_three_epochs_lose_and_repeat_nothing_also_after_leaving_one_early(
    opened: Callable[..., Loader], store: str, kind: str
) -> None:
    loader = opened(store, kind)
    source = loader.plan.source
    wanted = Counter(source.key(index) for index in range(len(source)))
    loader.set_epoch(20)
    orders = []
    for _ in range(3):
        batches = list(loader)
        orders.append([key for batch in batches for key in batch.keys])
        assert Counter(orders[-1]) == wanted
        assert sorted(index for batch in batches for index in batch.index) == list(range(len(source)))
        list(islice(loader, 2))
    assert len({tuple(order) for order in orders}) == 3
    assert loader.epoch == 25


@pytest.mark.parametrize(("store", "kind"), [pair for pair in PAIRS if "workers" not in pair.values])
def test_one_two_and_four_ranks_share_the_same_epoch(stores: dict[str, Source], store: str, kind: str) -> None:
    whole = [batch.index.tolist() for batch in LOADERS["inline"](planned(stores[store], batch_size=8))]
    for world in (1, 2, 4):
        plans = [planned(stores[store], batch_size=8 // world, rank=r, world_size=world) for r in range(world)]
        seen = []
        for plan in plans:
            with LOADERS[kind](plan) as loader:
                seen.append([batch.index.tolist() for batch in loader])
        parts = [list(chain.from_iterable(rows)) for rows in zip(*seen, strict=True)]
        assert parts == whole
    assert sorted(chain.from_iterable(whole)) == list(range(len(stores[store])))


@pytest.mark.parametrize("store", STORES)
def test_a_state_goes_from_one_kind_of_loader_to_every_other(opened: Callable[..., Loader], store: str) -> None:
    kinds = [kind for kind in LOADERS if kind != "dali" or has_dali()]
    source = opened(store, "inline")
    source.set_epoch(7)
    list(islice(source, 2))
    state = json.loads(json.dumps(source.state_dict()))
    rest = []
    for kind in kinds:
        other = opened(store, kind)
        other.load_state_dict(state)
        rest.append([batch.keys for batch in other])
    assert len(rest[0]) == len(source) - 2
    assert all(keys == rest[0] for keys in rest)
