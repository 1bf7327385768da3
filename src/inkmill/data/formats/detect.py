"""Detects which kind of data set a path is, so that the user need not name it, and says why.

What a label file holds is decided by content, not by its name: each format that could have written its first lines is
tried, and the one whose images are found on the disk wins. Of equals the more specific format wins (see
`LabelFormat.specificity`). Label files do not say what their names are relative to either, and every tool assumes
something else: the folder in which most of the first names are files settles it, and the answer can be shown.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from inkmill.data.formats.base import FORMATS, IMAGE_SUFFIXES, LabelFormat, by_specificity, list_images
from inkmill.data.formats.lines import head_lines
from inkmill.data.formats.per_picture import SUFFIXES, PerPicture, indexed
from inkmill.errors import DataError, LabelFileError
from inkmill.files import explain

Kind = Literal["labels", "lmdb", "shards"]

_USUAL_SUFFIXES = frozenset({".tsv", ".csv", ".json", ".txt", ".ssv", ".lst"})
_NOT_LABELS = frozenset({"characters.txt", "manifest.json", "rejects.tsv", "requirements.txt", "status.json"})
_NOT_LABELS_BEGIN = re.compile(
    r"\.|readme|licen[sc]e|(characters?|vocab(ulary)?|charset|dict(ionary)?)([-_.]|$)", re.IGNORECASE
)
_PACKED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_IMAGE_FOLDERS = ("images", "imgs", "img", "image", "IMG")
_HEAD = 64  # lines of a label file that are tried, and images that are searched for
_MANY = 16  # label files of one folder that are tried


@dataclass(frozen=True, slots=True)
class Detected:
    """The kind of data set that a path was detected as.

    Attributes:
        kind: labels (a label file or a folder format), lmdb, or shards.
        format: name of the label format; empty for lmdb and shards.
        labels: the label file, or the folder of a folder format, an LMDB or shards.
        root: the folder that image names are relative to.
        why: the reason for it, in one sentence.
    """

    kind: Kind
    format: str
    labels: Path
    root: Path
    why: str


def detect_format(path: Path, images: Path | None = None, label_pattern: str | None = None) -> Detected:
    """Detect the format of a folder, a label file, an LMDB or tar shards.

    Args:
        path: a folder or file that exists.
        images: the folder of the images, when `path` is their label file.
        label_pattern: regular expression for labels in file names.

    Raises:
        DataError: nothing fits; the message says what was tried and what each lacked.
    """
    if path.is_file() and path.name.lower().endswith(_PACKED_TARS):
        raise DataError(f"{path} is a compressed tar, in which no sample can be found: unpack it with `tar -xf`")
    if path.suffix.lower() == ".tar":
        return Detected("shards", "", path, path.parent, f"{path} is a tar file")
    if path.name == "data.mdb":
        return Detected("lmdb", "", path.parent, path.parent, f"{path} is an LMDB")
    if path.is_dir():
        return _detect_folder(path, label_pattern)
    detected, tried = _detect_file(path, images)
    if detected is None:
        raise DataError(f"{path} is no label file that inkmill knows: {tried}; name the format to see its first error")
    return detected


def with_format(path: Path, name: str, images: Path | None = None, label_pattern: str | None = None) -> Detected:
    """Return the same for a path whose format the user has named; only the folder of the images is detected.

    Raises:
        ConfigError: no such format.
        DataError: it does not go with the path, or none of the images is found.
    """
    fmt = FORMATS.get(name)(label_pattern)
    if fmt.of_folder:
        if not path.is_dir():
            raise DataError(f"{path} is a file, and the format {name!r} ({fmt.title}) needs a folder of images")
        return Detected("labels", name, path, path, f"the format {name} was asked for")
    if path.is_dir():
        path = _only_label_file(path, name)
    root = _root_of(path, fmt, images)
    if root.found == 0:
        tried = ", ".join(map(str, root.tried))
        raise DataError(f"{path}: none of the first {root.tested} images is in {tried}: give the folder of the images")
    return Detected("labels", name, path, root.folder, f"the format {name} was asked for; {root}")


def _detect_file(path: Path, images: Path | None) -> tuple[Detected | None, str]:
    """Return what a label file is, or None and what each format lacked."""
    head = head_lines(path, _HEAD)
    if not head:
        return None, "it is empty"
    best: Detected | None = None
    best_found = 0
    tried = []
    # From the most specific format to the most general, which may accept the lines of the others by accident.
    for kind in by_specificity(of_folder=False):
        fmt = kind()
        # 1. Could the format have written the first lines?
        reason = fmt.detect(path, head)
        if reason is None:
            continue
        # 2. Read in this format, which of its images are files? That settles TAB against space, and names with spaces.
        try:
            root = _root_of(path, fmt, images)
        except LabelFileError as error:
            tried.append(f"as {fmt.name}, {error}")
            continue
        tried.append(f"as {fmt.name}, {root if root.found else _none_found(root)}")
        # 3. The most images win; of equals the first format, which is the more specific one.
        if root.found > best_found:
            best_found = root.found
            best = Detected(
                "labels", fmt.name, path, root.folder, f"{path} is read as {fmt.name} ({fmt.title}): {reason}; {root}"
            )
    if tried:
        return best, "; ".join(tried)
    names = ", ".join(fmt.name for fmt in by_specificity(of_folder=False))
    return None, f"expected one of {names}, and its first line is {head[0][:60]!r}"


def _detect_folder(folder: Path, label_pattern: str | None) -> Detected:
    # 1. Stores, which are known by the names of their files.
    if (folder / "data.mdb").is_file():
        return Detected("lmdb", "", folder, folder, f"{folder} holds data.mdb, an LMDB")
    names = _names(folder)
    if any(name.lower().endswith(".tar") for name in names):
        return Detected("shards", "", folder, folder, f"{folder} holds tar files")
    # 2. Label files in the folder itself. With several, only the user knows which one is meant.
    candidates = []
    tried = []
    for name in _label_files(folder, names):
        detected, lacked = _detect_file(folder / name, None)
        candidates += [detected] if detected else []
        tried.append(f"{name}: {lacked}")
    if len(candidates) > 1:
        both = ", ".join(detected.labels.name for detected in candidates)
        raise DataError(f"{folder} holds several label files ({both}): give the one to use instead of the folder")
    if candidates:
        return candidates[0]
    # 3. A tree of LMDBs, and at last images whose labels are in text files or names.
    if tree := next(lmdb_folders(folder), None):
        return Detected("lmdb", "", folder, folder, f"{folder} holds LMDBs, the first in {tree}")
    return _by_names(folder, label_pattern, tried)


def _by_names(folder: Path, label_pattern: str | None, tried: list[str]) -> Detected:
    """Detect a format without a label file; a label file that failed is an error first, since it was surely meant."""
    indexed.cache_clear()
    for fmt in by_specificity(of_folder=True):
        # A text or JSON file a picture looks like a label file that failed; those formats read it before they say yes.
        reason = None if tried and not issubclass(fmt, PerPicture) else fmt(label_pattern).detect(folder, [])
        if reason:
            why = f"{folder} has no label file: {reason}, so {fmt.name} it is"
            return Detected("labels", fmt.name, folder, folder, why)
    if tried:
        raise DataError(f"{folder} has no usable label file: {'; '.join(tried)}; name the format to use")
    image = next(list_images(folder), None)
    found = f"the image {image}, whose name does not match label_pattern" if image else "no image"
    if packed := next(_with_suffix(folder, {".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip"}), None):
        found += f", but {packed}: unpack it first"
    wanted = "a label file, a data.mdb, tar shards, or images with their labels in .txt files or names"
    raise DataError(f"{folder} is no data set that inkmill knows: expected {wanted}, and found {found}")


def _root_of(path: Path, fmt: LabelFormat, images: Path | None) -> Root:
    names = [entry.image for entry in islice(fmt.read(path), _HEAD)]
    if not names:
        raise LabelFileError("there is no label in it", path)
    return find_root(path, names, images)


def _none_found(root: Root) -> str:
    return f"none of the first {root.tested} images is in {', '.join(map(str, root.tried))}"


def label_suffixes() -> frozenset[str]:
    """Return the suffixes of files that may be label files: the usual ones, and those that the formats write."""
    return _USUAL_SUFFIXES | {Path(fmt.file_name).suffix for fmt in by_specificity(of_folder=False)}


def _names(folder: Path) -> list[str]:
    """Return the files right in a folder that can be labels or shards; images, which may be millions, are skipped."""
    return sorted(_with_suffix(folder, label_suffixes() | {".tar"}))


def _with_suffix(folder: Path, suffixes: Collection[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as listing:
            # os.path is much faster than pathlib, and there may be millions.
            yield from (entry.name for entry in listing if os.path.splitext(entry.name)[1].lower() in suffixes)  # noqa: PTH122
    except OSError as error:
        raise DataError(f"the folder cannot be listed: {explain(error)}") from error


def _label_files(folder: Path, names: list[str]) -> list[str]:
    """Return the names that may be label files: none of inkmill's own files, and no text that belongs to one image."""
    found = [name for name in names if name.lower() not in _NOT_LABELS and not _NOT_LABELS_BEGIN.match(name)]
    single = {Path(name).stem for name in found if Path(name).suffix.lower() in SUFFIXES}
    if single:
        images = (os.path.splitext(name)[0] for name in _with_suffix(folder, IMAGE_SUFFIXES))  # noqa: PTH122
        # The prefixes are those of ICDAR and Total-Text.
        single = {stem for image in images for stem in (image, f"gt_{image}", f"poly_gt_{image}") if stem in single}
    return [n for n in found if not (Path(n).suffix.lower() in SUFFIXES and Path(n).stem in single)][:_MANY]


