"""Staging for DALI in processes: the same bytes whatever their number, and processes that die or fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from captcha_source import CaptchaSource

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.errors import DataError

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.dali

from inkmill.data.loaders.dali.loader import DaliLoader  # noqa: E402
from inkmill.data.loaders.dali.prefetch import pack, unpack  # noqa: E402

STRONG = Augmentation.from_spec(AugmentationSpec(preset="scene_text"))


@pytest.fixture(scope="module")
def crops(captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> CaptchaSource:
    """67 captchas, of which every third is a transparent PNG and the others are JPEGs of many sizes."""
    folder = tmp_path_factory.mktemp("crops")
    (folder / "images").mkdir()
    source = CaptchaSource.first(captchas, 67)
    for index, name in enumerate(source.names):
        data = source.get(index).image
        if index % 3:
            image = decode(data, 3)[: 30 + index // 2, : 80 + index, ::-1]
            data = cv2.imencode(".jpg", np.ascontiguousarray(image))[1].tobytes()
        (folder / name).write_bytes(data)
    return CaptchaSource(folder, source.names)


@pytest.fixture
def plan(crops: CaptchaSource) -> Callable[..., LoadPlan]:
    def planned(source: Any = crops, **changes: Any) -> LoadPlan:
        return LoadPlan(
            source, **({"resize": Resize(32, 96, 3), "batch_size": 8, "seed": 3, "augmentation": STRONG} | changes)
        )

    return planned


def staged_by(plan: LoadPlan, processes: int, augment_on: Any = "dali") -> DaliLoader:
    loader = DaliLoader(plan, 4 * processes, augment_on)
    assert loader.workers == processes
    return loader


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"augment_on": "gpu"},
        {"resize": Resize(32, 160, 1, "height")},
        {"cache": CacheConfig("ram")},
    ],
    ids=["augmented", "augmentation deferred", "buckets", "cached"],
)
def test_any_number_of_processes_stages_the_same_bytes(
    plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], changes: dict[str, Any]
) -> None:
    augment_on = changes.get("augment_on", "dali")
    options = {name: value for name, value in changes.items() if name != "augment_on"}
    wanted = make_loader(plan(**options)).plan  # measures the buckets
    with staged_by(wanted, 1, augment_on) as alone, staged_by(wanted, 2, augment_on) as several:
        for _ in range(2):
            first, second = list(alone), list(several)
            assert snapshot(second) == snapshot(first)
            for batch, other in zip(first, second, strict=True):
                assert (batch.augmentation is not None) == (augment_on == "gpu")
                if batch.augmentation is not None:
                    one, two = (some.augmentation.params.values for some in (batch, other))
                    assert np.array_equal(one, two)
        # An epoch's first batches may be made while the last of the one before, which keep their pictures, still are.
        least, most = (67 - 2 * wanted.batch_size, 67) if wanted.cache.tier == "ram" else (0, 0)
        assert all(least <= loader.stats.cached <= most for loader in (alone, several))
        assert not any("pass through a pipe" in note for note in several.stats.notes)
        list(islice(several, 3))
        state = several.state_dict()
        alone.load_state_dict(state)
        several.load_state_dict(state)
        assert snapshot(several) == snapshot(alone)
    assert not active_children()


def test_a_process_that_dies_is_reported_and_replaced(
    plan: Callable[..., LoadPlan], snapshot: Callable[..., Any]
) -> None:
    with staged_by(plan(), 1) as loader, staged_by(plan(), 1) as other:
        next(iter(loader))
        os.kill(active_children()[0].pid or 0, signal.SIGKILL)
        with pytest.raises(DataError, match=r"inkmill-loader-0 \(pid \d+\) was killed by SIGKILL"):
            list(loader)
        loader.set_epoch(5)
        other.set_epoch(5)
        assert snapshot(loader) == snapshot(other)


def test_a_bug_comes_back_with_its_traceback(plan: Callable[..., LoadPlan], crops: CaptchaSource) -> None:
    looked_at = np.linspace(0, 66, 64).astype(int)  # for the size of the memory; a bug there is raised at once
    source = CaptchaSource(crops.folder, crops.names, buggy=frozenset(range(67)) - set(looked_at.tolist()))
    with (
        staged_by(plan(source), 1) as loader,
        pytest.raises(RuntimeError, match="ZeroDivisionError: a bug in a source"),
    ):
        list(loader)


def test_a_batch_larger_than_its_memory_passes_through_the_pipe(plan: Callable[..., LoadPlan], tmp_path: Path) -> None:
    # The memory is estimated by 64 samples from all over the source; here the others are larger than any of them.
    random = np.random.default_rng(7)
    probed = set(np.linspace(0, 199, 64).astype(int).tolist())
    for index in range(200):
        shape = (8, 24, 3) if index in probed else (64, 192, 3)
        noise = cv2.imencode(".png", random.integers(0, 255, shape, np.uint8))[1]
        (tmp_path / f"{index}.png").write_bytes(noise.tobytes())
    source = CaptchaSource(tmp_path, [f"{index}.png" for index in range(200)])
    wanted = plan(source, resize=Resize(16, 48, 3), batch_size=64, augmentation=None)
    with staged_by(wanted, 1) as loader:
        for batch, expected in zip(loader, make_loader(wanted), strict=True):
            assert batch.keys == expected.keys
            assert np.abs(batch.images.astype(int) - expected.images).max() <= 2
        assert any("pass through a pipe" in note for note in loader.stats.notes)


def test_inputs_are_read_as_they_were_written() -> None:
    memory = np.zeros(4096, np.uint8)
    pictures = memory[:60].reshape(2, 5, 6)
    pictures[...] = 7
    small = np.zeros((1, 1), np.float32)
    inputs = {
        "images": pictures,
        "flag": np.array([True, False]),
        "list": [small, np.arange(6, dtype=np.float32).reshape(2, 3), small],
        "huge": np.arange(9000, dtype=np.uint8),
        "numbers": np.array([[1.5], [2.5]], np.float32),
    }
    packed = pack(inputs, memory)
    found = unpack(packed, memory)
    assert packed[2]
    assert list(found) == list(inputs)
    for name, value in inputs.items():
        arrays, others = (some if isinstance(some, list) else [some] for some in (value, found[name]))
        for array, other in zip(arrays, others, strict=True):
            assert array.dtype == other.dtype
            assert np.array_equal(array, other)
    assert all(np.shares_memory(found[name], memory) for name in ("images", "flag", "numbers"))
    assert len(packed[0]) < 9000 + 1000
