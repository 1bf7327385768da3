from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from captcha_source import CaptchaSource  # noqa: E402

from inkmill.config.dataset import AugmentationSpec  # noqa: E402
from inkmill.data.augment import Augmentation  # noqa: E402
from inkmill.data.augment.torch_passes import apply_torch  # noqa: E402
from inkmill.data.loaders.resident import ResidentLoader  # noqa: E402
from inkmill.data.loaders.workers import InlineLoader  # noqa: E402
from inkmill.errors import ConfigError, DataError  # noqa: E402


def contents(batches):
    taken = []
    for batch in batches:
        pixels = np.asarray(batch.images).tobytes()
        taken.append((batch.keys, batch.texts, pixels, batch.widths.tolist(), batch.index.tolist()))
    return taken


@pytest.fixture
def plan(captcha_plan):
    return captcha_plan(augmentation=Augmentation.from_spec(AugmentationSpec(preset="scene_text")))


def test_batches_are_those_of_the_inline_loader_augmented_in_every_epoch(plan):
    with ResidentLoader(plan, "cpu") as loader, InlineLoader(plan, "gpu") as reference:
        for _ in range(2):
            for batch, expected in zip(loader, reference, strict=True):
                assert (batch.keys, batch.texts) == (expected.keys, expected.texts)
                assert np.array_equal(batch.widths, expected.widths)
                shown = apply_torch(torch.from_numpy(expected.images), expected.augmentation.params)
                # A number drawn by torch may differ in its last bit, and a pixel so be rounded the other way.
                assert (batch.images.int() - shown.int()).abs().float().mean() < 0.01
                assert batch.augmentation is None


def test_epochs_differ_by_their_augmentation(plan):
    with ResidentLoader(replace(plan, shuffle=False), "cpu") as loader:
        first, second = contents(loader), contents(loader)
    assert all(one[2] != other[2] and one[0] == other[0] for one, other in zip(first, second, strict=True))


def test_without_augmentation_batches_are_those_of_the_inline_loader(plan):
    plain = replace(plan, augmentation=None)
    with ResidentLoader(plain, "cpu") as loader, InlineLoader(plain) as reference:
        assert contents(loader) == contents(reference)


def test_the_second_epoch_reads_nothing(plan, monkeypatch):
    with ResidentLoader(plan, "cpu") as loader:
        first = list(loader)
        monkeypatch.setattr(CaptchaSource, "get", lambda self, index: pytest.fail("the source was read again"))
        assert len(list(loader)) == len(first)
        assert loader.stats.cached == 2 * len(plan.source)


def test_an_epoch_left_in_the_middle_resumes_exactly(plan):
    with ResidentLoader(plan, "cpu") as whole:
        expected = contents(whole)
    with ResidentLoader(plan, "cpu") as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    with ResidentLoader(plan, "cpu") as resumed:
        resumed.load_state_dict(state)
        assert contents(resumed) == expected[3:]


def test_two_ranks_share_an_epoch(plan):
    seen = []
    for rank in range(2):
        with ResidentLoader(replace(plan, rank=rank, world_size=2), "cpu") as loader:
            seen.append([index for batch in loader for index in batch.index.tolist()])
    assert not set(seen[0]) & set(seen[1])
    assert sorted(seen[0] + seen[1]) == list(range(len(plan.source)))


def test_a_bad_sample_is_left_out_and_counted(captchas, plan):
    source = CaptchaSource.first(captchas, 40, broken=frozenset({7}))
    lenient = replace(plan, source=source, on_bad_sample="skip", max_bad=0.1)
    with ResidentLoader(lenient, "cpu") as loader:
        keys = [key for batch in loader for key in batch.keys]
        assert sorted(keys) == sorted(set(source.names) - {source.key(7)})
        assert loader.stats.bad_samples == 1
        assert loader.stats.left_out == 1
    with ResidentLoader(replace(lenient, on_bad_sample="raise"), "cpu") as strict, pytest.raises(DataError):
        list(strict)


def test_pictures_of_several_widths_are_refused(captcha_plan):
    with pytest.raises(ConfigError, match="several sizes are not cached on a device"):
        ResidentLoader(captcha_plan(bucket_widths=np.full(67, 64)), "cpu")


def test_the_gpus_clock_is_marked_before_the_device_makes_a_batch(plan):
    marked = []

    class Clock:
        def mark_generating(self):
            marked.append(loader.stats.batches)

    with ResidentLoader(plan, "cpu") as loader:
        loader.gpu_idle = Clock()
        list(loader)
        assert marked == list(range(len(loader)))


def test_closing_gives_the_memory_back_at_once(plan):
    loader = ResidentLoader(plan, "cpu")
    next(iter(loader))
    pictures = weakref.ref(loader._images)
    gc.disable()
    try:
        loader.close()
        assert pictures() is None
    finally:
        gc.enable()
    assert len(list(loader)) == len(loader)
