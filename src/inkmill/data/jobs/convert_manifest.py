"""What a conversion adds up to: the manifest and the character list that go with the data, and the report."""

from __future__ import annotations

import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from inkmill.data.jobs.convert_staging import MANIFEST, count_files
from inkmill.data.jobs.convert_worker import Done
from inkmill.data.jobs.rejects import REJECTS, append_rejects
from inkmill.data.sources.base import Source
from inkmill.data.sources.packed import fingerprint
from inkmill.data.types import Labels, Text
from inkmill.files import write_json_atomic
from inkmill.tasks.recognition.charset import Charset


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        destination: where the data are.
        kind: lmdb, shards, or the name of a label format.
        samples: how many were written.
        empty_labels: how many of them have an empty label.
        rejected: how many were left out, by reason.
        rejected_folder: where copies of those and rejects.tsv are; None when nothing was left out.
        image_bytes: total size of the images written.
        notes: how the source was understood.
    """

    destination: Path
    kind: str
    samples: int
    empty_labels: int
    rejected: dict[str, int]
    rejected_folder: Path | None
    image_bytes: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in a line or two."""
        size = f"{self.image_bytes / 2**20:.1f} MiB of images"
        text = f"{self.samples:,} samples ({size}) as {self.kind} in {self.destination}"
        if self.empty_labels:
            text += f", {self.empty_labels:,} of them with an empty label"
        if self.rejected_folder:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.rejected.items()))
            text += f"\n{sum(self.rejected.values()):,} left out: {reasons}; see {self.rejected_folder / REJECTS}"
        return text


@dataclass
class Tally:
    """Running totals over chunks; its memory does not grow with the number of samples."""

    samples: int = 0
    empty_labels: int = 0
    multilabel: bool = False
    image_bytes: int = 0
    checksum: int = 0
    characters: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    first_reject: str = ""
    shards: list[dict[str, Any]] = field(default_factory=list)
    _ranges: dict[str, list[float]] = field(default_factory=dict)

    def add(self, done: Done) -> None:
        """Add a chunk that was written."""
        self.samples += len(done.sizes)
        self.image_bytes += sum(done.sizes)
        self.checksum = zlib.crc32(np.array(done.checksums, "<u4").tobytes(), self.checksum)
        self.characters.update(done.characters)
        self.multilabel |= any(isinstance(target, Labels) for target in done.targets)
        lengths = [
            len(t.value if isinstance(t, Text) else t.names) for t in done.targets if isinstance(t, Text | Labels)
        ]
        self.empty_labels += lengths.count(0)
        self._range("label_length", lengths)
        self._range("width", [width for width, _ in done.shapes])
        self._range("height", [height for _, height in done.shapes])
        self._range("image_bytes", done.sizes)

    def add_rejects(self, done: Done, folder: Path) -> None:
        """Append a chunk's rejects to rejects.tsv: key, reason, name of the copy."""
        if not done.rejects:
            return
        self.rejected.update(reject.category for reject in done.rejects)
        self.first_reject = self.first_reject or done.rejects[0].reason
        append_rejects(folder, ((reject.key, reject.reason, reject.copy) for reject in done.rejects))

    def write(self, folder: Path, source: Source, kind: str) -> None:
        """Write manifest.json and characters.txt; raises OutputError."""
        counts = dict(sorted(self.characters.items()))
        texts = {"classes": counts} if self.multilabel else {"characters": counts}
        manifest = {
            "format": "inkmill data set",
            "version": 1,
            "made_by": f"inkmill {_version()}",
            "kind": kind,
            "samples": self.samples,
            "empty_labels": self.empty_labels,
            "rejected": dict(self.rejected),
            "source": {"name": source.name, "samples": len(source), "fingerprint": source.fingerprint},
            "fingerprint": fingerprint("data set", f"{self.samples} {self.image_bytes} {self.checksum}", repr(counts)),
            "total_image_bytes": self.image_bytes,
            # Over the CRC-32 of every image, 4 bytes little-endian each, in order.
            "crc32": f"{self.checksum:08x}",
            "ranges": {name: _summary(values, self.samples) for name, values in self._ranges.items()},
            **({"shards": self.shards} if self.shards else {}),
            **texts,
        }
        # A character list has no control characters; labels that hold some keep them.
        listed = [char for char in counts if unicodedata.category(char[:1]) not in ("Cc", "Cs")]
        if listed and not self.multilabel:
            Charset.from_texts(listed).save(folder / "characters.txt")
        manifest["files"] = count_files(folder) + 1
        write_json_atomic(folder / MANIFEST, manifest)  # last, so that what is newer is not the conversion's

    def _range(self, name: str, values: list[int]) -> None:
        if values:
            low, high, total = self._ranges.get(name, [values[0], values[0], 0])
            self._ranges[name] = [min(low, *values), max(high, *values), total + sum(values)]


def _summary(values: list[float], count: int) -> dict[str, float]:
    return {"min": values[0], "max": values[1], "mean": round(values[2] / max(count, 1), 2)}


def _version() -> str:
    # Not inkmill.__version__: the package's front door leads to training, which data must not know.
    try:
        return version("inkmill")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "(not installed)"
