"""An ONNX graph as a model file: its header inside, sealed, encrypted where there is a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inkmill.crypt import Key, sealed
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.onnx_file import seal


def write_onnx(graph: Any, header: ModelHeader, path: Path, key: Key | None) -> None:
    """Write an `onnx.ModelProto`, whose metadata become the header's and what the task adds for other programs."""
    del graph.metadata_props[:]
    for name, value in {"inkmill": header.to_json(), **header.open_task().metadata()}.items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = name, value
    path.write_bytes(sealed(seal(graph.SerializeToString()), key))
