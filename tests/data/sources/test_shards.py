"""Tar shards that are not whole."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.data.conftest import encoded

from inkmill.data.sources.shards import ShardSource
from inkmill.errors import DataError


def shard_bytes(samples: int) -> bytes:
    """A tar of `samples` images, each with its label."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            for extension, data in (("png", encoded(number)), ("txt", f"label{number}".encode())):
                info = tarfile.TarInfo(f"{number:04d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def end_of_members(data: bytes) -> int:
    """The offset of the zeros that close a tar."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.getmembers()
        return tar.offset


def test_a_tar_cut_anywhere_before_its_two_closing_blocks_is_an_error(tmp_path: Path) -> None:
    data = shard_bytes(4)
    end = end_of_members(data)
    shard = tmp_path / "cut.tar"
    for cut in sorted({*range(1, end + 1024, 211), *range(512, end + 1024, 512), end + 1023}):
        shard.write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"is cut short.*copy it again"):
            ShardSource([shard], "cut")
    shard.write_bytes(data[: end + 1024])
    assert len(ShardSource([shard], "whole")) == 4


def test_a_header_that_cannot_be_read_is_an_error_and_not_the_end_of_the_tar(tmp_path: Path) -> None:
    data = bytearray(shard_bytes(4))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        third = tar.getmembers()[4].offset
    data[third + 150] ^= 0xFF  # of its checksum
    (tmp_path / "bad.tar").write_bytes(data)
    with pytest.raises(DataError, match=rf"damaged: the header at byte {third:,} cannot be read"):
        ShardSource([tmp_path / "bad.tar"], "bad")


def test_a_second_tar_after_the_end_of_the_first_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "two.tar").write_bytes(shard_bytes(2) + shard_bytes(3))
    with pytest.raises(DataError, match=r"goes on after its end .* put together with cat"):
        ShardSource([tmp_path / "two.tar"], "two")
