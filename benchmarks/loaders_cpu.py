"""Images a second of each loader on the CPU, beside torch DataLoader + PIL + torchvision doing the same work.

    python benchmarks/loaders_cpu.py [--samples 4096] [--workers 2] [--seconds 5] [--json FILE]

The data are JPEG crops held in memory, as an LMDB in the page cache is: lines of digits rendered at the sizes of real
word crops (48-320 x 24-64 pixels). The work: decode, resize to 32 x 128 x 3; then, in the second half of the table,
rotation by up to 5 degrees, brightness and contrast by up to 20 %, and a blur of half of the images. The peer does it
as torchvision's documentation shows. Every figure is the best of three rounds of `--seconds`, after a warm-up epoch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import cv2
import numpy as np
from torch.utils.data import DataLoader, Dataset

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source
from inkmill.data.types import Text

HEIGHT, WIDTH, BATCH = 32, 128, 256
# With their default ranges: 5 degrees, 20 %, sigma 0.3 to 1.
AUGMENTATION = AugmentationSpec(
    ops=[{"op": "rotate"}, {"op": "brightness"}, {"op": "contrast"}, {"op": "blur", "p": 0.5}]
)


@dataclass
class Crops(Source):
    """JPEG crops in memory."""

    images: list[bytes]
    texts: list[str]
    name: str = "crops"
    fingerprint: str = "crops"

    @classmethod
    def rendered(cls, count: int) -> Crops:
        """Render `count` lines of digits."""
        random = np.random.default_rng(0)
        images, texts = [], []
        for _ in range(count):
            height, width = int(random.integers(24, 65)), int(random.integers(48, 321))
            noise = random.integers(150, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
            picture = cv2.resize(noise, (width, height))
            text = str(random.integers(0, 10**8))[: max(2, width // 30)]
            cv2.putText(picture, text, (4, height - 8), cv2.FONT_HERSHEY_SIMPLEX, height / 40, (20, 30, 40), 2)
            images.append(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
            texts.append(text)
        return cls(images, texts)

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        """Return the key of a sample."""
        return str(index)

    def target(self, index: int) -> Text:
        """Return the text of a sample."""
        return Text(self.texts[index])

    def image(self, index: int) -> bytes:
        """Return the encoded image of a sample."""
        return self.images[index]


class TorchCrops(Dataset[tuple[Any, str]]):
    """The same crops as a torch Dataset, read with PIL and changed with torchvision."""

    def __init__(self, crops: Crops, augment: bool) -> None:
        from torchvision.transforms import v2

        self._crops = crops
        changes = [
            v2.RandomRotation(5),
            v2.ColorJitter(brightness=0.2, contrast=0.2),
            v2.RandomApply([v2.GaussianBlur(5, (0.3, 1.0))], 0.5),
        ]
        self._change = v2.Compose(
            [v2.PILToTensor(), v2.Resize((HEIGHT, WIDTH), antialias=True), *(changes if augment else [])]
        )

    def __len__(self) -> int:
        return len(self._crops)

    def __getitem__(self, index: int) -> tuple[Any, str]:
        """Return the picture and its text."""
        from PIL import Image

        sample = self._crops.get(index)
        return self._change(Image.open(io.BytesIO(sample.image)).convert("RGB")), self._crops.texts[index]


def torch_epochs(crops: Crops, workers: int, augment: bool) -> Callable[[], Iterator[int]]:
    """Return a function that runs through one epoch of a torch DataLoader and yields the sizes of its batches."""
    loader: DataLoader[tuple[Any, str]] = DataLoader(
        TorchCrops(crops, augment), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: (len(images) for images, _ in loader)


def rate(epoch: Callable[[], Iterator[int]], seconds: float) -> float:
    """Return images a second: the best of three rounds of at least `seconds`, after an epoch to warm up."""
    sum(epoch())
    best = 0.0
    for _ in range(3):
        start, images = perf_counter(), 0
        while perf_counter() - start < seconds:
            images += sum(epoch())
        best = max(best, images / (perf_counter() - start))
    return best


def ours(crops: Crops, workers: int, kind: Any, cache: Any, augment: bool, seconds: float) -> float:
    """Return images a second of one of our loaders."""
    augmentation = Augmentation.from_spec(AUGMENTATION) if augment else None
    plan = LoadPlan(crops, Resize(HEIGHT, WIDTH, 3), augmentation, BATCH, cache=CacheConfig(cache))
    with make_loader(plan, workers, kind) as loader:
        return rate(lambda: (len(batch) for batch in loader.views()), seconds)


def rows(samples: int, workers: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure one loader after the other."""
    crops = Crops.rendered(samples)
    kinds = [("inline", 0, "auto"), ("workers", workers, "workers")]
    for augment in (False, True):
        for cache in ("none", "ram"):
            for loader, count, kind in kinds:
                found = ours(crops, count, kind, cache, augment, seconds)
                yield {"loader": loader, "cache": cache, "augment": augment, "images_per_s": round(found)}
        found = rate(torch_epochs(crops, workers, augment), seconds)
        yield {"loader": "torch-pil", "cache": "none", "augment": augment, "images_per_s": round(found)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 16))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    print(f"{machine}, {options.workers} workers, batches of {BATCH}")
    table = []
    for row in rows(options.samples, options.workers, options.seconds):
        table.append(row)
        print(
            f"{row['loader']:10} keep={row['cache']:5} augment={row['augment']!s:6} {row['images_per_s']:>9,} images/s"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
