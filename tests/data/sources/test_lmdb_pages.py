"""Damaged LMDBs end in a sentence: the library, which trusts its file, would end the process."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inkmill.data.sources.lmdb import LmdbWriter
from inkmill.data.sources.lmdb_pages import why_damaged

READ = """
import sys
from pathlib import Path
from inkmill.data.sources.lmdb import LmdbSource
from inkmill.errors import DataError
import shutil
folder, count = Path(sys.argv[1]), int(sys.argv[2])
good = (folder / "data.mdb").read_bytes()
import numpy as np
ends = {"read": 0, "refused": 0}
for seed in range(count):
    random = np.random.default_rng(seed)
    changed = bytearray(good)
    for at in random.integers(0, 16 * 4096, 40):
        changed[at] ^= 1 << int(random.integers(8))
    place = folder / str(seed)
    place.mkdir()
    (place / "data.mdb").write_bytes(changed)
    try:
        source = LmdbSource(place)
        for index in range(min(len(source), 50)):
            try:
                source.get(index)
            except DataError:
                pass
        ends["read"] += 1
    except DataError:
        ends["refused"] += 1
    shutil.rmtree(place)
print(ends)
"""


@pytest.fixture
def lmdb(tmp_path: Path) -> Path:
    """Two hundred samples, some with pages of their own, under more than one page of keys."""
    random = np.random.default_rng(0)
    with LmdbWriter(tmp_path) as writer:
        for number in range(200):
            writer.add(random.bytes(300 if number % 3 else 5000), f"label {number}")
        writer.finish()
    return tmp_path


def test_a_whole_lmdb_holds_together(lmdb: Path) -> None:
    assert why_damaged(lmdb / "data.mdb") == ""


def test_a_root_that_leads_outside_is_named(lmdb: Path) -> None:
    data = bytearray((lmdb / "data.mdb").read_bytes())
    for page in (0, 4096):
        struct.pack_into("<Q", data, page + 16 + 24 + 48 + 40, 10**9)
    (lmdb / "data.mdb").write_bytes(data)
    assert "leads to page 1000000000" in why_damaged(lmdb / "data.mdb")


def test_flipped_bits_end_in_a_sentence_and_not_in_the_end_of_the_process(lmdb: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", READ, str(lmdb), "150"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "'refused'" in ended.stdout
