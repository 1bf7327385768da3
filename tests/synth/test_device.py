"""Synthetic images are changed on the device as `data.augment` changes any image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from inkmill.data.augment.cpu import apply_cv  # noqa: E402
from inkmill.data.augment.random_numbers import sample_states  # noqa: E402
from inkmill.data.loaders import LoadPlan  # noqa: E402
from inkmill.data.pipeline.resize import Resize  # noqa: E402
from inkmill.synth.device import DeviceChanges  # noqa: E402
from inkmill.synth.engine import changes_of, open_engine  # noqa: E402
from inkmill.synth.loader import SyntheticLoader  # noqa: E402
from inkmill.synth.source import SyntheticSource  # noqa: E402

SIZE = (40, 112)
COUNT = 60


def test_changes_sampled_for_many_images_are_those_of_each(settings):
    changes = changes_of(settings.spec)
    assert changes is not None
    engine = open_engine(settings)
    index = np.arange(COUNT)
    images = engine.images(engine.rows(8, index), *SIZE)
    expected = apply_cv(images, changes.sample(8, 0, index, *SIZE)).astype(int)
    on_device = DeviceChanges(changes, torch.device("cpu"))
    sampled = on_device.sample(sample_states(8, 0, index), SIZE)
    parts = [slice(0, 20), slice(20, COUNT)]
    changed = [on_device.apply(torch.from_numpy(images[part]), sampled.rows(part)).numpy() for part in parts]
    difference = np.abs(np.concatenate(changed) - expected).mean(axis=(1, 2, 3))
    assert np.median(difference) < 0.5  # shades: engines round in their own ways, and JPEG makes more of it
    assert difference.max() < 6
    assert np.abs(expected - images).mean() > 5


def test_nothing_is_sampled_without_a_preset(settings):
    assert changes_of(settings.spec.model_copy(update={"preset": None})) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("preset", [None, "synthetic_text"])
def test_a_gpu_draws_the_batches_that_a_cpu_draws(settings, preset):
    drawn = replace(settings, spec=settings.spec.model_copy(update={"preset": preset}))
    plan = LoadPlan(SyntheticSource(drawn, 400, 5), Resize(32, 256, 3, "aspect"), batch_size=32, seed=5)
    with SyntheticLoader(plan, "cpu") as one, SyntheticLoader(plan, "cuda") as other:
        pairs = list(zip(one, other, strict=True))
    assert len(pairs) == 13
    for here, there in pairs:
        assert here.texts == there.texts
        assert np.array_equal(here.index, there.index)
        assert here.images.shape == there.images.shape
    apart = [(here.images.float() - there.images.cpu().float()).abs().mean((1, 2, 3)) for here, there in pairs]
    assert float(torch.cat(apart).median()) < 1
