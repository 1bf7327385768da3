"""Strings to class numbers and back, a batch at a time: one codec for each kind of head.

All work is done on code points in NumPy arrays; the only Python loop over samples is NFC. The class order is TAO's
and CLOVA's, so their checkpoints and ONNX files decode unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import CharsetError, DataError
from inkmill.registry import Registry
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.normalise import nfc

Ints = NDArray[np.int64]


class Codec:
    """Translates between strings and the classes of a head; the base of the three kinds.

    Args:
        charset: the characters.
        max_label_length: the longest label in characters.

    Attributes:
        class_names: one name a class, for remapping a head by character; special classes are in brackets.
        target_length: columns of an encoded batch; the same for every batch, so compiled graphs keep their shape.
    """

    prediction: str
    special: tuple[str, ...]
    extra_steps = 0

    def __init__(self, charset: Charset, max_label_length: int) -> None:
        self.charset = charset
        self.max_label_length = max_label_length
        self.target_length = max_label_length + self.extra_steps
        self.class_names = (*self.special, *charset.chars)
        offset = len(self.special)
        codes = np.fromiter(map(ord, charset.chars), np.uint32, len(charset))
        # Class of each code point; 0 (a special class) marks unknown ones, the last entry all above the highest.
        self._class_of = np.zeros(int(codes.max()) + 2, np.int64)
        self._class_of[codes] = np.arange(offset, offset + len(codes))
        self._code_of = np.concatenate([np.zeros(offset, np.uint32), codes])

    @property
    def num_classes(self) -> int:
        """How many classes the head has."""
        return len(self.class_names)

    def encode(self, texts: Sequence[str]) -> tuple[Ints, Ints]:
        """Return (ids (B, target_length), lengths (B,)), both int64, ids padded with 0.

        Raises:
            CharsetError: a text holds a character that is not in the character list.
            DataError: a text is longer than `max_label_length`.
        """
        composed = [nfc(text) for text in texts]
        codes, counts, rows, columns = _code_points(composed)
        if len(counts) and counts.max() > self.max_label_length:
            longest = composed[int(counts.argmax())]
            raise DataError(
                f"the label {longest!r} has {len(longest)} characters and max_label_length is {self.max_label_length}: "
                "raise dataset.max_label_length or leave the label out"
            )
        classes = self._class_of[np.minimum(codes, len(self._class_of) - 1)]
        if not classes.all():
            position = int(np.flatnonzero(classes == 0)[0])
            raise CharsetError(
                f"the label {composed[int(rows[position])]!r} holds {chr(codes[position])!r}, which is not in the "
                "character list: add it there or leave the label out"
            )
        ids = np.zeros((len(texts), self.target_length), np.int64)
        ids[rows, columns] = classes
        return ids, self._finish(ids, counts)

    def decode(self, ids: NDArray[Any], probs: NDArray[Any]) -> tuple[list[str], NDArray[np.float32]]:
        """Return the strings of a batch and the confidence of each.

        Args:
            ids: integers (B, T), the class of each step.
            probs: floats (B, T), its probability.

        Returns:
            B strings, and float32 (B,) in 0..1: the product of the probabilities of the emitted characters (for CTC of
            the first frame of each run, as nvOCDR has it); 0 for an empty string, which nothing vouches for.
        """
        ids = np.asarray(ids)
        if ids.size == 0:
            return [""] * len(ids), np.zeros(len(ids), np.float32)
        emitted = self._emitted(ids)
        rows, columns = np.nonzero(emitted)
        grid = np.zeros(ids.shape, np.uint32)
        grid[rows, emitted.cumsum(1)[rows, columns] - 1] = self._code_of[ids[rows, columns]]
        # A row of code points is a NumPy string: its trailing zeros are not part of it.
        texts: list[str] = grid.view(f"<U{ids.shape[1]}")[:, 0].tolist()
        confidence = np.where(emitted, np.asarray(probs, np.float64), 1.0).prod(1) * emitted.any(1)
        return texts, np.clip(confidence, 0, 1).astype(np.float32)

    def required_steps(self, texts: Sequence[str]) -> Ints:
        """Return how many time steps each text needs, int64 (B,)."""
        return _code_points([nfc(text) for text in texts])[1] + self.extra_steps

    def _finish(self, ids: Ints, counts: Ints) -> Ints:
        """Add what follows the characters to `ids`, in place, and return the lengths."""
        return counts

    def _emitted(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which steps write a character, bool (B, T)."""
        raise NotImplementedError


CODECS: Registry[type[Codec]] = Registry("prediction head")
"""Codecs by the name of their head."""


@CODECS.register("CTC")
class CtcCodec(Codec):
    """Connectionist temporal classification (Graves et al. 2006): class 0 is the blank, runs collapse."""

    prediction = "CTC"
    special = ("[blank]",)

    def required_steps(self, texts: Sequence[str]) -> Ints:
        """Return length + repeats: two equal neighbours need a blank between them."""
        codes, counts, rows, _ = _code_points([nfc(text) for text in texts])
        repeats = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1])
        needed: Ints = counts + np.bincount(rows[1:][repeats], minlength=len(counts))
        return needed

    def _emitted(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        emitted: NDArray[np.bool_] = ids != 0
        emitted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        return emitted

    def runs(self, ids: NDArray[Any]) -> list[tuple[str, Ints, Ints]]:
        """Return of each row of classes (B, T) its text, and the steps where each character's run starts and ends."""
        ids = np.asarray(ids)
        found = []
        for row in ids:
            starts = np.flatnonzero(np.diff(row, prepend=-1))
            ends = np.append(starts[1:], len(row))
            written = row[starts] != 0
            starts, ends = starts[written], ends[written]
            found.append(("".join(map(chr, self._code_of[row[starts]].tolist())), starts, ends))
        return found


@CODECS.register("Attn")
class AttnCodec(Codec):
    """Attention decoder: class 0 is GO and padding, class 1 the end; a target is characters, end, padding."""

    prediction = "Attn"
    special = ("[GO]", "[end]")
    extra_steps = 1

    def _finish(self, ids: Ints, counts: Ints) -> Ints:
        ids[np.arange(len(ids)), counts] = 1
        return counts + 1

    def _emitted(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        running = ~np.logical_or.accumulate(ids == 1, axis=1)
        emitted: NDArray[np.bool_] = running & (ids > 1)
        return emitted


@CODECS.register("Slots")
class SlotsCodec(Codec):
    """A fixed number of character positions, as captcha solvers have it: class 0 is an empty position."""

    prediction = "Slots"
    special = ("[empty]",)

    def _emitted(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        emitted: NDArray[np.bool_] = ids != 0
        return emitted


def make_codec(prediction: Literal["CTC", "Attn", "Slots"], charset: Charset, max_label_length: int) -> Codec:
    """Return the codec of a head.

    Raises:
        ConfigError: no such head.
    """
    return CODECS.get(prediction)(charset, max_label_length)


def _code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], Ints, Ints, Ints]:
    """Return the code points of a batch (N,), the length of each text (B,), each code point's row and column (N,)."""
    # Labels out of JSON can hold lone surrogates: they must end as "not in the character list", not as a traceback.
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.dtype("<u4")).astype(np.uint32)
    counts = np.fromiter(map(len, texts), np.int64, len(texts))
    rows = np.repeat(np.arange(len(counts)), counts)
    columns = np.arange(len(codes)) - np.repeat(counts.cumsum() - counts, counts)
    return codes, counts, rows, columns
