"""Bottlenecks planted on purpose, to see whether `inkmill diagnose` names them: small real training runs on a CPU.

Each is slow for one reason that outweighs all others several times over, so that a busy test machine does not matter.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np

from inkmill.bench.slow_disk import SlowDisk
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.sources import Source, Subset
from inkmill.data.types import Target
from inkmill.machine import cores

_HEAVY = "[" + ", ".join(f"{{op: {op}, p: 1}}" for op in ("elastic", "curve", "blur", "noise", "jpeg", "rotate")) + "]"
_SMALL = (
    "train.device=cpu",
    "train.optim.name=adamw",
    "train.num_epochs=2",
    "dataset.max_label_length=8",
    "model.backbone=VGG",
    "model.feature_channel=8",
    "model.sequence=none",
    "model.input_width=64",
)
_SAMPLES = 512


@dataclass(frozen=True)
class Case:
    """One planted bottleneck.

    Attributes:
        name: what was planted.
        verdict: what `diagnose` should call it.
        spec: the settings, beside those that all cases share.
        enlarged: factor by which the pictures are enlarged, which makes decoding dear.
        latency_s: how long a first read of a sample waits.
        busy: other programs fill the cores.
        sentence: what the verdict's sentence should say.
    """

    name: str
    verdict: str
    spec: tuple[str, ...]
    enlarged: int = 1
    latency_s: float = 0.0
    busy: bool = False
    sentence: str = ""


CASES = (
    Case("slow storage", "fetch", ("dataset.batch_size=16", "dataset.workers=0"), latency_s=0.01),
    Case(
        "one worker",
        "prepare",
        ("dataset.batch_size=16", "dataset.workers=1"),
        enlarged=8,
        sentence="dataset.",
    ),
    Case(
        "heavy augmentation on the CPU",
        "prepare",
        ("dataset.batch_size=128", "dataset.workers=0", "model.input_channel=3", f"dataset.augmentation.ops={_HEAVY}"),
        sentence="most of it augmentation",
    ),
    Case("a tiny model", "prepare", ("dataset.batch_size=32", "dataset.workers=0"), enlarged=4, sentence="decoding"),
    Case(
        "a huge model",
        "compute",
        ("dataset.batch_size=8", "dataset.workers=0", "model.backbone=ResNet", "model.feature_channel=128"),
    ),
    Case("a saturated host", "launch", ("dataset.batch_size=16", "dataset.workers=0"), busy=True),
)


class Reencoded(Source):
    """The pictures of a source in memory, `factor` times as large and as files of another kind."""

    def __init__(self, source: Source, factor: int, suffix: str) -> None:
        super().__init__(source.name)
        self.source = source
        self._images = [_reencode(source.image(index), factor, suffix) for index in range(len(source))]

    def __len__(self) -> int:
        return len(self.source)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        return self._images[index]

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self.source.key(index)

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        return self.source.target(index)

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return f"reencoded {self.source.fingerprint}"


def _reencode(data: bytes, factor: int, suffix: str) -> bytes:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    large = cv2.resize(image, None, fx=factor, fy=factor)
    return bytes(cv2.imencode(suffix, large)[1].tobytes())


@contextmanager
def planted(case: Case, whole: Source, folder: Path) -> Iterator[tuple[Spec, Source]]:
    """Yield the spec and the data of a case, while its other programs run.

    Args:
        case: which.
        whole: short labels in small pictures, 512 or more.
        folder: for what is written.
    """
    source: Source = Subset(whole, np.linspace(0, len(whole) - 1, _SAMPLES).astype(np.int64))
    # Bitmaps cost next to nothing to decode, so that nothing but what was planted is slow.
    source = Reencoded(source, case.enlarged, ".jpg" if case.enlarged > 1 else ".bmp")
    if case.latency_s:
        source = SlowDisk(source, case.latency_s, folder / "flags.npy")
    spec = load_spec(None, [*_SMALL, f"results_dir={folder}", *case.spec])
    with _others(4 * cores() if case.busy else 0):
        yield spec, source


@contextmanager
def _others(count: int) -> Iterator[None]:
    """Run programs that use a core each for as long as it lasts."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
