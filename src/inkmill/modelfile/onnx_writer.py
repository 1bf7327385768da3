"""An ONNX graph as the file of a reader: its card inside, sealed, encrypted where there is a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inkmill.crypt import Key, sealed
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.onnx_file import seal
from inkmill.runtime.onnx import OnnxReader


def written(graph: Any, card: ModelHeader, path: Path, key: Key | None) -> OnnxReader:
    """Write an `onnx.ModelProto`, whose metadata become the card's, and return its reader on the CPU.

    Besides the card, the characters are among the metadata, one a line, as other programs look for them.
    """
    del graph.metadata_props[:]
    for name, value in (("inkmill", card.to_json()), ("character", "\n".join(card.charset))):
        entry = graph.metadata_props.add()
        entry.key, entry.value = name, value
    path.write_bytes(sealed(seal(graph.SerializeToString()), key))
    return OnnxReader(path, "cpu", encryption_key=key)
