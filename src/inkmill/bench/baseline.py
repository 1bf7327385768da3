"""The baseline: torch DataLoader with Pillow and torchvision v2, one image at a time, as most OCR training code does.

The transform and the data loader are those of their documentation; benchmarks/peers/ uses them for other libraries.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask, upload
from inkmill.bench.workload import strong_ranges
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor

BASELINE = "torch-pil"
ENGINE = "PIL + torchvision v2"
NOTE = "one affine for four ops; black borders; JPEG before blur and noise"


def baseline_case(augment: Augment) -> BenchmarkCase:
    """Return the row that all others are compared with."""
    return BenchmarkCase(BASELINE, stream, ENGINE, augment=augment, note=NOTE)


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    for batch in data_loader(task, PilTransform(task)):
        yield upload(batch, task.device).permute(0, 2, 3, 1)


def data_loader(task: LoadTask, transform: Callable[[bytes], Any]) -> Any:
    """Return a DataLoader as its documentation advises: persistent workers, pinned memory, shuffled."""
    from torch.utils.data import DataLoader, RandomSampler

    dataset: Any = BytesDataset(task.source, transform)
    # A sampler that never ends spares torch the pause between epochs.
    sampler = RandomSampler(dataset, replacement=True, num_samples=2**40)
    return DataLoader(
        dataset,
        task.batch_size,
        sampler=sampler,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        multiprocessing_context=worker_context(task),
        pin_memory=task.device.startswith("cuda"),
    )


def worker_context(task: LoadTask) -> str | None:
    """Return how worker processes start: the source is open here, and an LMDB must not be carried through a fork."""
    return "spawn" if task.workers else None


class BytesDataset:
    """A map-style torch dataset: encoded bytes of a source through a transform."""

    def __init__(self, source: Source, transform: Callable[[bytes], Any]) -> None:
        self._source = source
        self._transform = transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._transform(self._source.get(int(index)).image)


class PilTransform:
    """Encoded bytes to a uint8 tensor (3, H, W); picklable, so that worker processes can have it."""

    def __init__(self, task: LoadTask) -> None:
        from torchvision.transforms import v2

        resize = v2.Resize((task.resize.height, task.resize.width))
        on_image, on_tensor = _strong() if task.augment == "strong" else ([], [])
        self._transform = v2.Compose([resize, *on_image, v2.PILToTensor(), *on_tensor])

    def __call__(self, data: bytes) -> Tensor:
        """Decode and transform one image."""
        from PIL import Image

        result: Tensor = self._transform(Image.open(io.BytesIO(data)).convert("RGB"))
        return result


class PilJpeg:
    """JPEG artefacts by Pillow: torchvision 0.29 deprecates its own codec and warns at every start."""

    def __init__(self, quality: tuple[float, float]) -> None:
        self._low, self._high = (int(end) for end in quality)

    def __call__(self, image: Any) -> Any:
        """Compress a Pillow image and open it again."""
        from PIL import Image

        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=random.randint(self._low, self._high))
        return Image.open(packed).convert("RGB")


def _strong() -> tuple[list[Any], list[Any]]:
    """Return the steps on the Pillow image, and those that torchvision does better, or only, on tensors."""
    from torchvision.transforms import v2

    s = strong_ranges()

    def sometimes(p: float, step: Any) -> Any:
        return v2.RandomApply([step], p)

    shift, shear = (s.shift.x[1], s.shift.y[1]), (*s.shear.degrees_x, *s.shear.degrees_y)
    affine = v2.RandomAffine(s.rotate.degrees, shift, s.scale.factor, shear, v2.InterpolationMode.BILINEAR)
    on_image = [
        sometimes(s.affine_p, affine),
        v2.RandomPerspective(2 * s.corner_shift, s.perspective.p),
        sometimes(s.brightness.p, v2.ColorJitter(brightness=s.brightness.factor)),
        sometimes(s.contrast.p, v2.ColorJitter(contrast=s.contrast.factor)),
        sometimes(s.saturation.p, v2.ColorJitter(saturation=s.saturation.factor)),
        sometimes(s.hue.p, v2.ColorJitter(hue=s.hue_share)),
        v2.RandomGrayscale(s.gray.p),
        v2.RandomInvert(s.invert.p),
        sometimes(s.jpeg.p, PilJpeg(s.jpeg.quality)),
    ]
    # The area that both of our rectangles have together, as a share of an image four times as wide as high.
    erased = tuple(2 * side**2 / 4 for side in s.cutout.size)
    on_tensor = [
        sometimes(s.blur.p, v2.GaussianBlur(s.blur_side, s.blur.sigma)),
        sometimes(s.noise.p, v2.GaussianNoise(sigma=sum(s.noise_share) / 2)),
        v2.RandomErasing(s.cutout.p, erased),
    ]
    return on_image, on_tensor
