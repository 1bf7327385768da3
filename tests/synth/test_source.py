"""Synthetic samples as files: what is asked for together is what is asked for alone, and the image is of its text."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from inkmill.data.jobs.convert import convert
from inkmill.data.pipeline.decode import decode, image_size
from inkmill.data.sources import Concat, Subset
from inkmill.synth.source import HEIGHT, SyntheticSource


@pytest.fixture(scope="module")
def source(settings) -> SyntheticSource:
    return SyntheticSource(settings, 30, 4)


def test_samples_are_the_same_alone_and_together(source):
    wanted = [7, 3, 29]
    with source.reading(wanted) as get:
        together = [get(index) for index in wanted]
    assert together == [source.get(index) for index in wanted]
    assert [sample.target for sample in together] == source.described(wanted)[1]
    assert len({sample.key for sample in together}) == 3


def test_composed_sources_hand_on_what_will_be_asked_for(source):
    part = Concat([Subset(source, [4, 5]), source])
    assert part.together
    with part.reading([1, 3]) as get:
        assert [get(1).image, get(3).image] == [source.image(5), source.image(1)]


def test_images_have_one_height_and_the_widths_that_are_announced(source):
    sizes = source.sizes().tolist()
    assert [list(image_size(source.image(index))) for index in range(5)] == sizes[:5]
    assert {height for _, height in sizes} == {HEIGHT}
    assert decode(source.image(0), 3).std() > 5


def test_a_copy_in_another_process_draws_the_same(source):
    copy = pickle.loads(pickle.dumps(source))
    assert copy.identity == source.identity
    assert copy.get(2) == source.get(2)


def test_another_seed_is_another_set(source, settings):
    other = SyntheticSource(settings, 30, 5)
    assert other.identity != source.identity
    assert not np.array_equal(other.sizes(), source.sizes())


def test_a_kept_set_holds_the_texts_that_were_drawn(settings, tmp_path):
    source = SyntheticSource(settings, 6, 1, "jpeg")
    report = convert(source, tmp_path / "set", kind="tsv", workers=0)
    assert report.samples == 6
    lines = (tmp_path / "set" / "labels.tsv").read_text("utf-8").splitlines()
    assert [line.split("\t")[1] for line in lines] == [source.target(index).value for index in range(6)]
    assert len(list((tmp_path / "set").rglob("*.jpg"))) == 6
