"""Images that the GPU resizes: the same bytes as those resized on the CPU, whatever their sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captcha_source import PaintedSource
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import load_preset
from inkmill.data.loaders import Loader, LoadPlan, make_loader
from inkmill.data.loaders.images import RaggedImages, RaggedWriter, ResizedWriter, ragged_bytes
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize, ResizeMode
from inkmill.data.pipeline.targets import has_polygons
from inkmill.data.types import Polygons, Target

FITS = (Resize(32, 64, 3), Resize(32, 100, 1, "pad"), Resize(24, 60, 3, "pad"), Resize(33, 50, 1))
SIZES = [(32, 64), (1, 1), (20, 50), (64, 128), (65, 20), (16, 300), (31, 99), (64, 200), (48, 47), (7, 13), (32, 100)]

STRONG = Augmentation(load_preset("scene_text"))

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_images import by_a_trial, by_the_kernel
by_the_kernel()
by_a_trial()
"""


def pictures(channels: int, sizes: list[tuple[int, int]] = SIZES, seed: int = 0) -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (*size, channels), dtype=np.uint8) for size in sizes]


def written(images: list[NDArray[np.uint8]], resize: Resize, good: NDArray[np.bool_] | None = None) -> RaggedImages:
    shape = (len(images), resize.height, resize.width, resize.channels)
    writer = RaggedWriter(np.empty(ragged_bytes(shape), np.uint8), shape, resize)
    for number, image in enumerate(images):
        assert writer.put(number, image) == resize.valid_width(image.shape[1], image.shape[0])
    closed = writer.close(np.ones(len(images), np.bool_) if good is None else good)
    assert isinstance(closed, RaggedImages)
    return closed


def resized(images: list[NDArray[np.uint8]], resize: Resize) -> NDArray[np.uint8]:
    shape = (len(images), resize.height, resize.width, resize.channels)
    writer = ResizedWriter(np.empty(prod(shape), np.uint8), shape, resize)
    for number, image in enumerate(images):
        writer.put(number, image)
    return writer.images


def by_the_kernel() -> None:
    """Compare what Triton's interpreter makes of the kernel."""
    import torch

    from inkmill.kernels.resize import resize_ragged

    for resize in FITS:
        images = pictures(resize.channels)
        ragged = written(images, resize)
        found = resize_ragged(torch.from_numpy(ragged.memory), ragged.shape).numpy()
        assert np.array_equal(found, resized(images, resize)), resize


def by_a_trial() -> None:
    """Try the kernel as loading does before it relies on it, beside OpenCV as it is and one that rounds otherwise."""
    import torch

    from inkmill.data.loaders.device import why_not_resize

    device, apply = torch.device("cpu"), Resize.apply
    assert why_not_resize(device) is None
    why_not_resize.cache_clear()
    Resize.apply = lambda self, image, out=None: (apply(self, image, out)[0] ^ 1, 0)  # type: ignore[method-assign]
    assert why_not_resize(device) == "OpenCV rounds differently here"


@pytest.mark.slow
def test_the_kernel_resizes_to_the_last_bit() -> None:
    pytest.importorskip("triton")
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_gpu_resizes_to_the_last_bit() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from inkmill.kernels.resize import resize_ragged

    random = np.random.default_rng(5)
    sizes = [(int(h), int(w)) for h, w in random.integers((4, 4), (80, 260), (500, 2))]
    for resize in (*FITS, Resize(32, 128, 3), Resize(32, 100, 3)):
        images = pictures(resize.channels, [*SIZES, *sizes])
        ragged = written(images, resize)
        there = resize_ragged(torch.from_numpy(ragged.memory).cuda(), ragged.shape).cpu().numpy()
        assert np.array_equal(there, resized(images, resize)), resize


