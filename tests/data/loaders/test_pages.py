"""Whole pictures and parts of them: the same batches from every loader and tier, exact in the middle of an epoch."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.ops import parse_ops
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.pages import PackedPages, with_sizes
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.sources.base import Source
from inkmill.data.types import Polygons, Sample
from inkmill.errors import ConfigError, DataError

RESIZE = PageResize(96, 160, 3)
SIZES = [(120, 80), (80, 120), (300, 90), (64, 64), (40, 30), (120, 80), (200, 400)]


class PageSource(Source):
    """Pictures of several sizes, each with a bright rectangle that its one region tells."""

    def __init__(self, damaged=()):
        self.damaged = damaged
        self.reads = 0

    name, notes, fingerprint = "pages", (), "pages"

    def __len__(self):
        return len(SIZES)

    def key(self, index):
        return f"{index}.png"

    def target(self, index):
        left, top, right, bottom = self._box(index)
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        return Polygons((np.array(corners, np.float32) - 0.5,), (False,))

    def _box(self, index):
        width, height = SIZES[index]
        return width // 4, height // 4, width // 2, height // 2

    def image(self, index):
        self.reads += 1
        if index in self.damaged:
            raise DataError("torn")
        width, height = SIZES[index]
        pixels = np.full((height, width, 3), 40 + 10 * index, np.uint8)
        left, top, right, bottom = self._box(index)
        pixels[top:bottom, left:right] = 255
        return cv2.imencode(".png", pixels)[1].tobytes()

    def get(self, index):
        return Sample(self.key(index), self.image(index), self.target(index))


OPS = [{"op": "crop", "scale": [0.5, 1.5]}, {"op": "rotate", "degrees": 20}, {"op": "brightness", "p": 0.5}]


def training(source=None, **options):
    augmentation = Augmentation(parse_ops(OPS)).for_windows()
    return LoadPlan(source or PageSource(), RESIZE, augmentation, batch_size=3, window=(64, 96), seed=5, **options)


def whole(**options):
    return LoadPlan(PageSource(), RESIZE, batch_size=3, shuffle=False, **options)


def epochs(loader, count=2):
    with loader:
        return [batch for _ in range(count) for batch in loader]


def same(one, other, shades=0):
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys == theirs.keys
        assert np.array_equal(ours.sizes, theirs.sizes)
        assert np.asarray(ours.matrix) == pytest.approx(np.asarray(theirs.matrix), abs=1e-4)
        difference = np.abs(np.asarray(ours.images).astype(int) - np.asarray(theirs.images))
        assert difference.mean() <= shades / 2
        assert difference.max() <= shades * 24  # an edge of 255, at places that OpenCV rounds


def test_the_matrix_of_a_batch_leads_to_where_the_text_is():
    for batch in epochs(make_loader(training())):
        assert batch.images.shape[1:] == (64, 96, 3)
        for image, target, matrix in zip(batch.images, batch.targets, batch.matrix, strict=True):
            x, y, w = matrix @ np.append(target.points[0].mean(axis=0), 1)
            x, y = round(x / w), round(y / w)
            if 0 <= x < 96 and 0 <= y < 64:
                inside, ground = image[y, x].max(), np.median(image[image.sum(axis=2) > 0])
                assert inside > ground


def test_targets_stay_in_pixels_of_the_picture():
    source = PageSource()
    for batch in epochs(make_loader(training())):
        for index, target in zip(batch.index.tolist(), batch.targets, strict=True):
            assert np.array_equal(target.points[0], source.target(index).points[0])


def test_whole_pictures_of_one_size_share_a_batch_and_are_padded_with_black():
    batches = epochs(make_loader(whole()), 1)
    assert sorted(key for batch in batches for key in batch.keys) == [f"{k}.png" for k in range(7)]
    for batch in batches:
        for image, size in zip(batch.images, batch.sizes.tolist(), strict=True):
            columns, rows = RESIZE.page_size(*size)
            assert image.shape[:2] == RESIZE.padded_size(*size)[::-1]
            assert not image[rows:].any()
            assert not image[:, columns:].any()
            assert image[:rows, :columns].all()


@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("plan", [training, whole])
def test_cached_pictures_give_the_same_batches_and_none_is_decoded_twice(tmp_path, plan, tier):
    cached = replace(plan(), cache=CacheConfig(tier, 1, tmp_path))
    loader = make_loader(cached)
    reads = cached.source.reads
    same(epochs(make_loader(plan())), epochs(loader))
    assert cached.source.reads == reads + len(SIZES)
    assert loader.stats.cached == len(SIZES)


def test_a_damaged_cached_picture_is_decoded_again(tmp_path):
    plan = replace(whole(), cache=CacheConfig("disk", 1, tmp_path))
    first = epochs(make_loader(plan), 1)
    (file,) = tmp_path.glob("*.keep")
    content = bytearray(file.read_bytes())
    content[-10] ^= 255
    file.write_bytes(content)
    loader = make_loader(plan)
    same(first, epochs(loader, 1))
    assert loader.stats.damaged == 1


def test_a_cache_smaller_than_the_set_keeps_the_first_pictures():
    loader = make_loader(replace(whole(), cache=CacheConfig("ram", 100_000 / 2**30)))
    same(epochs(make_loader(whole())), epochs(loader))
    assert 0 < loader.stats.cached < len(SIZES)


@pytest.mark.parametrize("plan", [training, whole])
def test_a_worker_gives_the_same_batches(plan):
    same(epochs(make_loader(plan())), epochs(make_loader(plan(), 1)))


@pytest.mark.parametrize("plan", [training, whole])
def test_pictures_held_on_the_device_give_the_same_batches(plan):
    pytest.importorskip("torch")
    from inkmill.data.loaders.resident_pages import ResidentPages

    same(epochs(make_loader(plan())), epochs(ResidentPages(with_sizes(plan()), "cpu")), shades=2)


def test_pictures_left_to_the_device_give_the_same_batches():
    pytest.importorskip("torch")
    from inkmill.training.batches import augmented_images

    loader = make_loader(training(), augment_on="gpu")
    loader.memory.allow_ragged()
    found = epochs(loader)
    assert isinstance(found[0].images, PackedPages)
    found = [replace(batch, images=augmented_images(batch)) for batch in found]
    same(epochs(make_loader(training())), found, shades=2)


def test_sizes_that_are_known_are_not_measured_again():
    plan = with_sizes(training())
    reads = plan.source.reads
    with make_loader(plan):
        assert plan.source.reads == reads == len(SIZES)


def test_an_epoch_resumes_in_its_middle():
    wanted = epochs(make_loader(training()))[1:]
    with make_loader(training()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    again = make_loader(training())
    again.load_state_dict(state)
    same(wanted, epochs(again))


def test_a_bad_picture_is_left_out_and_counted():
    plan = training(PageSource(damaged=(2,)), on_bad_sample="skip", max_bad=0.5)
    loader = make_loader(plan)
    batches = epochs(loader, 1)
    assert sum(map(len, batches)) == len(SIZES) - 1
    assert loader.stats.skipped == {"torn": ["2.png"]}
    assert all(len(batch.images) == len(batch.targets) == len(batch.matrix) for batch in batches)


def test_dali_says_that_it_takes_no_whole_pictures():
    from inkmill.data.loaders.dali import has_dali

    if has_dali():
        with pytest.raises(ConfigError, match="whole pictures have their own"):
            make_loader(training(), kind="dali")


def test_damage_of_a_whole_picture_names_it():
    with pytest.raises(DataError, match=r"2\.png"):
        epochs(make_loader(training(PageSource(damaged=(2,)))), 1)


def test_the_kept_picture_is_the_one_that_is_read():
    batch = epochs(make_loader(whole()), 1)[0]
    source = PageSource()
    for image, index in zip(batch.images, batch.index.tolist(), strict=True):
        assert np.array_equal(image, RESIZE.apply(decode(source.image(index), 3))[0])