def _only_label_file(folder: Path, name: str) -> Path:
    names = _label_files(folder, _names(folder))
    own = FORMATS.get(name).file_name
    if own in names:
        return folder / own
    if len(names) != 1:
        found = f"several ({', '.join(names)})" if names else "none"
        raise DataError(f"{folder}: expected one label file for the format {name!r} and found {found}: name it")
    return folder / names[0]


def lmdb_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders at or under `folder` that hold a data.mdb, sorted; links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        if "data.mdb" in files:
            yield Path(place)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that a label file's names may be relative to.

    Attributes:
        folder: the folder.
        found: how many of the tested names are files there.
        tested: how many names were tested.
        tried: all folders that were searched, in order.
    """

    folder: Path
    found: int
    tested: int
    tried: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.found} of the first {self.tested} images found in {self.folder}"


def find_root(label_file: Path, names: Sequence[str], images: Path | None = None) -> Root:
    """Return the folder in which most of `names` are files; of equals the first.

    Args:
        label_file: the label file; its folder, the folder's `images/` and the folder above are tried.
        names: some image names as the label file writes them.
        images: the folder of images where the user named one; then nothing but it and its `images/` is tried.
    """
    # The order counts where several folders hold equally many, for instance with names that are absolute paths.
    base = images if images is not None else label_file.parent
    places = [base, *(base / name for name in _IMAGE_FOLDERS)]
    if images is None:
        places += [base.parent, *(base.parent / name for name in _IMAGE_FOLDERS), Path()]
    tried = tuple(place for place in places if place.is_dir()) or (base,)
    roots = [Root(place, sum(_is_file(place / name) for name in names), len(names), tried) for place in tried]
    return max(roots, key=lambda root: root.found)


def _is_file(path: Path) -> bool:
    """Like `Path.is_file`, but False for what is too long to be a name, such as a whole line in a wrong format."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise
