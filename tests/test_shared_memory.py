"""Shared memory, and saying that there is too little."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from inkmill import shared_memory as shared
from inkmill.errors import OutputError


def test_bytes_are_zero_and_writable() -> None:
    view = np.frombuffer(shared.allocate(1000).buffer, np.uint8)
    assert view.shape == (1000,)
    assert not view.any()
    view[:] = 7
    assert len(shared.allocate(0).buffer) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/shm")
def test_memory_leaves_no_name_behind() -> None:
    before = set(Path("/dev/shm").glob("pym-*"))
    memory = shared.allocate(1 << 20)
    assert set(Path("/dev/shm").glob("pym-*")) <= before
    assert len(memory.buffer) == 1 << 20


@pytest.mark.skipif(shared.bytes_left() is None, reason="no /dev/shm")
def test_a_shortage_is_a_sentence() -> None:
    assert shared.shortage(1) is None
    sentence = shared.shortage(2**60)
    assert sentence is not None
    assert "loading needs 1,099,511,627,776" in sentence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/shm")
def test_memory_that_is_not_there_is_refused_before_any_of_it_is_taken() -> None:
    before = shared.bytes_left()
    with pytest.raises(OutputError, match=r"needed at once, and .* are free: take a smaller batch_size, fewer workers"):
        shared.allocate(2**42)
    with pytest.raises(OutputError, match=r"MiB of shared memory .*: take a smaller batch_size, fewer workers"):
        shared.allocate(2**62)
    assert shared.bytes_left() == before
