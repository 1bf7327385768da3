"""The stream of synthetic batches: every sample once, one image size a batch, the same from any place on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from inkmill.data.pipeline.resize import Resize  # noqa: E402
from inkmill.synth.device import DeviceEngine  # noqa: E402
from inkmill.synth.engine import open_engine  # noqa: E402
from inkmill.synth.stream import SampleStream  # noqa: E402

SIZES = Resize(32, 256, 3, "aspect").sizes()
BATCH = 8


@pytest.fixture(scope="module")
def engine(settings):
    return DeviceEngine(open_engine(settings), torch.device("cpu"))


@pytest.fixture
def stream(engine):
    stream = SampleStream(engine, 3, SIZES, BATCH)
    yield stream
    stream.close()


@pytest.fixture(scope="module")
def chunk(engine):
    stream = SampleStream(engine, 3, SIZES, BATCH)
    batches = [stream.at(position) for position in range(stream.batches)]
    stream.close()
    return batches


def test_a_chunk_uses_each_of_its_samples_once(chunk):
    index = np.concatenate([drawn.index for _, drawn in chunk])
    assert sorted(index.tolist()) == list(range(len(chunk) * BATCH))


def test_batches_come_in_all_sizes_one_size_a_batch_and_mixed_in_order(chunk):
    widths = [size[1] for size, _ in chunk]
    assert set(widths) == {width for _, width in SIZES}
    assert widths != sorted(widths)
    assert all(len(drawn.index) == BATCH for _, drawn in chunk)


def test_samples_go_to_the_size_nearest_to_their_shape(chunk):
    ratio = np.concatenate([np.full(BATCH, SIZES.index(size) + 1) for size, _ in chunk])
    aspects = np.concatenate([drawn.aspects for _, drawn in chunk])
    texts = [text for _, drawn in chunk for text in drawn.texts]
    short = np.array([len(text) for text in texts]) * 4 <= 64  # others may need a wider input than their shape says
    inner = short & (ratio > 1) & (ratio < len(SIZES))
    assert (np.abs(aspects - ratio)[inner] <= 0.75).mean() > 0.95
    assert aspects[short & (ratio == 1)].max() < 2


def test_a_text_gets_four_columns_a_character_and_one_more_for_a_repeat(chunk):
    lost = 0
    for (_, width), drawn in chunk:
        for text in drawn.texts:
            steps = len(text) + sum(one == other for one, other in pairwise(text))
            lost += width < 256 and 4 * steps > width
    assert lost <= 0.002 * len(chunk) * BATCH


def test_any_batch_is_the_same_whatever_was_asked_for_before(stream, chunk):
    for position in (100, 7, 101):
        size, drawn = stream.at(position)
        assert size == chunk[position][0]
        assert drawn.texts == chunk[position][1].texts
        assert np.array_equal(drawn.params.values, chunk[position][1].params.values)
    _, later = stream.at(stream.batches)
    assert later.index.min() >= stream.samples


def test_batches_of_one_size_are_those_of_the_stream_and_go_on_in_the_next_chunk(stream, chunk):
    those = {tuple(sorted(drawn.index.tolist())) for size, drawn in chunk if size[1] == 96}
    asked = [tuple(sorted(stream.of_size(96, number).index.tolist())) for number in range(len(those))]
    assert set(asked) == those
    assert stream.of_size(96, len(those)).index.min() >= stream.samples


def test_ranks_share_a_batch_without_overlap(engine, chunk):
    parts = []
    for rank in range(2):
        stream = SampleStream(engine, 3, SIZES, BATCH, rank=rank, world_size=2)
        parts.append(stream.at(5)[1])
        stream.close()
    whole = chunk[5][1]
    assert np.array_equal(np.concatenate([part.index for part in parts]), whole.index)
    assert parts[0].texts + parts[1].texts == whole.texts


def test_an_error_of_the_thread_is_raised_where_the_batch_is_asked_for(engine, monkeypatch):
    stream = SampleStream(engine, 3, [(32, 128)], BATCH)

    def broken(states):
        raise MemoryError("no room")

    monkeypatch.setattr(engine.engine, "codes", broken)
    with pytest.raises(MemoryError, match="no room"):
        stream.at(0)
    stream.close()
