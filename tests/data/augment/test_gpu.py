"""Augmentation on a device: what torch samples is what NumPy samples, and the images look as their params say."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from inkmill.data.augment import (  # noqa: E402
    Augmentation,
    apply_cv,
)
from inkmill.data.augment.gpu import DeviceAugmenter, apply_deferred  # noqa: E402
from inkmill.data.augment.ops import OPS, load_preset, parse_ops, preset_names  # noqa: E402
from inkmill.data.augment.params import DeferredAugmentation  # noqa: E402
from inkmill.data.augment.random_numbers import epoch_key, keyed_states, sample_states, uniforms  # noqa: E402
from inkmill.data.augment.torch_passes import apply_torch  # noqa: E402

WILD = [{"op": "perspective", "x": 0.5, "y": 0.5}] * 4 + [
    {"op": "group", "p": 0.5, "ops": [{"op": "blur", "choices": [0.3, 1, 2.7]}, {"op": "jpeg", "p": 0.7}]},
    {"op": "invert", "p": 0.5},
    {"op": "saturation"},
    {"op": "flip", "p": 0.5, "axis": "vertical"},
    {"op": "blur", "p": 0.1},
]
SPECS = {name: load_preset(name) for name in preset_names()} | {"wild": parse_ops(WILD)}
SPECS |= {name: parse_ops([{"op": name, "p": 0.6}]) for name in OPS.names() if name != "group"}


def on_torch(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(numbers.view(np.int64))


@settings(max_examples=50)
@given(st.integers(-(2**70), 2**70), st.integers(0, 2**33), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_torch_hashes_to_the_same_numbers(seed: int, epoch: int, index: list[int]) -> None:
    augmentation, states = Augmentation(load_preset("tao")), sample_states(seed, epoch, np.array(index))
    by_torch = keyed_states(on_torch(epoch_key(seed, epoch)), torch.tensor(index))
    assert by_torch.tolist() == states.view(np.int64).tolist()
    expected = uniforms(states, augmentation.offsets)
    assert torch.equal(uniforms(by_torch, on_torch(augmentation.offsets)), torch.from_numpy(expected))


@pytest.mark.parametrize("name", SPECS)
def test_torch_samples_the_same_params(name: str) -> None:
    augmentation, index = Augmentation(SPECS[name]), np.arange(2000)
    expected = augmentation.sample(3, 5, index, 31, 100).values
    states, offsets = on_torch(sample_states(3, 5, index)), on_torch(augmentation.offsets)
    for column, number in enumerate(augmentation.columns(torch, states, offsets, 31, 100)):
        sampled = number if isinstance(number, float) else number.float().numpy()
        np.testing.assert_array_max_ulp(np.broadcast_to(np.float32(sampled), 2000), expected[:, column], 1)


@pytest.mark.parametrize("name", ["scene_text", "wild", "captcha"])
def test_probabilities_alone_tell_which_images_get_a_pass(name: str) -> None:
    augmentation, index = Augmentation(SPECS[name]), np.arange(3000)
    params, states = augmentation.sample(1, 2, index, 32, 128), sample_states(1, 2, index)
    for part in ("blur", "jpeg"):
        numbers = params.part(part)
        expected = np.zeros(3000, bool) if numbers is None else numbers[:, 0] > 0
        assert np.array_equal(augmentation.rows_with(part, states), expected)


def shown(crops: np.ndarray, name: str, index: np.ndarray, epoch: int = 1) -> tuple[Augmentation, np.ndarray]:
    """Return an augmentation, and what applying its params to the pictures of a batch shows."""
    augmentation = Augmentation(SPECS[name])
    params = augmentation.sample(9, epoch, index, 32, 128)
    return augmentation, apply_torch(torch.from_numpy(crops[index]), params).numpy()


def assert_close(one: np.ndarray, other: np.ndarray) -> None:
    """Numbers that differ in their last bit may round to the next shade, and in JPEG to the next coefficient."""
    difference = np.abs(one.astype(int) - other)
    assert difference.mean() < 0.01, difference.max()
    assert (difference > 1).mean() < 0.001, difference.max()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*preset_names(), "wild"])
def test_a_batch_of_held_images_looks_as_its_params_say(crops: dict[int, np.ndarray], name: str, channels: int) -> None:
    index = np.random.default_rng(0).permutation(64)[:40]
    augmentation, expected = shown(crops[channels], name, index)
    images = torch.from_numpy(crops[channels])
    held = DeviceAugmenter(augmentation, 40, images.device, held=images)
    assert_close(held(9, 1, index).numpy(), expected)
    brought = DeviceAugmenter(augmentation, 64, images.device)
    assert torch.equal(brought(9, 1, index, images[index]), held(9, 1, index))


def test_batches_without_images_or_without_ops_are_only_fetched(crops: dict[int, np.ndarray]) -> None:
    images, none, two = torch.from_numpy(crops[3]), np.arange(0), np.array([5, 3])
    changing, still = (DeviceAugmenter(Augmentation(ops), 8, images.device, held=images) for ops in (SPECS["tao"], []))
    assert changing(0, 0, none).shape == (0, 32, 128, 3)
    assert torch.equal(still(0, 0, two), images[two])
    changing, still = (DeviceAugmenter(Augmentation(ops), 8, images.device) for ops in (SPECS["tao"], []))
    assert changing(0, 0, none, images[none]).shape == (0, 32, 128, 3)
    assert torch.equal(still(0, 0, two, images[two]), images[two])


def test_images_of_other_samples_are_refused(crops: dict[int, np.ndarray]) -> None:
    images = torch.from_numpy(crops[3])
    with pytest.raises(ValueError, match="3 images for 2 samples"):
        DeviceAugmenter(Augmentation(SPECS["tao"]), 8, images.device)(0, 0, np.arange(2), images[:3])


def test_equal_specs_share_a_pass_and_others_do_not() -> None:
    identities = [Augmentation(parse_ops([{"op": "rotate", "degrees": limits}])).identity for limits in (5, 5, 6)]
    assert identities[0] == identities[1] != identities[2]
    assert len({Augmentation(changes).identity for changes in SPECS.values()}) == len(SPECS)


def test_on_a_cpu_deferred_augmentation_applies_its_params(crops: dict[int, np.ndarray]) -> None:
    index = np.arange(30)
    augmentation, expected = shown(crops[3], "scene_text", index)
    deferred = DeferredAugmentation(augmentation, 9, 1, index, 32, 128, batch_size=64)
    assert len(deferred) == 30
    with pytest.raises(ValueError, match="of a batch of"):
        apply_deferred(torch.from_numpy(crops[3][:29]), deferred)
    nothing = DeferredAugmentation(augmentation, 9, 1, index[:0], 32, 128, batch_size=64)
    assert apply_deferred(torch.from_numpy(crops[3][:0]), nothing).shape == (0, 32, 128, 3)
    assert np.array_equal(apply_deferred(torch.from_numpy(crops[3][index]), deferred).numpy(), expected)


@pytest.mark.slow
def test_a_compiler_sees_the_sampling_of_all_ops_as_one_graph() -> None:
    augmentation = Augmentation([op for name in OPS.names() if name != "group" for op in SPECS[name]] + SPECS["wild"])
    states, offsets = on_torch(sample_states(0, 0, np.arange(8))), on_torch(augmentation.offsets)
    torch._dynamo.reset()
    sample = torch.compile(augmentation.columns, backend="eager", dynamic=False, fullgraph=True)
    sampled, expected = (columns(torch, states, offsets, 32, 128) for columns in (sample, augmentation.columns))
    assert all(np.array_equal(one, other) for one, other in zip(sampled, expected, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_one_compilation_serves_every_epoch_short_batches_and_overflowing_blocks(crops: dict[int, np.ndarray]) -> None:
    images, size = torch.from_numpy(crops[1]), 64
    augmentation = Augmentation(parse_ops([{"op": "rotate"}, {"op": "blur", "p": 0.05, "sigma": 1}]))
    augment = DeviceAugmenter(augmentation, size, images.device, compiled=True)
    blurred = [row for row in range(64) if augmentation.rows_with("blur", sample_states(9, 1, np.array([row])))[0]]
    batches = [np.arange(size), np.arange(20), np.resize(blurred, size)]  # the last has 64 to blur, a block holds 32
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for epoch in (1, 2):
        for index in batches:
            params = augmentation.sample(9, epoch, index, 32, 128)
            batch = images[index]
            assert_close(augment(9, epoch, index, batch).numpy(), apply_torch(batch, params).numpy())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", preset_names())
def test_the_compiled_pass_on_a_gpu_shows_the_same_as_opencv(
    crops: dict[int, np.ndarray], name: str, held: bool
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    images = np.tile(crops[3], (8, 1, 1, 1))
    augmentation, index = Augmentation(SPECS[name]), np.random.default_rng(0).permutation(512)
    on_gpu = torch.from_numpy(images).cuda()
    augment = DeviceAugmenter(augmentation, 512, on_gpu.device, held=on_gpu)
    for rows in (index, index[:100], index[::-1].copy()):  # the first records the pass, the others replay it
        by_cv = apply_cv(images[rows], augmentation.sample(9, 1, rows, 32, 128))
        deferred = DeferredAugmentation(augmentation, 9, 1, rows, 32, 128, batch_size=512)
        by_gpu = augment(9, 1, rows) if held else apply_deferred(on_gpu[torch.from_numpy(rows).cuda()], deferred)
        difference = np.abs(by_gpu.cpu().numpy().astype(int) - by_cv)
        assert difference.mean() < 0.4  # as in test_engines: OpenCV rounds after each change


@pytest.mark.gpu
@pytest.mark.parametrize("held", [True, False])
def test_a_short_batch_is_the_same_bytes_whether_it_comes_first_or_later(
    crops: dict[int, np.ndarray], held: bool
) -> None:
    """Else a run that is resumed at the end of an epoch would be another one."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    images, index = torch.from_numpy(crops[3]).cuda(), np.arange(64)
    augmentation, cached = Augmentation(SPECS["scene_text"]), images if held else None

    def augmented(augmenter: DeviceAugmenter, rows: np.ndarray) -> torch.Tensor:
        return augmenter(9, 1, rows, None if held else images[torch.from_numpy(rows).cuda()])

    first, later = (DeviceAugmenter(augmentation, 64, images.device, held=cached) for _ in range(2))
    augmented(later, index)
    assert torch.equal(augmented(first, index[:11]), augmented(later, index[:11]))
