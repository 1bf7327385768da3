"""The head of a safetensors file, looked at before anything is loaded, and the digest that finds damage.

The format (https://github.com/huggingface/safetensors): 8 bytes, little endian, the length of the header; the header, a
JSON object of names to type, shape and place, with `__metadata__` among them; the tensors' bytes. It has no checksum,
and a flipped bit in a weight would only read a little worse, so the metadata of our files hold one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from inkmill.errors import ModelFileError
from inkmill.files import open_data

MAX_HEADER = 32 << 20
"""Largest header, in bytes; that of a model with 10,000 tensors and 20,000 characters has 2 MiB."""


def with_digest(data: bytes) -> bytes:
    """Return a serialised file with the SHA-256 of its card and tensors among its metadata."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    metadata = header["__metadata__"]
    metadata["sha256"] = _digest(metadata.get("inkmill", ""), [body])
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, body))


def read_metadata(file: BinaryIO, where: str) -> dict[str, str]:
    """Return the metadata of an open file, after its digest, where it has one, was found right.

    Raises:
        ModelFileError: the header is too large or no header, or the file was damaged.
    """
    metadata = _metadata(file, where)
    told = metadata.get("sha256")
    if told is not None and told != _digest(metadata.get("inkmill", ""), iter(lambda: file.read(1 << 20), b"")):
        raise ModelFileError(f"{where}: damaged, for its bytes are not those that were written; copy it once more")
    return metadata


def _metadata(file: BinaryIO, where: str) -> dict[str, str]:
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise ModelFileError(
            f"{where}: damaged, or not a safetensors file (a header of {length:,} bytes, at most {MAX_HEADER:,})"
        )
    try:
        header: Any = json.loads(file.read(length))
        metadata = header.get("__metadata__") or {}
        if all(isinstance(text, str) for pair in metadata.items() for text in pair):
            return dict(metadata)
    except (ValueError, AttributeError, RecursionError):
        pass
    raise ModelFileError(f"{where}: damaged, or not a safetensors file (its header is no JSON of the format)")


def _digest(card: str, body: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256(card.encode("utf-8", "surrogatepass"))
    for part in body:
        digest.update(part)
    return digest.hexdigest()


def open_plain(path: Path, content: bytes | None) -> BinaryIO:
    """Return a file to read: of the content where it is at hand, else the one on the disk."""
    return open_data(path) if content is None else io.BytesIO(content)
