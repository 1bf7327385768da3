"""From what a user names to a source: a data set by its path and format, or image files for reading.

The format is detected where the spec does not give it, and the reason is the source's first note.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats import FORMATS
from inkmill.data.formats.base import IMAGE_SUFFIXES
from inkmill.data.formats.detect import Detected, detect_format, lmdb_folders, with_format
from inkmill.data.sources.base import Source
from inkmill.data.sources.combine import Concat
from inkmill.data.sources.folder import FolderSource
from inkmill.data.sources.lmdb import LmdbSource
from inkmill.data.sources.shards import ShardSource, expand_shards
from inkmill.errors import ConfigError, DataError
from inkmill.files import explain, read_data

_STORES = ("lmdb", "shards")
_MAX_LIST_BYTES = 1 << 28  # of an @list of images


def open_source(spec: SourceSpec, *, label_pattern: str | None = None, folder_format: str = "") -> Source:
    """Open one data set; its weight is up to the caller, who mixes it with others.

    Args:
        spec: path, label file and format; the format `auto` detects it, `lmdb` and `shards` are formats too.
        label_pattern: regular expression for labels in file names (dataset.label_pattern).
        folder_format: what a folder without a label file is taken for where it can be, rather than for the format that
            detection prefers; empty for no such wish.

    Raises:
        DataError: the path does not exist, or holds nothing known; LabelFileError for a line of a label file.
        ConfigError: no such format.
        MissingExtraError: an LMDB without the package lmdb.
    """
    # 1. A pattern of many shards: no path on the disk.
    if any(char in spec.path for char in "{*"):
        _only_without_labels(spec)
        return ShardSource(expand_shards(spec.path), spec.path)
    path = Path(spec.path).expanduser()
    if not path.exists():
        raise DataError(f"the data set {spec.path} is not there (looked for {path.absolute()})")
    # 2. The format, detected or as the spec says.
    detected = _find(spec, path, label_pattern)
    if folder_format and spec.format == "auto" and detected.kind == "labels" and detected.labels.is_dir():
        preferred = FORMATS.get(folder_format)()
        if reason := preferred.detect(path, []):
            why = f"{path} has no label file: {reason}, so {folder_format} it is"
            detected = Detected("labels", folder_format, path, path, why)
    # 3. The source for it.
    if detected.kind == "shards":
        return _shards(detected)
    if detected.kind == "lmdb":
        return _lmdb(detected.labels, multilabel=spec.format == "multilabel")
    return FolderSource(detected, label_pattern, spec.inside_only)


def _find(spec: SourceSpec, path: Path, label_pattern: str | None) -> Detected:
    labels, images = (_label_file(spec.gt_file, path), path) if spec.gt_file else (path, None)
    if spec.format in ("auto", *_STORES) or (spec.format == "multilabel" and _is_lmdb(path)):
        detected = detect_format(labels, images, label_pattern)
        if spec.format in _STORES and detected.kind != spec.format:
            raise DataError(f"{path} was to be read as {spec.format}, but {detected.why}")
        return detected
    return with_format(labels, spec.format, images, label_pattern)


def _label_file(gt_file: str, images: Path) -> Path:
    """A label file is named from the working folder, as TAO does, or from the folder of the images."""
    places = [Path(gt_file).expanduser(), images / gt_file]
    for place in places:
        if place.exists() and not place.is_dir():
            return place
    raise DataError(
        f"the label file {gt_file} is not there (looked for {' and '.join(str(p.absolute()) for p in places)})"
    )


def _is_lmdb(path: Path) -> bool:
    return next(lmdb_folders(path), None) is not None


def _lmdb(folder: Path, multilabel: bool) -> Source:
    found = [LmdbSource(place, multilabel) for place in lmdb_folders(folder)]
    return found[0] if len(found) == 1 else Concat(found)


def _shards(detected: Detected) -> Source:
    folder = detected.labels
    shards = [folder] if not folder.is_dir() else sorted(folder.glob("*.tar"))
    return ShardSource(shards, folder.resolve().name)


def _only_without_labels(spec: SourceSpec) -> None:
    if spec.gt_file or spec.format not in ("auto", "shards"):
        raise ConfigError(f"{spec.path} is a pattern of tar shards, which take neither a gt_file nor a label format")


def find_images(asked: Sequence[str]) -> list[Path]:
    """Return the image files meant by files, folders, globs and @lists, in order, each once.

    Raises:
        DataError: something names no image.
    """
    found: dict[Path, None] = {}  # an ordered set
    for name in asked:
        for one in _lines(Path(name[1:])) if name.startswith("@") else [name]:
            found.update(dict.fromkeys(_images_of(one)))
    return list(found)


def _images_of(name: str) -> list[Path]:
    path = Path(name)
    # Hidden files are included here: who names a folder to be read means all of it.
    if path.is_dir():
        # Links that lead nowhere are among them: reading says of each that it cannot be read.
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and not p.is_dir())
    elif path.exists() or path.is_symlink():
        files = [path]
    else:
        files = _matches(path)
    if not files:
        raise DataError(f"{name}: no image there; expected a file, a folder of images, a glob, or @list.txt")
    return files


def _matches(pattern: Path) -> list[Path]:
    try:
        found = list(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError:  # not a pattern that pathlib knows
        return []
    return sorted(match for match in found if not match.is_dir())


def _lines(path: Path) -> list[str]:
    try:
        text = read_data(path, _MAX_LIST_BYTES, pipes=True).decode("utf-8-sig")
        lines = [line for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"the list cannot be read: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the list is not UTF-8: save it as UTF-8, one image a line") from error
    if not lines:
        raise DataError(f"{path}: the list is empty; expected one image a line")
    return lines


def fresh_name(name: str, taken: Container[str]) -> str:
    """Return `name`, with a number where it is taken: two sets may have the same file name."""
    number = 2
    fresh = name
    while fresh in taken:
        fresh, number = f"{name}-{number}", number + 1
    return fresh
