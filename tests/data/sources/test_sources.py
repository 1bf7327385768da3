"""Folders, LMDBs and shards as arrays: what they hold, what they say about it, and that they survive a pickle."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest

from inkmill.config.dataset import SourceSpec
from inkmill.data.jobs.convert import convert
from inkmill.data.sources import Concat, Source, open_source
from inkmill.data.types import Labels, Text
from inkmill.errors import ConfigError, DataError, LabelFileError


def source_of(path: Path | str, **more: object) -> Source:
    return open_source(SourceSpec(path=str(path), **more))


def write_lmdb(folder: Path, pairs: dict[str, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for key, value in pairs.items():
            transaction.put(key.encode(), value)
    return folder


def vietocr(numbers: range, said: int) -> dict[str, bytes]:
    pairs = {"num-samples": b"%d" % said}
    for number in numbers:
        parts = {"image": b"i%d" % number, "label": b"l%d" % number, "path": b"p", "dim": b"d"}
        pairs |= {f"{part}-{number:09d}": value for part, value in parts.items()}
    return pairs


def clova(count: int, said: int) -> dict[str, bytes]:
    pairs = {"num-samples": b"%d" % said}
    for number in range(1, count + 1):
        pairs |= {f"image-{number:09d}": b"i%d" % number, f"label-{number:09d}": b"l%d" % number}
    return pairs


@pytest.fixture
def folder(tmp_path: Path, make_images) -> Path:
    make_images(tmp_path / "set", ["images/a.png", "images/b.jpg", "images/c.png"])
    (tmp_path / "set" / "labels.tsv").write_text("images/a.png\tone\nimages/b.jpg\t\nimages/c.png\thai ba\n")
    return tmp_path / "set"


def test_real_captchas_open_as_they_are(captchas: Path) -> None:
    source = source_of(captchas)
    assert len(source) == 5002
    assert isinstance(source, Source)
    sample = source.get(3)
    assert (sample.key, sample.target) == ("images/0009.1.png", Text("0009"))
    assert sample.image == (captchas / sample.key).read_bytes()
    assert source.name == "captcha_digits4/labels.tsv"


def test_a_folder_a_label_file_and_taos_pair_are_the_same_data(folder: Path) -> None:
    (folder / "gt_list.txt").write_text("a.png one\nb.jpg\nc.png hai ba\n")
    pair = source_of(folder / "images", gt_file=str(folder / "gt_list.txt"))
    near = source_of(folder, gt_file="labels.tsv")
    alone = source_of(folder / "labels.tsv")
    assert [s.target(2) for s in (pair, near, alone)] == [Text("hai ba")] * 3
    assert pair.get(0).image == alone.get(0).image


def test_a_missing_image_is_named_when_it_is_asked_for(folder: Path) -> None:
    source = source_of(folder)
    (folder / "images" / "b.jpg").unlink()
    assert source.target(1) == Text("")
    with pytest.raises(DataError, match=r"^images/b\.jpg: the image cannot be read \(.*no such file"):
        source.get(1)


def test_the_second_mention_of_an_image_has_a_different_key(folder: Path) -> None:
    (folder / "labels.tsv").write_text("images/a.png\tx\nimages/c.png\ty\nimages/a.png\tz\n")
    source = source_of(folder)
    assert [source.key(i) for i in range(3)] == ["images/a.png", "images/c.png", "images/a.png#2"]
    assert source.get(2).image == source.get(0).image
    assert "1 entries name an image that an earlier one names" in source.notes


def test_the_fingerprint_changes_with_names_labels_sizes_and_times(folder: Path) -> None:
    first = source_of(folder).fingerprint
    assert source_of(folder).fingerprint == first
    image = folder / "images" / "a.png"
    image.write_bytes(image.read_bytes() + b"x")
    second = source_of(folder).fingerprint
    (folder / "labels.tsv").write_text("images/a.png\tone\nimages/b.jpg\t.\nimages/c.png\thai ba\n")
    image.rename(folder / "images" / "gone.png")
    assert len({first, second, source_of(folder).fingerprint}) == 3


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_out_of_range_is_an_index_error(index: int, folder: Path) -> None:
    with pytest.raises(IndexError, match="3 samples"):
        source_of(folder).get(index)


def test_multilabel_lists_give_labels_from_folders_lmdbs_and_shards(folder: Path, tmp_path: Path) -> None:
    (folder / "labels.tsv").unlink()
    (folder / "labels.ssv").write_text("images/a.png cat outdoors\nimages/b.jpg\n")
    source = source_of(folder)
    convert(source, tmp_path / "lmdb", "lmdb")
    convert(source, tmp_path / "shards", "shards")
    stored = source_of(tmp_path / "lmdb", format="multilabel")
    assert [s.target(i) for s in (source, stored) for i in range(2)] == [Labels(("cat", "outdoors")), Labels(())] * 2
    shards = source_of(tmp_path / "shards")
    assert {shards.target(i) for i in range(2)} == {Labels(("cat", "outdoors")), Labels(())}


def test_an_lmdb_counted_from_one_gives_its_samples(tmp_path: Path) -> None:
    source = source_of(write_lmdb(tmp_path / "l", clova(3, 3)))
    assert [(s.key, s.image, s.target) for s in map(source.get, range(3))] == [
        (f"image-{n:09d}", b"i%d" % n, Text(f"l{n}")) for n in (1, 2, 3)
    ]
    assert source.described([2, 0]) == (["image-000000003", "image-000000001"], [Text("l3"), Text("l1")])


def test_stale_keys_beyond_num_samples_are_ignored_with_a_note(tmp_path: Path) -> None:
    source = source_of(write_lmdb(tmp_path / "l", clova(5, 3)))
    assert len(source) == 3
    assert any("4 keys beyond num-samples are left over" in note for note in source.notes)


def test_vietocr_counts_from_zero_and_its_last_sample_is_not_lost(tmp_path: Path) -> None:
    source = source_of(write_lmdb(tmp_path / "l", vietocr(range(4), said=3)))
    assert [source.get(i).target for i in range(len(source))] == [Text(f"l{n}") for n in range(4)]
    assert source.key(0) == "image-000000000"
    assert any("num-samples says 3" in note for note in source.notes)


def test_an_lmdb_counted_from_zero_without_vietocrs_keys_has_num_samples(tmp_path: Path) -> None:
    pairs = {key: value for key, value in vietocr(range(4), said=3).items() if not key.startswith(("path", "dim"))}
    assert len(source_of(write_lmdb(tmp_path / "l", pairs))) == 3


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"x": b"1"}, "without the key num-samples"),
        (clova(2, 3), "image-000000003 is missing"),
        (clova(0, 0), "without a sample"),
        ({"num-samples": b"-1"}, "num-samples is '-1'"),
        ({"num-samples": b"9" * 5000}, "num-samples is '9999"),
    ],
)
def test_an_lmdb_that_cannot_be_right_says_why(pairs: dict[str, bytes], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        source_of(write_lmdb(tmp_path / "l", pairs))


def test_a_hole_in_an_lmdb_is_named_when_it_is_read(tmp_path: Path) -> None:
    pairs = clova(3, 3)
    del pairs["image-000000002"]
    with pytest.raises(DataError, match="image-000000002 is missing"):
        source_of(write_lmdb(tmp_path / "l", pairs)).get(1)


def test_many_samples_of_an_lmdb_are_read_around_a_hole(tmp_path: Path) -> None:
    pairs = clova(4, 4)
    del pairs["image-000000002"], pairs["label-000000003"]
    source = source_of(write_lmdb(tmp_path / "l", pairs))
    with source.reading() as get:
        assert get(0) == source.get(0)
        with pytest.raises(DataError, match="image-000000002 is missing"):
            get(1)
        with pytest.raises(DataError, match="label-000000003 is missing"):
            get(2)
        with pytest.raises(IndexError):
            get(4)
        assert get(3) == source.get(3)


def test_an_lmdb_that_grew_while_it_was_open_is_one_sentence(tmp_path: Path) -> None:
    source = source_of(write_lmdb(tmp_path / "l", clova(3, 3)))
    grow = "import lmdb, sys\nwith lmdb.open(sys.argv[1], map_size=1 << 26) as env, env.begin(write=True) as t:\n"
    grow += "    t.put(b'x', bytes(1 << 25))"
    subprocess.run([sys.executable, "-c", grow, str(tmp_path / "l")], check=True)
    with pytest.raises(DataError, match="is damaged"), source.reading():
        pass
    with pytest.raises(DataError, match="is damaged"):
        source.get(0)


def test_a_missing_label_is_named_among_many(tmp_path: Path) -> None:
    pairs = clova(3, 3)
    del pairs["label-000000002"]
    with pytest.raises(DataError, match="label-000000002 is missing"):
        source_of(write_lmdb(tmp_path / "l", pairs)).described([0, 1])


def test_a_file_that_is_no_lmdb_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"nonsense" * 1000)
    with pytest.raises(DataError, match="cannot be read as an LMDB"):
        source_of(tmp_path)


@pytest.mark.parametrize("share", [0.99, 0.5])
def test_an_lmdb_that_is_cut_short_is_an_error_and_no_crash(share: float, tmp_path: Path) -> None:
    file = write_lmdb(tmp_path / "l", clova(500, 500)) / "data.mdb"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(DataError, match=r"data\.mdb is cut short: copy it again"):
        source_of(tmp_path / "l")


def test_a_damaged_page_of_an_lmdb_is_one_sentence(tmp_path: Path) -> None:
    file = write_lmdb(tmp_path / "l", clova(500, 500)) / "data.mdb"
    data = bytearray(file.read_bytes())
    data[8192:] = b"\0" * (len(data) - 8192)
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"is damaged|cannot be read as an LMDB"):
        source_of(tmp_path / "l")


def test_an_lmdb_that_counts_more_samples_than_keys_is_refused(tmp_path: Path) -> None:
    bomb = {"num-samples": b"999999999", "image-999999999": b"i"}
    with pytest.raises(DataError, match="num-samples is 999,999,999, and there are 2 keys"):
        source_of(write_lmdb(tmp_path / "l", bomb))


def test_an_lmdb_can_be_opened_twice_and_after_it_was_replaced(tmp_path: Path) -> None:
    one = source_of(write_lmdb(tmp_path / "l", clova(3, 3)))
    two = source_of(tmp_path / "l")
    (tmp_path / "l").rename(tmp_path / "old")
    new = source_of(write_lmdb(tmp_path / "l", clova(2, 2)))
    assert [len(source) for source in (one, two, new)] == [3, 3, 2]
    assert one.get(2).image == two.get(2).image == b"i3"


def test_a_tree_of_lmdbs_is_one_set(tmp_path: Path) -> None:
    for name, count in (("MJ/train", 2), ("ST", 3)):
        (tmp_path / name).mkdir(parents=True)
        write_lmdb(tmp_path / name, clova(count, count))
    source = source_of(tmp_path)
    assert isinstance(source, Concat)
    assert [source.key(i) for i in (0, 2)] == ["0/train/image-000000001", "1/ST/image-000000001"]
    assert len({source.key(i) for i in range(len(source))}) == 5


def read_all(source: Source) -> list[tuple[str, bytes, object]]:
    return [(sample.key, sample.image, sample.target) for sample in map(source.get, range(len(source)))]


@pytest.mark.parametrize("kind", ["tsv", "lmdb", "shards"])
def test_a_source_in_use_works_in_a_spawned_process_and_in_threads(kind: str, folder: Path, tmp_path: Path) -> None:
    convert(source_of(folder), tmp_path / kind, kind, shard_size=2)
    source = source_of(tmp_path / kind)
    here = read_all(source)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(pickle.dumps, source).result()
        assert [sample.image for sample in pool.map(source.get, range(3))] == [image for _, image, _ in here]
    with ThreadPoolExecutor(4) as threads:
        assert all(all_read == here for all_read in threads.map(read_all, [source] * 8))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12, of any fork
@pytest.mark.parametrize("kind", ["tsv", "lmdb", "shards"])
def test_a_source_in_use_works_in_a_forked_process(kind: str, folder: Path, tmp_path: Path) -> None:
    convert(source_of(folder), tmp_path / kind, kind, shard_size=2)
    source = source_of(tmp_path / kind)
    here = read_all(source)
    context = multiprocessing.get_context("fork")  # torch's DataLoader does so on Linux
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(read_all(source)))
    child.start()
    theirs.close()
    assert ours.recv() == here
    child.join()
    assert read_all(source) == here


def make_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            (path.parent / "member").write_bytes(data)
            os.utime(path.parent / "member", (1.5, 1.5))  # parts of a second go into a header of their own
            tar.add(path.parent / "member", name)
    return path


def test_foreign_shards_are_read_without_an_index(tmp_path: Path) -> None:
    long = "x" * 120
    members = {
        "a/1.png": b"one", "a/1.txt": "một".encode(), "2.JPG": b"two", "2.json": b'{"text": "hai"}',
        "3.jpeg": b"three", "3.cls": b"7\n", f"{long}/4.png": b"four", f"{long}/4.txt": b"bon",
        "5.png": b"", "6.txt": b"no image", "__meta__": b"x",
    }  # fmt: skip
    source = source_of(make_tar(tmp_path / "train-0.tar", members))
    assert [s.image for s in map(source.get, range(4))] == [b"one", b"two", b"three", b"four"]
    assert [source.target(i) for i in range(4)] == [Text("một"), Text("hai"), Labels(("7",)), Text("bon")]
    assert source.key(0) == "train-0/a/1"
    notes = " ".join(source.notes)
    assert "1 sample without a label left out" in notes
    assert "1 sample without an image left out" in notes
    assert "no index" in notes


@pytest.mark.parametrize("order", [("png", "txt"), ("txt", "png"), ("png", "more", "txt"), ("txt", "more", "png")])
@pytest.mark.parametrize("size", [0, 511, 513, 5000])
def test_a_label_is_read_wherever_it_lies(order: tuple[str, ...], size: int, tmp_path: Path) -> None:
    contents = {"png": b"p" * size, "txt": "một".encode(), "more": b"m" * 9000}
    members = {f"{number}.{kind}": contents[kind] for number in range(2) for kind in order}
    source = source_of(make_tar(tmp_path / "s.tar", members))
    for number in range(2):
        sample = source.get(number)
        assert (sample.key, sample.image, sample.target) == (f"s/{number}", contents["png"], Text("một"))
        assert (sample.image, sample.target) == (source.image(number), source.target(number))


def test_shards_are_named_by_brace_pattern_and_folder(folder: Path, tmp_path: Path) -> None:
    convert(source_of(folder), tmp_path / "s", "shards", shard_size=1)
    by_pattern = source_of(f"{tmp_path}/s/shard-{{000000..000002}}.tar")
    some = source_of(f"{tmp_path}/s/shard-{{000000,000002}}.tar")
    stars = source_of(f"{tmp_path}/s/*.tar")
    assert read_all(by_pattern) == read_all(source_of(tmp_path / "s")) == read_all(stars)
    assert len(some) == 2


def test_samples_of_shards_with_one_name_have_different_keys(folder: Path, tmp_path: Path) -> None:
    for place in ("train", "extra"):
        convert(source_of(folder), tmp_path / place, "shards")
    source = source_of(f"{tmp_path}/{{train,extra}}/shard-000000.tar")
    assert {source.key(index).partition("/")[0] for index in range(len(source))} == {"train", "extra"}
    assert len({source.key(index) for index in range(len(source))}) == len(source) == 6
    convert(source, tmp_path / "csv", "csv")
    assert len(source_of(tmp_path / "csv")) == 6


def test_a_pattern_that_cannot_be_searched_for_is_one_sentence(tmp_path: Path) -> None:
    try:
        list(tmp_path.glob("**x.tar"))
    except ValueError:
        said = "cannot be searched for"
    else:  # later Pythons take it
        said = "no file fits it"
    with pytest.raises(DataError, match=said):
        source_of(f"{tmp_path}/**x.tar")


@pytest.mark.parametrize("member", ["1.txt", "././@PaxHeader"])
def test_a_tar_whose_members_go_backwards_ends(member: str, tmp_path: Path) -> None:
    data = bytearray(make_tar(tmp_path / "s.tar", {"1.png": b"one", "1.txt": b"x"}).read_bytes())
    at = data.rindex(member.encode() + b"\0")
    data[at + 124 : at + 136] = b"\xff" * 4 + (-512).to_bytes(8, "big", signed=True)
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    (tmp_path / "s.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"1\.txt has -512 bytes|is cut short or damaged"):
        source_of(tmp_path / "s.tar")


def test_missing_shards_of_a_pattern_are_counted_and_the_first_is_named(folder: Path, tmp_path: Path) -> None:
    convert(source_of(folder), tmp_path / "s", "shards", shard_size=1)
    with pytest.raises(DataError, match=r"2 of 5 shards are missing, first .*shard-000003\.tar"):
        source_of(f"{tmp_path}/s/shard-{{000000..000004}}.tar")
    with pytest.raises(DataError, match="at most"):
        source_of(f"{tmp_path}/{{0..99999}}{{0..99999}}.tar")


@pytest.mark.parametrize(
    "index",
    ["v1.2 1\npng 512 9999999 1.png txt 0 1 1.txt\n", "v1.2 9\n", "nonsense", "v1.2 abc\n", "v1.2 1\npng 0 3 z.png\n"],
)
def test_an_index_that_does_not_match_its_tar_is_ignored(index: str, tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "s.tar", {"1.png": b"one", "1.txt": b"x"})
    shard.with_suffix(".idx").write_text(index)
    source = source_of(shard)
    assert source.get(0).image == b"one"
    assert any("no index that matches" in note for note in source.notes)


def test_a_tar_that_is_cut_short_or_compressed_is_one_sentence(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "s.tar", {"1.png": b"o" * 5000, "1.txt": b"x"})
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"s\.tar is cut short"):
        source_of(shard)
    with tarfile.open(tmp_path / "z.tar", "w:gz") as tar:
        tar.add(shard, "1.png")
    with pytest.raises(DataError, match=r"compressed with gzip, .*unpack it with `gunzip`"):
        source_of(tmp_path / "z.tar")


def test_a_missing_path_and_a_wrong_format_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the data set .*nowhere is not there \(looked for /"):
        source_of(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"the label file gone\.txt is not there"):
        source_of(folder, gt_file="gone.txt")
    with pytest.raises(DataError, match="was to be read as lmdb, but"):
        source_of(folder, format="lmdb")
    with pytest.raises(ConfigError, match="did you mean 'tsv'"):
        source_of(folder, format="tvs")
    with pytest.raises(LabelFileError, match=r"labels\.tsv:1: "):
        source_of(folder, format="csv")