@given(
    st.sampled_from(FITS),
    st.lists(st.tuples(st.integers(1, 150), st.integers(1, 300)), min_size=1, max_size=8),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_all_images_find_room_and_are_resized_the_same(resize: Resize, sizes: list[tuple[int, int]], seed: int) -> None:
    images = pictures(resize.channels, sizes, seed)
    ragged = written(images, resize)
    assert len(ragged.memory) <= ragged_bytes(ragged.shape)
    assert np.array_equal(ragged.resized(), resized(images, resize))


def test_bad_samples_leave_no_gap() -> None:
    resize = FITS[0]
    images = pictures(3)
    good = np.arange(len(images)) % 3 != 1
    assert np.array_equal(written(images, resize, good).resized(), resized(images, resize)[good])


def opened(plan: LoadPlan, workers: int = 0, augment_on: Any = "gpu") -> Loader:
    return make_loader(plan, workers, augment_on=augment_on)


def goes_ragged(loader: Loader) -> bool:
    """Return whether a GPU would get images as they were decoded, and let it."""
    assert loader.memory is not None
    loader.memory.allow_ragged()
    return loader.memory.ragged


def some_plan(captcha_plan: Callable[..., LoadPlan], **changes: Any) -> LoadPlan:
    """Return a plan whose pictures, 240 x 80, take one step to fit; a batch has room for some as they are."""
    return captcha_plan(**{"resize": Resize(48, 128, 3), "augmentation": STRONG} | changes)


@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
@pytest.mark.parametrize("bad", [frozenset[int](), frozenset({2, 9})])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_the_same(
    captcha_plan: Callable[..., LoadPlan], workers: int, bad: frozenset[int], mode: ResizeMode
) -> None:
    options = {"on_bad_sample": "skip", "max_bad": 0.5, "shuffle": True, "resize": Resize(48, 160, 3, mode)}
    plan = some_plan(captcha_plan, faults={"broken": bad}, **options)
    with opened(plan) as reference, opened(plan, workers) as loader:
        assert goes_ragged(loader)
        for one, other in zip(reference, loader.views(), strict=True):
            assert isinstance(other.images, RaggedImages)
            sizes = other.images.headers[:, 1:3].tolist()
            assert [80, 240] in sizes  # as decoded
            assert sizes.count([80, 240]) < len(other)  # for which there is no room
            assert np.array_equal(other.images.resized(), one.images)
            assert (one.keys, one.texts, one.widths.tolist()) == (other.keys, other.texts, other.widths.tolist())
            changes = other.augmentation
            assert (len(changes), changes.height, changes.width) == one.images.shape[:3]
        assert loader.stats.left_out == reference.stats.left_out == len(bad)


@pytest.mark.parametrize("workers", [0, 1])
def test_iterating_gives_resized_images_all_the_same(
    captcha_plan: Callable[..., LoadPlan], snapshot: Callable[..., Any], workers: int
) -> None:
    plan = some_plan(captcha_plan)
    with opened(plan, workers) as loader:
        assert goes_ragged(loader)
        batches = list(loader)
        assert snapshot(batches) == snapshot(opened(plan))


def test_an_epoch_of_bad_samples_alone_has_empty_batches(captcha_plan: Callable[..., LoadPlan]) -> None:
    everything = {"broken": frozenset(range(67))}
    plan = some_plan(captcha_plan, faults=everything, on_bad_sample="skip", max_bad=1.0)
    with opened(plan) as loader:
        assert goes_ragged(loader)
        assert {batch.images.shape for batch in loader} == {(0, 48, 128, 3)}


def test_images_cached_or_augmented_on_the_cpu_are_resized_there(captcha_plan: Callable[..., LoadPlan]) -> None:
    plain = captcha_plan()
    augmented = replace(plain, augmentation=STRONG)
    for plan in (replace(plain, cache=CacheConfig("ram")), augmented):
        with make_loader(plan) as loader:
            assert not goes_ragged(loader)
            assert isinstance(next(iter(loader.views())).images, np.ndarray)
    for plan in (plain, augmented):
        with opened(plan) as loader:
            assert goes_ragged(loader)
            assert isinstance(next(iter(loader.views())).images, RaggedImages)


@pytest.mark.parametrize("short", ["inkmill.shared_memory.bytes_left", "inkmill.data.loaders.workers.memory_left"])
def test_where_memory_is_short_images_are_resized_on_the_cpu(
    captcha_plan: Callable[..., LoadPlan], monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    """Asked as the workers start: others may have taken it meanwhile."""
    plan = captcha_plan()
    with make_loader(plan, 1) as loader:
        assert goes_ragged(loader)
        monkeypatch.setattr(short, lambda: 6 * plan.batch_bytes)
        assert isinstance(next(iter(loader.views())).images, np.ndarray)
        (note,) = loader.stats.notes
        assert "too little memory" in note


def test_running_workers_continue_as_they_are(captcha_plan: Callable[..., LoadPlan]) -> None:
    """Who reads several times with one loader wraps it again each time."""
    with opened(some_plan(captcha_plan), 1) as loader:
        assert goes_ragged(loader)
        list(loader)
        memory = [block.ctypes.data for block in loader.memory.blocks]
        assert goes_ragged(loader)
        list(loader)
        assert [block.ctypes.data for block in loader.memory.blocks] == memory
    with opened(some_plan(captcha_plan), 1) as loader:
        list(loader)
        assert not goes_ragged(loader)


@pytest.mark.gpu
@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_gpu_gets_the_same_bytes(
    captcha_plan: Callable[..., LoadPlan], monkeypatch: pytest.MonkeyPatch, workers: int, locked: bool
) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from inkmill.data.loaders import device as device_module
    from inkmill.data.loaders.device import DeviceLoader

    if not locked:
        monkeypatch.setattr(device_module._Upload, "lock", lambda self, blocks: None)
    plan = some_plan(captcha_plan)
    loader = opened(plan, workers)
    with opened(plan) as reference, DeviceLoader(loader, "cuda") as on_gpu:
        assert goes_ragged(loader)
        for _ in range(2):
            for one, other in zip(reference, on_gpu, strict=True):
                assert np.array_equal(other.images.cpu().numpy(), one.images)


def facts(target: Target) -> Any:
    return [points.tobytes() for points in target.points] if isinstance(target, Polygons) else target


@pytest.mark.parametrize("mode", ["stretch", "pad", "height"])
def test_polygons_move_alike(mode: ResizeMode) -> None:
    plan = LoadPlan(PaintedSource(12), Resize(96, 192, 3, mode), STRONG)
    with opened(plan) as reference, opened(plan) as loader:
        assert goes_ragged(loader)
        for one, other in zip(reference, loader, strict=True):
            assert has_polygons(one.targets)
            assert [facts(target) for target in one.targets] == [facts(target) for target in other.targets]
        assert reference.stats.regions == loader.stats.regions
