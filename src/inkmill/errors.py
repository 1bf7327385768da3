"""What can go wrong, as a tree.

    InkmillError                 one sentence: what, where, what was expected, what to do
    ├── ConfigError              a spec file or override: unknown key, wrong type, wrong range
    ├── DataError                a data set: missing, empty, malformed
    │   ├── LabelFileError       one line of a label file (carries ``file:line``)
    │   ├── ImageError           an image that cannot be decoded
    │   │   ├── ImageFormatError     it is in no format that is known
    │   │   └── ImageSizeError       it has more pixels than are allowed
    │   └── PageLimitError       a document with more pages or pixels than are allowed
    ├── CharsetError             a character list that cannot be used
    ├── ModelFileError           a checkpoint or model file that cannot be read
    ├── OutputError              a place that cannot be written: not empty, no permission, disk full
    ├── TrainingError            training cannot go on: NaN loss, nothing left to train on
    └── MissingExtraError        an optional package is absent (carries the pip line)

The shell prints the sentence and leaves with exit code 2; a traceback means a bug in inkmill.
"""

from __future__ import annotations

from typing import Any


class InkmillError(Exception):
    """Base of every error that a user can cause and fix."""


class ConfigError(InkmillError):
    """A spec file or an override is wrong."""


class DataError(InkmillError):
    """A data set is missing, empty or malformed."""


class LabelFileError(DataError):
    """One line of a label file is wrong."""

    def __init__(self, message: str, file: object, line: int | None = None) -> None:
        self.message, self.file, self.line = message, str(file), line
        where = self.file if line is None else f"{self.file}:{line}"
        super().__init__(f"{where}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.file, self.line)  # it comes out of worker processes


class ImageError(DataError):
    """An image cannot be decoded."""


class ImageFormatError(ImageError):
    """It is an image in no known format."""


class ImageSizeError(ImageError):
    """An image has more pixels than are allowed."""


class PageLimitError(DataError):
    """A document has more pages, or a page more pixels, than are allowed."""


class CharsetError(InkmillError):
    """A character list cannot be used."""


class ModelFileError(InkmillError):
    """A checkpoint or model file cannot be read."""


class OutputError(InkmillError):
    """A place cannot be written."""


class TrainingError(InkmillError):
    """Training cannot go on."""


class MissingExtraError(InkmillError):
    """An optional package is absent."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        self.package, self.extra, self.needed_for = package, extra, needed_for
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed: pip install 'inkmill[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.package, self.extra, self.needed_for)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing: compilers report on pages."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
