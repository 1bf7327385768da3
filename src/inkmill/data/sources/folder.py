"""Image files on a disk: with a label file, with their labels in text files or names, or without labels."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from inkmill.data.formats import FORMATS
from inkmill.data.formats.detect import Detected
from inkmill.data.formats.filename import DEFAULT_PATTERN, FileName
from inkmill.data.formats.regions import dump_regions, parse_regions
from inkmill.data.sources.base import PackedStrings, Source, fingerprint, read_image, repeats
from inkmill.data.types import Labels, Polygons, Target, Text
from inkmill.errors import DataError
from inkmill.files import explain


class FolderSource(Source):
    """A label file and its images, or a folder format.

    The labels are read once, into buffers; images are opened one at a time, so any number of them needs one handle.
    A sample's key is its image's path as the label file has it; the second mention of an image gets `#2`, and so on.

    Args:
        detected: which file, which format, and where the images are (see `formats.detect`).
        label_pattern: regular expression for labels in file names.
        inside: refuse to read an image outside the folder of the set, where a label file of strangers may lead.

    Raises:
        LabelFileError: a line that is not in the format.
        DataError: no entry at all.
    """

    small_files = True

    def __init__(self, detected: Detected, label_pattern: str | None = None, inside: bool = False) -> None:
        super().__init__(_name_of(detected), (detected.why,))
        self.root, self.format, self._inside = detected.root, detected.format, inside
        if detected.format == FileName.name:
            self.label_pattern = label_pattern or DEFAULT_PATTERN
        self._images, self._labels, self._kind, remarks = _read(detected, label_pattern)
        self.notes += remarks
        if not len(self._images):
            raise DataError(f"{detected.labels} holds no label: nothing to use")
        self._repeats = repeats(self._images)
        if self._repeats:  # allowed, for some tools write an image once a text; but often a mistake
            self.notes += (f"{len(self._repeats)} entries name an image that an earlier one names",)

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        index = self._checked(index)
        # os.path and open are several times faster than pathlib, and this runs for every sample of every epoch.
        path = os.path.join(self.root, self._images[index])  # noqa: PTH118
        if self._inside and self.outside(index):
            raise DataError(f"{self.key(index)}: the image lies outside {self.root} (inside_only)")
        try:
            return read_image(path, self.key(index))
        except (OSError, ValueError) as error:
            reason = explain(error) if isinstance(error, OSError) else str(error)
            raise DataError(f"{self.key(index)}: the image cannot be read ({reason})") from error

    def outside(self, index: int) -> bool:
        """See `Source.outside`; links are followed."""
        top = os.path.realpath(self.root)
        path = os.path.realpath(os.path.join(top, self._images[index]))  # noqa: PTH118
        return not path.startswith(os.path.join(top, ""))  # noqa: PTH118

    def key(self, index: int) -> str:
        """See `Source.key`."""
        index = self._checked(index)
        repeat = self._repeats.get(index)
        return f"{self._images[index]}#{repeat}" if repeat else self._images[index]

    def target(self, index: int) -> Target:
        """See `Source.target`; parsed again each time: objects of a million labels would not fit beside them."""
        label = self._labels[self._checked(index)]
        if self._kind is Polygons:
            return parse_regions(label)
        if self._kind is Text:
            return Text(label)
        names, unknown = json.loads(label)
        return Labels(tuple(names), tuple(unknown))

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        names = dict.fromkeys(self._images[self._checked(i)] for i in index)
        return [Path(self.root, name) for name in names]

    @cached_property
    def fingerprint(self) -> str:
        """Hash names, labels, and every image's size and time; a missing image counts as size -1."""
        # One stat a file: pixels are not read, but a file that was replaced has another time.
        stats = np.fromiter(map(self._stat, self._images), np.dtype((np.int64, 2)), len(self))
        return fingerprint("folder", self.format, self._images, self._labels, stats)

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`; labels may be corrected without changing which samples there are."""
        return fingerprint("folder", self._images)

    def _stat(self, image: str) -> tuple[int, int]:
        try:
            status = os.stat(os.path.join(self.root, image))  # noqa: PTH116, PTH118
        except (OSError, ValueError):
            return -1, -1
        return status.st_size, status.st_mtime_ns


def _read(
    detected: Detected, label_pattern: str | None
) -> tuple[PackedStrings, PackedStrings, type[Target], tuple[str, ...]]:
    """Return image names, labels as strings, the type of their targets, which is the same for all, and remarks."""
    images, labels = PackedStrings(), PackedStrings()
    kind: type[Target] = Text
    fmt = FORMATS.get(detected.format)(label_pattern)
    for entry in fmt.read(detected.labels):
        images.append(entry.image)
        labels.append(_plain(entry.target))
        kind = type(entry.target)
    return images, labels, kind, tuple(f"{remark}: {count:,}" for remark, count in fmt.remarks.items())


def _plain(target: Target) -> str:
    if isinstance(target, Polygons):
        return dump_regions(target)
    # Class names may hold any character, so they are packed as JSON.
    return json.dumps([target.names, target.unknown]) if isinstance(target, Labels) else target.value


def _name_of(detected: Detected) -> str:
    """The folder's name; with the label file's where that says more than the usual `labels.tsv`."""
    labels = Path(detected.labels).resolve()
    return labels.name if labels.is_dir() else f"{labels.parent.name}/{labels.name}"


class FileSource(Source):
    """Image files in the order given; every target is an empty Text.

    Args:
        paths: the files; each is its own key.
    """

    small_files = True

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__("images")
        self._paths = PackedStrings(str(path) for path in paths)

    def __len__(self) -> int:
        return len(self._paths)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        path = Path(self.key(index))
        try:
            return read_image(path, str(path))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{path}: cannot be read ({reason})") from error

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self._paths[self._checked(index)]

    def files(self, index: Sequence[int]) -> list[Path]:
        """See `Source.files`."""
        return [Path(self.key(i)) for i in index]

    def target(self, index: int) -> Text:
        """See `Source.target`."""
        return Text("")

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        digest = hashlib.blake2b(digest_size=16)
        self._paths.hash_into(digest)
        return digest.hexdigest()
