"""Mutations of data sets and specs for benchmarks/fuzz.py: label files of every format, tar shards, LMDBs, specs."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fuzz_mutations import ACCIDENTS, Case, Random
from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec, preset_names
from inkmill.data.formats import FORMATS
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import open_source
from inkmill.errors import InkmillError

_IMAGES = 12
_TEXTS = ("New York", "Đà Nẵng", 'a "b", c', "x", "12,50 €", "", "日本", "a\u00a0b", "'", "=1+1", "\\t", "0")
_REGION = {"transcription": "x", "points": [[1, 1], [9, 1], [9, 5], [1, 5]]}
_HOSTILE = (
    *(b"\0", b"\r", b"\n", b'"', b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[2J", b"\t" * 300, b"a" * 70_000),
    *(b"../../../etc/passwd", b"/dev/zero", b"image-000000001", b"#1", b"-1", b"NaN", b"1e999", b"9" * 5000),
    *(b"[" * 5000, b'{"a":' * 2000, b"&a *a", b"!!python/object:os.system", b"${results_dir}", b": "),
)


def make_sets(folder: Path, pictures: list[bytes]) -> dict[str, bytes]:
    """Write a small set under `folder`/images, and return a good file of each kind by its name."""
    images = folder / "images"
    images.mkdir()
    for number, data in enumerate(itertools.islice(itertools.cycle(pictures), _IMAGES)):
        (images / f"{number}.png").write_bytes(data)
    lines = "".join(f"{number}.png\t{text}\n" for number, text in enumerate(_TEXTS))
    (images / "labels.tsv").write_text(lines, "utf-8")
    source = open_source(SourceSpec(path=str(images)))
    good = {"labels.tsv": lines.encode(), "utf16.tsv": lines.encode("utf-16")}
    for name in FORMATS.names():
        place = folder / f"as-{name}"
        try:
            convert(source, place, name, workers=0)
        except InkmillError:  # formats of folders, classes and regions
            continue
        file = FORMATS.get(name).file_name
        if file:
            good[f"{name}-{file}"] = (place / file).read_bytes()
    row = json.dumps([_REGION])
    good["paddle_det-Label.txt"] = "".join(f"{number}.png\t{row}\n" for number in range(_IMAGES)).encode()
    good["classes.csv"] = b"filename,cat,dog\n" + b"".join(b"%d.png,1,0\n" % number for number in range(_IMAGES))
    convert(source, folder / "shards", "shards", workers=0)
    good["set.tar"] = next((folder / "shards").glob("*.tar")).read_bytes()
    good["set.idx"] = next((folder / "shards").glob("*.idx")).read_bytes()
    convert(source, folder / "lmdb", "lmdb", workers=0)
    good["data.mdb"] = (folder / "lmdb" / "data.mdb").read_bytes()
    for name in preset_names():
        good[f"{name}.yaml"] = _yaml(name)
    for name in ("shards", "lmdb", *(f"as-{name}" for name in FORMATS.names())):
        shutil.rmtree(folder / name, ignore_errors=True)
    (images / "labels.tsv").unlink()
    return good


def set_cases(good: dict[str, bytes], count: int, random: Random) -> Iterator[Case]:
    """Yield `count` cases, the kinds in turn: `data.mdb`, `set.tar`, `set.idx`, a label file or a spec."""
    labels = [name for name in good if name not in ("data.mdb", "set.tar", "set.idx") and not name.endswith(".yaml")]
    specs = [name for name in good if name.endswith(".yaml")]
    ways: tuple[Callable[[bytes, Random], bytes], ...] = (*ACCIDENTS, _inserted, _inserted, _numbers)
    for number in range(count):
        group = ("labels", "labels", "set.tar", "spec", "data.mdb", "labels", "spec", "set.idx")[number % 8]
        among = labels if group == "labels" else specs if group == "spec" else [group]
        name = among[int(random.integers(len(among)))]
        change = ways[int(random.integers(len(ways)))]
        data = change(good[name], random)
        if group == "set.tar" and random.integers(2):
            data = _with_checksums(data)
        yield Case(name, change.__name__, data)


def try_set(case: Case, folder: Path, good: dict[str, bytes]) -> str:
    """Open the set or spec of a case as `check` does, read a few samples, and say "read"; raises what that raises."""
    if case.kind.endswith(".yaml"):
        file = folder / "mutated.yaml"
        file.write_bytes(case.data)
        load_spec(file)
        return "read"
    images = folder / "images"
    name = case.kind if case.kind in ("data.mdb", "set.tar") else case.kind.rpartition("-")[2]
    path = images / name
    if case.kind == "set.idx":
        path = images / "set.tar"
        path.write_bytes(good["set.tar"])
        (images / "set.idx").write_bytes(case.data)
    else:
        path.write_bytes(case.data)
    try:
        source = open_source(SourceSpec(path=str(images if case.kind == "data.mdb" else path)))
        for index in range(min(len(source), 20)):
            for read in (source.key, source.target, source.image):
                with suppress(InkmillError):  # of one sample: `check` counts it
                    read(index)
        source.release()
    finally:
        for written in (path, images / "set.idx", images / "lock.mdb"):
            written.unlink(missing_ok=True)
    return "read"


def _yaml(name: str) -> bytes:
    from inkmill.config.describe import as_yaml

    return as_yaml(load_spec(name)).encode()


def _inserted(data: bytes, random: Random) -> bytes:
    """Put something hostile at a place."""
    at, what = int(random.integers(len(data) + 1)), _HOSTILE[int(random.integers(len(_HOSTILE)))]
    return data[:at] + what + data[at:]


def _numbers(data: bytes, random: Random) -> bytes:
    """Put an absurd number where a digit is."""
    places = [at for at, byte in enumerate(data[:20_000]) if 48 <= byte <= 57]
    if not places:
        return data
    at = places[int(random.integers(len(places)))]
    number = (b"-1", b"0", b"99999999999999999999", b"1e308", b"0x7fffffff", b"7" * 12)[int(random.integers(6))]
    return data[:at] + number + data[at + 1 :]


def _with_checksums(data: bytes) -> bytes:
    """Make the headers of a tar honest again, as far as they are found, so that what they say is believed."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)
