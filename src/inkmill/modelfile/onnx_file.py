"""What an ONNX file says before ONNX Runtime sees it: its metadata, no data outside the file, and no damage.

ONNX Runtime parses in this process and was not made for untrusted files. So the outline of the file (a protobuf
message, https://protobuf.dev/programming-guides/encoding) is walked here first, in Python, where a wrong length is an
error and no more. The package `onnx` is not needed.

A file of `inkmill export` ends with a seal: a metadata entry `inkmill.sha256` over all bytes before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from inkmill.errors import ModelFileError

MAX_BYTES = (2 << 30) - 1
"""Protobuf's own limit."""
MAX_DEPTH = 50
"""Messages in messages; our exporter writes graph, node, attribute, tensor."""
MAX_FIELDS = 5_000_000
"""A graph of 10,000 nodes has some 200,000."""

_ENDLESS = (b"Loop", b"Scan", b"SequenceMap")
"""Operators that run as often as their data say."""
MAX_ROUNDS = 1024
"""Of a Loop that is no nested one and whose rounds are a constant of the file; of our own have so many as an input has
widths (see inkmill.deploy.export.paddle)."""

_SEAL_KEY = "inkmill.sha256"
_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}
"""Wire types of fixed width, in bytes; what is neither of these four does not occur in ONNX files."""

# Field numbers of onnx.proto: where tensors are, of which each may name a file.
_METADATA = 14
_GRAPH, _TRAINING, _FUNCTIONS = 7, 20, 25
_FIRST_INPUT, _OPERATOR = 1, 4
_NAME, _RAW_DATA = 8, 9
_DATA_TYPE, _EXTERNAL_DATA, _DATA_LOCATION = 2, 13, 14
_FLOAT16, _INT64 = b"\x0a", b"\x07"
_INSIDE: dict[str, dict[int, str]] = {
    "tensor": {},
    "sparse": {1: "tensor", 2: "tensor"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "node": {5: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
}


class _BrokenError(Exception):
    """The bytes are no message."""


def seal(model: bytes) -> bytes:
    """Return a serialised ModelProto with the seal at its end."""
    return model + _seal(model)


def _seal(model: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(model).hexdigest()
    return _field(_METADATA, _field(1, _SEAL_KEY.encode()) + _field(2, digest.encode()))


def read_metadata(model: bytes, where: str) -> dict[str, str]:
    """Return the metadata of an ONNX file; see `read_outline`."""
    return read_outline(model, where)[0]


def read_outline(model: bytes, where: str) -> tuple[dict[str, str], bool]:
    """Return the metadata of an ONNX file, and whether any of its weights are fp16.

    Args:
        model: the whole file.
        where: its name, for the errors.

    Raises:
        ModelFileError: no ONNX file, too large, damaged, changed since it was sealed, or with weights elsewhere.
    """
    if len(model) > MAX_BYTES:
        raise ModelFileError(f"{where}: {len(model):,} bytes, and an ONNX file has at most {MAX_BYTES:,}")
    try:
        outline = _Outline(where)
        metadata, has_graph = outline.read(memoryview(model))
    except (_BrokenError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{where}: damaged, or not an ONNX file") from error
    if not has_graph:
        raise ModelFileError(f"{where}: damaged, or not an ONNX file (it holds no graph)")
    if _SEAL_KEY in metadata and not model.endswith(_seal(memoryview(model)[: -len(_seal(b""))])):
        raise ModelFileError(
            f"{where}: damaged, or changed since `inkmill export` wrote it; copy or export it once more"
        )
    return metadata, outline.has_half


class _Outline:
    """One walk over a file; `fields_left` ends it where a file is nothing but outline."""

    def __init__(self, where: str) -> None:
        self.where, self.fields_left, self.has_half = where, MAX_FIELDS, False
        self.rounds: list[bytes] = []  # the tensors that say how often loops run
        self.numbers: dict[bytes, int] = {}  # single int64 among the graph's constants

    def read(self, model: memoryview) -> tuple[dict[str, str], bool]:
        """Return the metadata, and whether there is a graph."""
        metadata: dict[str, str] = {}
        has_graph = False
        for number, value in self._fields(model):
            if number == _METADATA:
                entry = dict(self._fields(value))
                metadata[_text(entry.get(1))] = _text(entry.get(2))
            elif number in (_TRAINING, _FUNCTIONS):  # functions that call functions grow without bound when unfolded
                raise ModelFileError(
                    f"{self.where}: holds functions or training graphs, which no reader needs; refused"
                )
            elif number == _GRAPH:
                has_graph = True
                self._walk(value, "graph", 0)
        if any(self.numbers.get(name, MAX_ROUNDS + 1) > MAX_ROUNDS for name in self.rounds):
            raise self._endless("Loop")
        return metadata, has_graph

    def _walk(self, message: memoryview, kind: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _BrokenError
        inside = _INSIDE[kind]
        for number, value in self._fields(message):
            if kind == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and bytes(value) != b"\0")):
                raise ModelFileError(
                    f"{self.where}: keeps weights in other files, which is refused, for those could be any; "
                    "save it as one file"
                )
            if kind == "tensor" and number == _DATA_TYPE:
                self.has_half |= bytes(value) == _FLOAT16
            if kind == "node" and number == _OPERATOR and bytes(value) in _ENDLESS:
                if depth > 1 or bytes(value) != b"Loop":
                    raise self._endless(_text(value))
                self.rounds.append(self._first_input(message))
            if number in inside:
                self._walk(value, inside[number], depth + 1)
        if kind == "tensor" and depth == 1:
            self._note_number(message)

    def _endless(self, operator: str) -> ModelFileError:
        return ModelFileError(
            f"{self.where}: its graph has loops ({operator}) of no fixed, small number of rounds, which no reader "
            "needs; refused"
        )

    def _first_input(self, node: memoryview) -> bytes:
        return next((bytes(value) for number, value in self._fields(node) if number == _FIRST_INPUT), b"")

    def _note_number(self, tensor: memoryview) -> None:
        """Keep the largest of one name, whichever of them ONNX Runtime would take; what is no number has no end."""
        fields = dict(self._fields(tensor))
        raw, name = bytes(fields.get(_RAW_DATA, b"")[:9]), bytes(fields.get(_NAME, b""))
        is_one = len(raw) == 8 and bytes(fields.get(_DATA_TYPE, b"")) == _INT64
        number = int.from_bytes(raw, "little") if is_one else MAX_ROUNDS + 1
        self.numbers[name] = max(number, self.numbers.get(name, 0))

    def _fields(self, message: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield number and content of every field; of a number its encoded bytes."""
        position, end = 0, len(message)
        while position < end:
            self.fields_left -= 1
            tag, position = _varint(message, position)
            kind = tag & 7
            if tag >> 32 or not tag >> 3:  # ONNX Runtime keeps 32 bits of it, and would see another field
                raise _BrokenError
            if kind == _VARINT:
                _, after = _varint(message, position)
            elif kind == _BYTES:
                length, position = _varint(message, position)
                after = position + length
            else:
                after = position + _WIDTHS.get(kind, len(message) + 1)
            if after > end or self.fields_left < 0:
                raise _BrokenError
            yield tag >> 3, message[position:after]
            position = after


def _text(value: memoryview | None) -> str:
    return bytes(value or b"").decode("utf-8")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if position >= len(message):
            raise _BrokenError
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _BrokenError


def _field(number: int, content: bytes) -> bytes:
    return encoded_varint(number << 3 | _BYTES) + encoded_varint(len(content)) + content


def encoded_varint(value: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
