"""What the plan is made from: numbers, all measured or looked up elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Tier = Literal["none", "disk", "ram", "gpu"]


@dataclass(frozen=True, slots=True)
class Stages:
    """What making one image costs, in seconds on one core.

    Attributes:
        read: from the page cache.
        wait: what a read from the disk takes longer, waiting; the core is free for others meanwhile.
        fetch: what it takes longer of the core.
        decode, fit: to the model's input.
        draw: the augmentation's numbers, where OpenCV applies them; a GPU draws for itself.
        augment: applying them with OpenCV.
        other: order, labels, laying out.
        kept: getting a cached picture instead of read, decode and fit.
        augment_gpu: drawing and applying the numbers on the GPU, in seconds of the GPU; None where that cannot be.
        augment_host: issuing that, in seconds of the training process.
        hand_over: laying out a decoded picture, where nothing needs it resized before the GPU, which fits it then; None
            where the GPU cannot.
    """

    read: float
    decode: float
    resize: float
    draw: float = 0.0
    augment: float = 0.0
    other: float = 0.0
    cached: float = 0.0
    wait: float = 0.0
    fetch: float = 0.0
    augment_gpu: float | None = None
    augment_host: float = 0.0
    hand_over: float | None = None

    @property
    def fresh(self) -> float:
        """Reading, decoding and fitting."""
        return self.read + self.decode + self.resize


@dataclass(frozen=True, slots=True)
class Step:
    """One way to do the training step, measured.

    Attributes:
        batch_size, precision, compile, channels_last: the settings.
        seconds: of the device for one image, augmentation left out.
        host: of the training process's CPU for one image: issuing the step, augmentation left out, and labels.
    """

    batch_size: int
    precision: str
    compile: bool
    channels_last: bool
    seconds: float
    host: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What the plan decides; names and values are those of the spec."""

    loader: str = "workers"
    workers: int = 4
    cache: Tier = "none"
    augment_on: Literal["cpu", "gpu", "dali"] = "cpu"
    decode_on: Literal["cpu", "mixed"] = "cpu"
    batch_size: int = 32
    precision: str = "fp32"
    compile: bool = False
    channels_last: bool = True

    def overrides(self, current: Settings | None = None) -> dict[str, Any]:
        """Return the keys of the spec with their values; only those that differ from `current` where it is given."""
        before = None if current is None else asdict(current)
        found = {}
        for name, value in asdict(self).items():
            if before is None or before[name] != value:
                section = "train" if name in ("precision", "compile", "channels_last") else "dataset"
                found[f"{section}.{name}"] = value
        return found

    def with_step(self, step: Step) -> dict[str, Any]:
        """Return the fields of a step as changes."""
        names = ("batch_size", "precision", "compile", "channels_last")
        return {name: getattr(step, name) for name in names}


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that predictions rest on.

    Attributes:
        stages: costs of making an image.
        steps: the ways to do the step; the first is the user's.
        on_gpu: the model trains on a GPU; else model and workers share the cores.
        cores: how many this process may use.
        samples: of the training set.
        epochs: of the run.
        picture_bytes: of one resized picture.
        ram_left, disk_left, gpu_left: bytes that cached pictures may take; 0 where the tier cannot be.
        efficiency: what a worker does when all cores work, as a share of what it does alone.
        dali: images a second that DALI makes by itself, by decode_on.
        pipeline: the augmentation is foreign code that runs on the CPU only.
        free_cores: of the cores, what other programs leave; None: all.
        page_cached: after the first epoch the files are read from memory.
    """

    stages: Stages
    steps: tuple[Step, ...]
    on_gpu: bool
    cores: int
    samples: int
    epochs: int = 10
    picture_bytes: int = 0
    ram_left: int = 0
    disk_left: int = 0
    gpu_left: int = 0
    efficiency: float = 1.0
    dali: Mapping[str, float] = field(default_factory=dict)
    pipeline: bool = False
    free_cores: float | None = None
    page_cached: bool = False

    @property
    def cache_bytes(self) -> int:
        """Size of all pictures, resized."""
        return self.samples * self.picture_bytes

    def cached_share(self, tier: Tier) -> float:
        """Return the share of the pictures that a tier holds."""
        if tier == "none" or not self.cache_bytes:
            return 0.0
        room = {"ram": self.ram_left, "disk": self.disk_left, "gpu": self.gpu_left}[tier]
        share = min(1.0, room / self.cache_bytes)
        return share if share == 1 or tier != "gpu" else 0.0  # the GPU holds all of them or none
