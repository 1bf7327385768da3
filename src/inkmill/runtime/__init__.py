"""Reading without torch: `Reader("model.onnx").read(images)`, and the header that model files carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inkmill.runtime.onnx import OnnxReader as Reader
    from inkmill.tasks.recognition.decoder import Reading

__all__ = ["Reader", "Reading"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use: a header alone needs neither OpenCV nor ONNX Runtime."""
    if name == "Reader":
        from inkmill.runtime.onnx import OnnxReader

        return OnnxReader
    if name == "Reading":
        from inkmill.tasks.recognition.decoder import Reading

        return Reading
    raise AttributeError(f"module 'inkmill.runtime' has no attribute {name!r}")
