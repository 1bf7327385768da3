"""Finding text on whole pictures without torch: `Detector().detect(["page.png"])`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inkmill.errors import ConfigError
from inkmill.runtime.reader import BaseReader, Picture, load_reader
from inkmill.tasks.detection.decode import Region, Regions

__all__ = ["Detector", "Region"]


class Detector:
    """Finds text with one model file; several threads may use one detector.

    Args:
        file: a .onnx file of `inkmill export`, or a .safetensors file of `inkmill train`, which needs torch; None: the
            weights that the package carries.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        threads: of a .onnx file on the CPU; by default as many as there are cores.
        short_side, long_side: read pictures at another size than the file says, in pixels: larger for smaller text.
        box_threshold: leave out regions with a lower score than this, not than the file says.
        shape: "quad" for the smallest turned rectangle, "polygon" for the outline.

    Attributes:
        reader: what runs the network.

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or not written by inkmill.
        ConfigError: the file is of no detector, or an option that cannot be.
        InkmillError: no file is given, and this package carries none.
    """

    def __init__(
        self,
        file: str | Path | None = None,
        device: str | None = None,
        *,
        encryption_key: str | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        if file is None:
            from inkmill.weights import path

            file = path("detector")
        self.reader = _open(Path(file), device, encryption_key, threads)
        if self.reader.task.name != "detection":
            raise ConfigError(f"{file}: a {self.reader.task.noun}, expected a text detector")
        if options:
            self.reader.task = self.reader.task.changed(**options)  # type: ignore[attr-defined]  # Detection's own
            self.reader.resize = self.reader.task.resize
            self.reader.use(self.reader.task.plain_decoder())

    def detect(self, images: Picture | Iterable[Picture]) -> list[list[Region]]:
        """Return the regions of each picture, the largest first.

        Args:
            images: one or several: paths, encoded bytes, uint8 arrays (HW gray, HWC RGB or RGBA), PIL images. EXIF
                rotation is applied: what a viewer shows is what is looked at.

        Raises:
            ImageError: a picture cannot be decoded; names it.
            ModelFileError: the model file cannot be run.
        """
        return [list(one.found) for one in self.regions(images)]

    def regions(self, images: Picture | Iterable[Picture]) -> list[Regions]:
        """Return what `detect` does, with the number of regions that were left out of each picture."""
        return self.reader.read(images)


def _open(file: Path, device: str | None, key: str | None, threads: int | None) -> BaseReader:
    if file.suffix != ".onnx":
        return load_reader(file, device, key)
    from inkmill.runtime.onnx import OnnxReader

    return OnnxReader(file, device, encryption_key=key, threads=threads)
