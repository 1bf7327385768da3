"""A conversion keeps every byte and label, sets bad samples aside with reasons, and is readable by others' tools."""

from __future__ import annotations

import json
import os
import tarfile
import zlib
from pathlib import Path

import lmdb
import numpy as np
import pytest
import webdataset

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import Source, Subset, open_source
from inkmill.data.types import Polygons, Text
from inkmill.errors import ConfigError, DataError, OutputError
from inkmill.tasks.recognition.charset import Charset

CLASS_FORMATS = {"multilabel", "csv_one_hot", "csv_multitask", "coco", "class_folders"}
TEXT_FORMATS = [name for name in FORMATS.names() if name not in CLASS_FORMATS and not name.endswith("_det")]


def source_of(path: Path | str, **more: object) -> Source:
    return open_source(SourceSpec(path=str(path), **more))


def contents(source: Source) -> list[tuple[bytes, object]]:
    return sorted(
        ((s.image, s.target) for s in map(source.get, range(len(source)))), key=lambda pair: (pair[0], repr(pair[1]))
    )


@pytest.fixture(scope="module")
def some(captchas: Path) -> Source:
    """Every 50th of the real captchas: 101 of them."""
    return Subset(source_of(captchas), np.arange(0, 5002, 50))


@pytest.fixture
def mixed(tmp_path: Path, make_images) -> Path:
    """Good samples, a damaged image, a missing one, an empty label; PNG and JPEG alike."""
    folder = make_images(tmp_path / "mixed", ["images/a.png", "images/b.jpg", "images/bad.png"])
    bad = folder / "images" / "bad.png"
    bad.write_bytes(bad.read_bytes()[:60])
    lines = ["images/a.png\tHà  Nội", "images/b.jpg\t", "images/bad.png\tx", "images/gone.png\ty"]
    (folder / "labels.tsv").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


