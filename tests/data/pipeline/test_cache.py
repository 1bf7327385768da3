"""The cache: what goes in comes out, or is noticed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.pipeline.cache import CacheConfig, ImageCache, open_cache
from inkmill.data.pipeline.cache_pages import Layout
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source
from inkmill.data.types import Target
from inkmill.errors import OutputError

FIT = Resize(8, 16, 1)


@dataclass(frozen=True)
class Named(Source):
    """A source of which only its identity counts here."""

    length: int = 20
    fingerprint: str = "f00d"
    name: str = "a set/with a slash"

    def __len__(self) -> int:
        return self.length

    def image(self, index: int) -> bytes:
        raise NotImplementedError

    def key(self, index: int) -> str:
        raise NotImplementedError

    def target(self, index: int) -> Target:
        raise NotImplementedError


INDEX = np.array([3, 17, 4])
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 16, 1), dtype=np.uint8)
WIDTHS = np.array([16, 9, 1], np.int32)


def opened(folder: Path, source: Named | None = None, resize: Resize = FIT, max_gib: float = 1) -> ImageCache:
    cache = open_cache(CacheConfig("disk", max_gib, folder), source or Named(), resize)
    assert cache is not None
    return cache


def recalled(cache: ImageCache, index: np.ndarray = INDEX) -> tuple[list[bool], int, np.ndarray, np.ndarray]:
    images, widths = np.zeros_like(IMAGES), np.zeros_like(WIDTHS)
    hit, damaged = cache.read(index, images, widths)
    return hit.tolist(), damaged, images, widths


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_was_kept_comes_back_also_in_a_later_run(tmp_path: Path) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    cache = opened(tmp_path)
    hit, damaged, images, widths = recalled(cache)
    assert (hit, damaged, cache.notes, cache.filled()) == ([True] * 3, 0, [], 3)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(widths, WIDTHS)


def test_only_what_was_kept_comes_back(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.write(INDEX[:1], IMAGES[:1], WIDTHS[:1])
    hit, _, images, widths = recalled(cache)
    assert hit == [True, False, False]
    assert np.array_equal(images[0], IMAGES[0])
    assert not images[1:].any()
    assert widths.tolist() == [16, 0, 0]


@pytest.mark.parametrize("change", [{"fingerprint": "beef"}, {"length": 21}])
def test_other_data_have_another_store(tmp_path: Path, change: dict[str, object]) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    assert opened(tmp_path, replace(Named(), **change)).filled() == 0
    assert opened(tmp_path).filled() == 3


def test_another_fit_has_another_store(tmp_path: Path) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    assert opened(tmp_path, resize=Resize(8, 16, 1, "pad")).filled() == 0


def test_every_damaged_byte_of_a_picture_is_noticed(tmp_path: Path) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    start = whole.index(IMAGES[1].tobytes())
    for offset in (start, start + 77, start + 127):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        cache = opened(tmp_path)
        hit, damaged, _, _ = recalled(cache)
        assert (hit, damaged) == ([True, False, True], 1)
        cache.write(INDEX, IMAGES, WIDTHS)
        assert recalled(cache)[:2] == ([True] * 3, 0)


def test_a_damaged_width_is_noticed(tmp_path: Path) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[4096 + 4 * 20 + 4 * 17] ^= 1  # after the header and 20 checksums, the 18th width
    path.write_bytes(data)
    assert recalled(opened(tmp_path))[:2] == ([True, False, True], 1)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], "it has .* bytes where"),
        (lambda data: data + b"x", "it has .* bytes where"),
        (lambda data: b"", "it has 0 bytes where"),
        (lambda data: b"x" + data[1:], "its header is damaged"),
        (lambda data: data[:40] + b"x" + data[41:], "its header is damaged"),
    ],
)
def test_a_damaged_store_is_built_anew_and_says_so(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str
) -> None:
    opened(tmp_path).write(INDEX, IMAGES, WIDTHS)
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    cache = opened(tmp_path)
    assert cache.filled() == 0
    assert len(cache.notes) == 1
    assert re.search(f"was rebuilt: {reason}", cache.notes[0])


def test_two_runs_share_one_store(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.write(INDEX, IMAGES, WIDTHS)
    assert recalled(other)[0] == [True] * 3


def test_a_cap_keeps_the_first_samples_and_never_evicts(tmp_path: Path) -> None:
    cache = opened(tmp_path, max_gib=10 * 128 / 2**30)
    for _ in range(2):
        cache.write(INDEX, IMAGES, WIDTHS)
        assert recalled(cache)[0] == [True, False, True]
    assert cache.notes == ["keeps 10 of 20 pictures: the cap is 1.19209e-06 GiB"]
    assert only_file(tmp_path).stat().st_size < 4096 + 10 * 128 + 10 * 9 + 8


def test_no_tier_no_store(tmp_path: Path) -> None:
    assert open_cache(CacheConfig("none", folder=tmp_path), Named(), FIT) is None
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot be stored in .*file"):
        opened(tmp_path / "file" / "below")


def test_a_store_larger_than_the_disk_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"GiB free and the cached pictures need .*lower max_gib"):
        opened(tmp_path, Named(10**6), Resize(10_000, 100_000, 3), max_gib=10**9)
    assert not list(tmp_path.iterdir())


@given(st.lists(st.sampled_from([32, 64, 96]), min_size=1, max_size=40), st.integers(0, 40_000))
def test_no_two_pictures_of_free_width_overlap(widths: list[int], cap: int) -> None:
    layout = Layout(Resize(8, 96, 1, "height"), len(widths), np.array(widths), cap)
    ranges = []
    for width, place in zip(widths, layout.place.tolist(), strict=False):
        start, rows, size = layout.blocks[width]
        assert size == 8 * width
        assert place < rows
        ranges.append((start + place * size, start + (place + 1) * size))
    assert sum(stop - start for start, stop in ranges) == layout.nbytes <= cap
    assert all(before[1] == after[0] for before, after in pairwise(sorted(ranges)))


def test_the_header_is_readable_text(tmp_path: Path) -> None:
    opened(tmp_path)
    lines = only_file(tmp_path).read_bytes()[:4096].splitlines()
    assert lines[0] == b"inkmill keep 1"
    assert json.loads(lines[1])["source"] == "f00d"
