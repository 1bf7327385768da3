"""Injected bottlenecks: small real training runs on a CPU, each slow for one known reason.

`diagnose_stability.py` and tests/diagnose ask whether `inkmill diagnose` names that reason. It outweighs all others
several times over, so a busy machine does not matter. `SlowDisk` and `RepeatedSource` give a small set the disk and
size of a large one. Imported, not run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.sources import Mix, Source, Subset
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
class InjectedBottleneck:
    """One training run with a known bottleneck.

    Attributes:
        name: what was made slow.
        verdict: what `diagnose` should call it.
        spec: the settings, beside those that all runs share.
        enlarged: factor by which the images are enlarged, which makes decoding expensive.
        latency_s: how long a first read of a sample waits.
        busy: other programs fill the cores.
        sentence: a part of the verdict's sentence.
    """

    name: str
    verdict: str
    spec: tuple[str, ...]
    enlarged: int = 1
    latency_s: float = 0.0
    busy: bool = False
    sentence: str = ""


BOTTLENECKS = (
    InjectedBottleneck("slow storage", "fetch", ("dataset.batch_size=16", "dataset.workers=0"), latency_s=0.01),
    InjectedBottleneck(
        "one worker",
        "prepare",
        ("dataset.batch_size=16", "dataset.workers=1"),
        enlarged=8,
        sentence="dataset.",
    ),
    InjectedBottleneck(
        "heavy augmentation on the CPU",
        "prepare",
        ("dataset.batch_size=128", "dataset.workers=0", "model.input_channel=3", f"dataset.augmentation.ops={_HEAVY}"),
        sentence="most of it augmentation",
    ),
    InjectedBottleneck(
        "a tiny model", "prepare", ("dataset.batch_size=32", "dataset.workers=0"), enlarged=4, sentence="decoding"
    ),
    InjectedBottleneck(
        "a huge model",
        "compute",
        ("dataset.batch_size=8", "dataset.workers=0", "model.backbone=ResNet", "model.feature_channel=128"),
    ),
    InjectedBottleneck("a saturated host", "launch", ("dataset.batch_size=16", "dataset.workers=0"), busy=True),
)


@contextmanager
def injected(bottleneck: InjectedBottleneck, whole: Source, folder: Path) -> Iterator[tuple[Spec, Source]]:
    """Yield the spec and the data of a run with this bottleneck, while its other programs run.

    Args:
        bottleneck: which.
        whole: short labels in small images, 512 or more.
        folder: for what is written.
    """
    source: Source = Subset(whole, np.linspace(0, len(whole) - 1, _SAMPLES).astype(np.int64))
    # Bitmaps cost next to nothing to decode, so that nothing but the injected bottleneck is slow.
    source = Reencoded(source, bottleneck.enlarged, ".jpg" if bottleneck.enlarged > 1 else ".bmp")
    if bottleneck.latency_s:
        source = SlowDisk(source, bottleneck.latency_s, folder / "flags.npy")
    spec = load_spec(None, [*_SMALL, f"results_dir={folder}", *bottleneck.spec])
    with _busy_processes(4 * cores() if bottleneck.busy else 0):
        yield spec, source


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Run programs that use a core each for as long as it lasts."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


class Reencoded(Source):
    """The images of a source in memory, `factor` times as large and as files of another format."""

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


class SlowDisk(Source):
    """A source whose reads wait `latency_s` the first time and not again: the page cache is a file of flags.

    The flags lie in a file, so that all processes share them. Waiting is sleeping: it takes no core, as a disk's does.

    Args:
        source: where the samples come from.
        latency_s, bytes_per_s: a first read takes `latency_s + bytes / bytes_per_s` longer.
        flags: the file of the flags; made, or overwritten.
    """

    small_files = True
    """Its samples are slow one by one, as files of their own are."""

    def __init__(self, source: Source, latency_s: float, flags: Path, bytes_per_s: float = np.inf) -> None:
        super().__init__(source.name)
        self.source, self.latency_s, self.bytes_per_s = source, latency_s, bytes_per_s
        np.lib.format.open_memmap(flags, "w+", np.uint8, (len(source),))[:] = 0
        self.flags = flags
        self._opened: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def image(self, index: int) -> bytes:
        """See `Source.image`."""
        data = self.source.image(index)
        cached = self._cached()
        if not cached[index]:
            cached[index] = 1
            time.sleep(self.latency_s + len(data) / self.bytes_per_s)
        return data

    def key(self, index: int) -> str:
        """See `Source.key`."""
        return self.source.key(index)

    def target(self, index: int) -> Target:
        """See `Source.target`."""
        return self.source.target(index)

    def files(self, index: object) -> list[Path]:
        """See `Source.files`."""
        return self.source.files(list(index))  # type: ignore[call-overload]

    def forget(self) -> None:
        """Empty the page cache of this source."""
        self._cached()[:] = 0

    def _cached(self) -> NDArray[np.uint8]:
        if self._opened is None:
            self._opened = np.load(self.flags, mmap_mode="r+")
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @cached_property
    def fingerprint(self) -> str:
        """See `Source.fingerprint`."""
        return f"slow {self.source.fingerprint}"


class RepeatedSource(Mix):
    """A source repeated to `count` samples; requested indices share an image only once every image has been used.

    In a plain repetition two requested samples may be the same image, so that the second read comes from the page
    cache; in a set of `count` different samples it would come from the disk.

    Args:
        source: the small set.
        count: length of the repeated one.
    """

    def __init__(self, source: Source, count: int) -> None:
        super().__init__([source], [count / len(source)])
        self._places: dict[int, int] = {}  # requested index -> how many were requested before it
        self._scattered = np.random.default_rng(0).permutation(len(source))  # on disk, random samples lie scattered

    def locate(self, index: int) -> tuple[int, int]:
        """See `Mix.locate`; images are given out in the order of first request."""
        place = self._places.setdefault(self._checked(index), len(self._places) % len(self._scattered))
        return 0, int(self._scattered[place])