@pytest.mark.parametrize("kind", ["lmdb", "shards", *TEXT_FORMATS])
def test_every_kind_keeps_every_byte_and_label(kind: str, some: Source, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = convert(
        some, tmp_path / "out", kind, progress=lambda done, total: calls.append((done, total)), shard_size=40
    )
    assert (report.samples, report.rejected, report.rejected_folder) == (101, {}, None)
    assert calls[-1] == (101, 101)
    assert contents(source_of(tmp_path / "out")) == contents(some)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("kind", ["lmdb", "shards", "tsv"])
def test_worker_processes_give_the_same_result(kind: str, some: Source, tmp_path: Path) -> None:
    convert(some, tmp_path / "alone", kind, workers=0, shard_size=30)
    convert(some, tmp_path / "together", kind, workers=2, shard_size=30)
    files = {path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*") if path.is_file()}
    for name in files - {Path("lock.mdb")}:
        assert (tmp_path / "together" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


def test_a_plain_lmdb_read_with_taos_keys_works(some: Source, tmp_path: Path) -> None:
    convert(some, tmp_path / "out", "lmdb")
    with lmdb.open(str(tmp_path / "out"), readonly=True, lock=False) as env, env.begin() as transaction:
        assert transaction.get(b"num-samples") == b"101"
        assert transaction.get(b"image-000000001") == some.get(0).image
        assert transaction.get(b"label-000000101").decode() == some.get(100).target.value
        assert transaction.stat()["entries"] == 2 * 101 + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_a_stock_webdataset_reads_the_shards(mixed: Path, tmp_path: Path) -> None:
    convert(source_of(mixed), tmp_path / "out", "shards")
    samples = list(webdataset.WebDataset(str(tmp_path / "out" / "shard-000000.tar"), shardshuffle=False).decode("rgb8"))
    assert {sample["txt"] for sample in samples} == {"Hà  Nội", ""}
    assert {("png" in sample, "jpg" in sample) for sample in samples} == {(True, False), (False, True)}


def test_the_shard_index_is_the_one_that_dalis_wds2idx_describes(some: Source, tmp_path: Path) -> None:
    convert(some, tmp_path / "out", "shards", shard_size=60)
    for number, count in ((0, 60), (1, 41)):
        shard = tmp_path / "out" / f"shard-{number:06d}.tar"
        head, *lines = shard.with_suffix(".idx").read_text().splitlines()
        assert head == f"v1.2 {count}"
        with tarfile.open(shard) as tar:
            members = [f"{m.name.partition('.')[2]} {m.offset_data} {m.size} {m.name}" for m in tar]
        assert lines == [" ".join(pair) for pair in zip(members[::2], members[1::2], strict=True)]


@pytest.mark.dali
def test_dalis_webdataset_reader_reads_the_shards_by_their_index(mixed: Path, tmp_path: Path) -> None:
    dali = pytest.importorskip("nvidia.dali")
    convert(source_of(mixed), tmp_path / "out", "shards")
    shard = tmp_path / "out" / "shard-000000.tar"

    @dali.pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def pipeline():
        return tuple(
            dali.fn.readers.webdataset(
                paths=[str(shard)], index_paths=[str(shard.with_suffix(".idx"))], ext=["jpg;png", "txt"]
            )
        )

    pipe = pipeline()
    pipe.build()
    _, labels = pipe.run()
    assert {bytes(np.array(labels.at(i))).decode() for i in range(2)} == {"Hà  Nội", ""}


def test_shards_are_shuffled_by_the_seed_and_nothing_else(some: Source, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        convert(some, tmp_path / name, "shards", seed=seed)
    orders = [
        [s.target(i) for i in range(101)] for s in map(source_of, (tmp_path / "a", tmp_path / "b", tmp_path / "c"))
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != [some.target(i) for i in range(101)]


@pytest.mark.parametrize("kind", ["lmdb", "shards", "tsv"])
def test_bad_samples_are_set_aside_with_their_reasons(kind: str, mixed: Path, tmp_path: Path) -> None:
    report = convert(source_of(mixed), tmp_path / "out", kind)
    assert (report.samples, report.empty_labels) == (2, 1)
    assert report.rejected == {"damaged image": 1, "missing or not readable": 1}
    rejected = tmp_path / "out.rejected"
    rows = [line.split("\t") for line in (rejected / "rejects.tsv").read_text("utf-8").splitlines()]
    assert [row[0] for row in rows] == ["images/bad.png", "images/gone.png"]
    assert (rejected / rows[0][2]).read_bytes() == (mixed / "images" / "bad.png").read_bytes()
    assert "2 left out: 1 damaged image, 1 missing or not readable" in str(report)
    assert len(source_of(tmp_path / "out")) == 2


def test_a_label_that_the_format_cannot_hold_is_set_aside_not_mangled(tmp_path: Path, make_images) -> None:
    folder = make_images(tmp_path / "in", ["a.png", "b.png"])
    (folder / "labels.csv").write_text('image_name,label\na.png,"two\nlines"\nb.png,1.5\n')
    assert convert(source_of(folder), tmp_path / "tsv", "tsv").rejected == {"label cannot be stored": 1}
    assert "'\\n'" in (tmp_path / "tsv.rejected" / "rejects.tsv").read_text()
    assert convert(source_of(folder), tmp_path / "csv", "csv").samples == 2
    with pytest.raises(DataError, match=r"not one of 2 samples could be converted .*filename\.rejected"):
        convert(source_of(folder), tmp_path / "filename", "filename")
    assert (tmp_path / "filename.rejected" / "rejects.tsv").exists()
    assert not (tmp_path / "filename").exists()


def test_the_manifest_and_the_characters_describe_the_data(some: Source, tmp_path: Path) -> None:
    convert(some, tmp_path / "out", "lmdb")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    images = [some.get(i).image for i in range(101)]
    assert manifest["samples"] == 101
    assert manifest["total_image_bytes"] == sum(map(len, images))
    assert int(manifest["crc32"], 16) == zlib.crc32(
        b"".join(zlib.crc32(image).to_bytes(4, "little") for image in images)
    )
    assert manifest["ranges"]["label_length"] == {"min": 4, "max": 4, "mean": 4.0}
    assert sum(manifest["characters"].values()) == 404
    assert manifest["source"]["fingerprint"] == some.fingerprint
    assert Charset.from_file(tmp_path / "out" / "characters.txt").chars == tuple("0123456789")


def test_names_that_lead_outside_stay_inside(tmp_path: Path, make_images) -> None:
    make_images(tmp_path / "elsewhere", ["a.png", "b.png"])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "labels.tsv").write_text(f"../elsewhere/a.png\tx\n{tmp_path}/elsewhere/b.png\ty\n")
    source = source_of(tmp_path / "in")
    convert(source, tmp_path / "deep" / "out", "tsv")
    assert contents(source_of(tmp_path / "deep" / "out")) == contents(source)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_images_without_a_suffix_get_the_one_of_their_contents(mixed: Path, tmp_path: Path) -> None:
    convert(source_of(mixed), tmp_path / "lmdb", "lmdb")
    convert(source_of(tmp_path / "lmdb"), tmp_path / "tsv", "tsv")
    names = sorted(path.name for path in (tmp_path / "tsv" / "images").iterdir())
    assert names == ["image-000000001.png", "image-000000002.jpg"]


@pytest.mark.parametrize("kind", ["lmdb", "shards", "tsv"])
def test_a_destination_that_is_not_empty_is_replaced_only_with_overwrite(
    kind: str, some: Source, tmp_path: Path
) -> None:
    convert(some, tmp_path / "out", kind, shard_size=30)
    with pytest.raises(OutputError, match=r"is not empty: .* --overwrite"):
        convert(some, tmp_path / "out", kind)
    fewer = Subset(some, np.arange(10))
    convert(fewer, tmp_path / "out", kind, overwrite=True)
    again = source_of(tmp_path / "out")
    assert contents(again) == contents(fewer)
    assert not any("left over" in note for note in again.notes)
    assert len(list((tmp_path / "out").glob("*.tar"))) == (kind == "shards")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_set_can_be_converted_into_its_own_place(mixed: Path) -> None:
    convert(source_of(mixed), mixed.with_name("set"), "tsv")
    first = contents(source_of(mixed.with_name("set")))
    convert(source_of(mixed.with_name("set")), mixed.with_name("set"), "lmdb", overwrite=True)
    assert contents(source_of(mixed.with_name("set"))) == first


def test_overwrite_does_not_delete_what_convert_did_not_make(some: Source, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(OutputError, match="does not hold a converted set"):
        convert(some, tmp_path / "thesis", overwrite=True)
    (tmp_path / "out.rejected").mkdir()
    with pytest.raises(OutputError, match="in the way"):
        convert(some, tmp_path / "out")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "x"


@pytest.mark.parametrize("kind", ["csv", "lmdb", "shards", "txt"])
def test_overwrite_refuses_a_set_that_was_changed_since(kind: str, some: Source, tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = Subset(some, np.arange(5))
    convert(few, out, kind)
    (out / "models").mkdir()
    (out / "models" / "best.safetensors").write_bytes(b"weights")
    with pytest.raises(OutputError, match=r"models/best.safetensors is newer than its conversion: remove it yourself"):
        convert(some, out, kind, overwrite=True)
    os.utime(out / "models" / "best.safetensors", (0, 0))  # moved here, not written here
    with pytest.raises(OutputError, match=r"it holds [\d,]+ files, and its conversion left \d+"):
        convert(some, out, kind, overwrite=True)
    assert (out / "models" / "best.safetensors").read_bytes() == b"weights"
    (out / "models" / "best.safetensors").unlink()
    convert(some, out, kind, overwrite=True)
    assert len(source_of(out)) == len(some)


def test_an_lmdb_of_another_tool_is_overwritten_only_with_nothing_beside_it(some: Source, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert(Subset(some, np.arange(5)), out)
    for name in ("manifest.json", "characters.txt"):
        (out / name).unlink()
    (out / "my_corrections.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"my_corrections\.txt is no part of an LMDB"):
        convert(some, out, overwrite=True)
    (out / "my_corrections.txt").unlink()
    convert(some, out, overwrite=True)
    assert len(source_of(out)) == len(some)


@pytest.mark.parametrize("kind", ["txt", "tsv"])
@pytest.mark.parametrize("names", [("x.png", "x.jpg"), ("x.png", "./x.png"), ("a/x.png", "a//x.png")])
def test_two_pictures_with_one_name_keep_their_own_labels(
    kind: str, names: tuple[str, str], tmp_path: Path, make_images
) -> None:
    folder = make_images(tmp_path / "set", list(names))
    (folder / "labels.tsv").write_text("".join(f"{name}\t{number}\n" for number, name in enumerate(names)), "utf-8")
    whole = contents(source_of(folder))
    assert len(whole) == 2
    convert(source_of(folder), tmp_path / "out", kind)
    assert contents(source_of(tmp_path / "out")) == whole


@pytest.mark.slow
def test_who_keeps_a_name_does_not_depend_on_workers(tmp_path: Path, make_images) -> None:
    names = [f"{number:03d}{suffix}" for suffix in (".png", ".jpg") for number in range(300)]
    folder = make_images(tmp_path / "set", names)
    (folder / "labels.tsv").write_text("".join(f"{name}\t{name}\n" for name in names), "utf-8")
    found = []
    for workers in (0, 2):
        convert(source_of(folder), tmp_path / f"out{workers}", "txt", workers=workers)
        out = tmp_path / f"out{workers}"
        found.append(sorted(str(path.relative_to(out)) for path in out.rglob("*")))
    assert found[0] == found[1]
    assert "000.png" in found[0]
    assert "twice/000000300.jpg" in found[0]


def test_a_set_of_an_earlier_version_is_not_overwritten_and_says_why(some: Source, tmp_path: Path) -> None:
    convert(Subset(some, np.arange(5)), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    del manifest["files"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(OutputError, match="made by an earlier inkmill, which did not count its files"):
        convert(some, tmp_path / "out", overwrite=True)


def test_a_place_that_cannot_be_written_is_one_sentence(some: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="it is a file"):
        convert(some, tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write"):
        convert(some, tmp_path / "file" / "out")


def test_settings_that_mean_nothing_are_refused(some: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'lmdb'"):
        convert(some, tmp_path / "out", "lmbd")
    with pytest.raises(ConfigError, match="shard_size must be at least 1"):
        convert(some, tmp_path / "out", "shards", shard_size=0)


class Regions(Source):
    """A source of polygons, which no converter holds yet."""

    name, fingerprint = "regions", "0"

    def __init__(self, image: bytes) -> None:
        self._image = image

    def __len__(self) -> int:
        return 1

    def image(self, index: int) -> bytes:
        return self._image

    def key(self, index: int) -> str:
        return "a.png"

    def target(self, index: int) -> Polygons:
        return Polygons((np.zeros((4, 2), np.float32),), (False,))


@pytest.mark.parametrize("kind", ["lmdb", "shards", "tsv", "multilabel"])
def test_targets_that_a_kind_cannot_hold_are_refused_in_words(kind: str, some: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not one of 1 samples could be converted"):
        convert(Regions(some.get(0).image), tmp_path / "out", kind)


def test_a_source_written_by_a_user_is_converted(some: Source, tmp_path: Path) -> None:
    class Own(Regions):
        def target(self, index: int) -> Text:  # type: ignore[override]
            return Text("own")

    convert(Own(some.get(0).image), tmp_path / "out")
    assert source_of(tmp_path / "out").target(0) == Text("own")
