"""The label in the file name: `Xk4P.png`, `Xk4P.2.png`; a regular expression says which part."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath

from inkmill.config.dataset import DatasetSpec
from inkmill.data.formats.base import Entry, LabelFormat, list_images, register, unwritable
from inkmill.data.types import Target, Text
from inkmill.errors import ConfigError, LabelFileError

DEFAULT_PATTERN: str = DatasetSpec.model_fields["label_pattern"].default
"""The label is what stands before the first dot; a number after it tells images with the same label apart."""

_SECONDS = 5.0
"""For the names that are matched at once: a good pattern takes a millisecond, (a+)+ takes years."""
_AT_ONCE = 256

# What some system does not allow in a name, and the dot, which ends the label.
_UNSAFE = '/\\.<>:"|?*\t\r\n\0'


def propose_pattern(names: Sequence[str]) -> str:
    """Return a label_pattern for names such as `TEXT_hash.jpg`, all of which go on after the text; empty for others."""
    stems = [PurePosixPath(name).stem for name in names]
    for mark in "_-@#":
        if stems and all(stem.find(mark) > 0 for stem in stems):
            return f"(?P<label>[^{mark}]+){mark}.*"
    return ""


@register
class FileName(LabelFormat):
    """A folder of images, searched recursively, each called by its label.

    Args:
        label_pattern: matched against the whole name without its last suffix; its group `label` is the label.

    Raises:
        ConfigError: the pattern is not a regular expression or has no group `label`.
    """

    name = "filename"
    title = "label in the file name: label.png, label.2.png; label_pattern says which part"
    example = "Xk4P.2.png"
    specificity = 10
    image_folder = ""

    def __init__(self, label_pattern: str | None = None) -> None:
        super().__init__(label_pattern or DEFAULT_PATTERN)
        try:
            self._pattern = re.compile(self.label_pattern or "")
        except re.error as error:
            raise ConfigError(f"label_pattern {self.label_pattern!r} is not a regular expression: {error}") from None
        if "label" not in self._pattern.groupindex:
            raise ConfigError(f"label_pattern {self.label_pattern!r} has no group (?P<label>...), the part to read")

    def detect(self, path: Path, head: list[str]) -> str | None:
        """See `LabelFormat.detect`; decides by the first image."""
        first = next(list_images(path), None)
        label = self._label(first) if first else None
        return f"the name {first} matches label_pattern, with the label {label!r}" if label is not None else None

    def read(self, path: Path) -> Iterator[Entry]:
        """See `LabelFormat.read`; an image whose name does not match is an error, since its label is unknown."""
        images = list_images(path)
        while some := list(islice(images, _AT_ONCE)):
            with self._in_time(some[0]):
                labels = [self._match(image) for image in some]
            for image, label in zip(some, labels, strict=True):
                if label is None:
                    wrong = f"the name does not match label_pattern {self.label_pattern!r}"
                    raise LabelFileError(f"{wrong}: change the pattern or move the file away", path / image)
                yield Entry(image, Text(label), 1)

    def write(self, path: Path, entries: Iterable[Entry]) -> None:
        """See `LabelFormat.write`; the names are the labels, so this only checks that they say what they should."""
        for image, text in self.checked(entries):
            if self._label(image) != text:
                raise LabelFileError(f"this name does not carry the label {text!r}", path / image)

    def refuses(self, image: str, target: Target) -> str | None:
        """See `LabelFormat.refuses`; the label must survive as part of a name on every system."""
        if not isinstance(target, Text) or not target.value:
            return "a file name needs a text that is not empty"
        # 255 bytes is the limit of most file systems; the rest is for the index and the suffix.
        if len(target.value.encode("utf-8", "replace")) > 200 or target.value != target.value.strip():
            return "the label is over 200 bytes, or begins or ends with a blank"
        if self._label(f"{target.value}.1.png") != target.value:
            return unwritable(target.value, _UNSAFE, "label") or "label_pattern would not read it back from a name"
        return unwritable(target.value, _UNSAFE, "label")

    def place(self, key: str, target: Target, index: int, suffix: str) -> str:
        """See `LabelFormat.place`: label.index.suffix."""
        return f"{target.value if isinstance(target, Text) else ''}.{index}{suffix}"

    def _label(self, image: str) -> str | None:
        with self._in_time(image):
            return self._match(image)

    @contextmanager
    def _in_time(self, first: str) -> Iterator[None]:
        """Raise ConfigError where matching takes too long; `first` is the name that is matched first.

        Python's regular expressions look for signals while they search, in the main thread, so an alarm ends them.
        """
        limited = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if not limited or self.label_pattern == DEFAULT_PATTERN:
            yield
            return

        def too_long(number: int, frame: object) -> None:
            raise ConfigError(
                f"label_pattern {self.label_pattern!r} takes more than {_SECONDS:g} s for names such as {first}: it "
                "tries the same characters in too many ways; leave out a repetition within another, as in (a+)+"
            )

        before = signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _match(self, image: str) -> str | None:
        match = self._pattern.fullmatch(PurePosixPath(image).stem)
        return match["label"] if match else None
