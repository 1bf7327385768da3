"""Reading without torch: `Reader("model.onnx").read(images)`, `Detector("model.onnx").detect(images)`, and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inkmill.runtime.detector import Detector
    from inkmill.runtime.onnx import OnnxReader as Reader
    from inkmill.tasks.detection.decode import Region
    from inkmill.tasks.recognition.decoder import Reading

__all__ = ["Detector", "Reader", "Reading", "Region"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use: a header alone needs neither OpenCV nor ONNX Runtime."""
    if name == "Reader":
        from inkmill.runtime.onnx import OnnxReader

        return OnnxReader
    if name == "Reading":
        from inkmill.tasks.recognition.decoder import Reading

        return Reading
    if name in ("Detector", "Region"):
        from inkmill.runtime import detector

        return getattr(detector, name)
    raise AttributeError(f"module 'inkmill.runtime' has no attribute {name!r}")
