"""From what a spec says to a source: the path is recognised, and what was seen is kept as the source's first note."""

from __future__ import annotations

from pathlib import Path

from inkmill.config.dataset import SourceSpec
from inkmill.data.formats.detect import Detected, detect_format, lmdb_folders, with_format
from inkmill.data.sources.base import Source
from inkmill.data.sources.combine import Concat
from inkmill.data.sources.folder import FolderSource
from inkmill.data.sources.lmdb import LmdbSource
from inkmill.data.sources.shard_pattern import expand
from inkmill.data.sources.shards import ShardSource
from inkmill.errors import ConfigError, DataError

_STORES = ("lmdb", "shards")


def open_source(spec: SourceSpec, *, label_pattern: str | None = None) -> Source:
    """Open one data set; its weight is left to whoever mixes it with others.

    Args:
        spec: path, label file and format; format `auto` recognises, `lmdb` and `shards` are formats too.
        label_pattern: regular expression for labels in file names (dataset.label_pattern).

    Raises:
        DataError: nothing is there, or nothing that is known; LabelFileError for a line of a label file.
        ConfigError: no such format.
        MissingExtraError: an LMDB without the package lmdb.
    """
    if any(char in spec.path for char in "{*"):
        _only_without_labels(spec)
        return ShardSource(expand(spec.path), spec.path)
    path = Path(spec.path).expanduser()
    if not path.exists():
        raise DataError(f"the data set {spec.path} is not there (looked for {path.absolute()})")
    detected = _find(spec, path, label_pattern)
    if detected.kind == "shards":
        return _shards(detected)
    if detected.kind == "lmdb":
        return _lmdb(detected.labels, multilabel=spec.format == "multilabel")
    return FolderSource(detected, label_pattern)


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
        if place.is_file():
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
    shards = [folder] if folder.is_file() else sorted(folder.glob("*.tar"))
    return ShardSource(shards, folder.resolve().name)


def _only_without_labels(spec: SourceSpec) -> None:
    if spec.gt_file or spec.format not in ("auto", "shards"):
        raise ConfigError(f"{spec.path} is a pattern of tar shards, which take neither a gt_file nor a label format")
