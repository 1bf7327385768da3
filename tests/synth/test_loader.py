"""The loader of synthetic text: exact epochs, exact resuming, alone and among real sets of several image sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from inkmill.data.loaders import LoadPlan, make_loader  # noqa: E402
from inkmill.data.loaders.mix import MixedLoader, split_batch  # noqa: E402
from inkmill.data.pipeline.resize import Resize  # noqa: E402
from inkmill.errors import ConfigError  # noqa: E402
from inkmill.synth.loader import SyntheticLoader  # noqa: E402
from inkmill.synth.source import SyntheticSource  # noqa: E402

ASPECT = Resize(32, 256, 3, "aspect")


def plan_of(settings, resize=ASPECT, count=100, batch_size=12, seed=5):
    return LoadPlan(SyntheticSource(settings, count, seed), resize, batch_size=batch_size, seed=seed)


def seen(batches):
    """Return what batches hold, as values that can be compared."""
    return [(batch.texts, batch.index.tolist(), batch.images.shape, int(batch.images.sum())) for batch in batches]


def test_epochs_have_their_length_and_no_sample_twice(settings):
    with SyntheticLoader(plan_of(settings), "cpu") as loader:
        epochs = [list(loader), list(loader)]
    assert [len(epoch) for epoch in epochs] == [9, 9] == [len(loader)] * 2
    index = [number for epoch in epochs for batch in epoch for number in batch.index.tolist()]
    assert len(set(index)) == len(index) == 18 * 12


def test_a_batch_holds_what_its_texts_say_in_the_size_of_its_bucket(settings):
    with SyntheticLoader(plan_of(settings), "cpu") as loader:
        batches = list(loader)
    sizes = {tuple(batch.images.shape[1:3]) for batch in batches}
    assert sizes <= set(ASPECT.sizes())
    assert len(sizes) > 1
    for batch in batches:
        assert batch.images.dtype == torch.uint8
        assert (batch.widths == batch.images.shape[2]).all()
        assert len(batch.texts) == len(batch.keys) == 12
        assert batch.images.float().std() > 10


def test_resuming_goes_on_with_the_very_next_batch(settings):
    with SyntheticLoader(plan_of(settings), "cpu") as loader:
        loader.set_epoch(2)
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        rest = seen(batches)
    with SyntheticLoader(plan_of(settings), "cpu") as other:
        other.load_state_dict(state)
        assert seen(other) == rest
        assert len(rest) == 5


@pytest.mark.slow
def test_another_seed_or_font_is_another_set(settings):
    with SyntheticLoader(plan_of(settings), "cpu") as loader:
        state = loader.state_dict()
        first = next(iter(loader)).texts
    fewer = replace(settings, spec=settings.spec.model_copy(update={"fonts": settings.spec.fonts[:2]}))
    with SyntheticLoader(plan_of(fewer), "cpu") as loader:
        assert loader.differences(state)
    with SyntheticLoader(plan_of(settings, seed=6), "cpu") as loader:
        assert next(iter(loader)).texts != first


def test_padding_repeats_the_last_column_of_the_text(settings):
    clean = replace(settings, spec=settings.spec.model_copy(update={"preset": None}))
    with SyntheticLoader(plan_of(clean, Resize(32, 160, 1, "pad")), "cpu") as loader:
        batch = next(iter(loader))
    assert batch.images.shape == (12, 32, 160, 1)
    assert len(set(batch.widths.tolist())) > 3
    for image, width in zip(batch.images, batch.widths.tolist(), strict=True):
        assert (image[:, width:] == image[:, width - 1 : width]).all()


def test_free_widths_are_refused(settings):
    with pytest.raises(ConfigError, match="input_resize=aspect"):
        SyntheticLoader(plan_of(settings, Resize(32, 256, 3, "height")), "cpu")


@pytest.fixture
def mixed(settings):
    """Return a function that opens a mix of images that are files, of several shapes, and synthetic ones."""
    real_source = SyntheticSource(settings, 24, 99, name="real")

    def opened():
        sizes = split_batch(12, [1, 2])
        real = make_loader(LoadPlan(real_source, ASPECT, batch_size=sizes[0], seed=5))
        synthetic = SyntheticLoader(plan_of(settings, batch_size=sizes[1]), "cpu")
        return MixedLoader([real, synthetic], "cpu"), synthetic

    return opened


def test_synthetic_samples_take_the_size_of_the_real_ones_in_their_batch(mixed):
    loader, _ = mixed()
    with loader:
        batches = [*loader, *islice(loader, 2)]
    assert len(batches) == len(loader) + 2
    own = [number for batch in batches for number in batch.index[batch.index >= 24].tolist()]
    assert len(set(own)) == len(own) == 8 * len(batches)
    real = [number for batch in batches[: len(loader)] for number in batch.index[batch.index < 24].tolist()]
    assert sorted(real) == list(range(24))
    assert len({tuple(batch.images.shape[1:3]) for batch in batches}) > 2


@pytest.mark.slow
def test_a_mix_resumes_exactly(mixed):
    loader, _ = mixed()
    with loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = seen(batches)
    again, _ = mixed()
    with again:
        again.load_state_dict(state)
        assert seen(again) == rest
