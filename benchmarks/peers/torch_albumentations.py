"""torch's DataLoader with OpenCV and Albumentations: the classic for those who found Pillow too slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from inkmill.bench.baseline import data_loader
from inkmill.bench.cases import Augment, BenchmarkCase, LoadTask, upload
from inkmill.bench.workload import strong_ranges

if TYPE_CHECKING:
    from torch import Tensor


class AlbumentationsTransform:
    """Encoded bytes to a uint8 array (H, W, 3)."""

    def __init__(self, task: LoadTask) -> None:
        import albumentations as album

        resize = album.Resize(task.resize.height, task.resize.width)
        self._transform = album.Compose([resize, *(_strong() if task.augment == "strong" else ())])

    def __call__(self, data: bytes) -> Any:
        """Decode and transform one image."""
        cv2.setNumThreads(0)  # in the worker process: one core each, as Albumentations advises
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        return self._transform(image=image)["image"]


def _strong() -> list[Any]:
    import albumentations as album

    s = strong_ranges()
    same, borders = (1.0, 1.0), cv2.BORDER_REPLICATE

    def jitter(p: float, **changes: tuple[float, float]) -> Any:
        none = {"brightness": same, "contrast": same, "saturation": same, "hue": (0.0, 0.0)}
        return album.ColorJitter(**{**none, **changes}, p=p)

    return [
        album.Affine(
            scale={"x": s.scale.factor, "y": s.scale.factor},
            translate_percent={"x": s.shift.x, "y": s.shift.y},
            rotate=s.rotate.degrees,
            shear={"x": s.shear.degrees_x, "y": s.shear.degrees_y},
            border_mode=borders,
            p=s.affine_p,
        ),
        album.Perspective((0.0, s.corner_shift), border_mode=borders, p=s.perspective.p),
        jitter(s.brightness.p, brightness=s.brightness.factor),
        jitter(s.contrast.p, contrast=s.contrast.factor),
        jitter(s.saturation.p, saturation=s.saturation.factor),
        jitter(s.hue.p, hue=s.hue_share),
        album.ToGray(p=s.gray.p),
        album.InvertImg(p=s.invert.p),
        album.GaussianBlur(blur_limit=0, sigma_limit=s.blur.sigma, p=s.blur.p),
        album.GaussNoise(s.noise_share, p=s.noise.p),
        album.ImageCompression(quality_range=tuple(int(q) for q in s.jpeg.quality), p=s.jpeg.p),
        album.CoarseDropout(
            num_holes_range=(s.cutout.count, s.cutout.count),
            hole_height_range=s.cutout.size,
            hole_width_range=tuple(side / 4 for side in s.cutout.size),
            fill="random_uniform",
            p=s.cutout.p,
        ),
    ]


def stream(task: LoadTask) -> Iterator[Tensor]:
    """See `inkmill.bench.cases.Stream`."""
    for batch in data_loader(task, AlbumentationsTransform(task)):
        yield upload(batch, task.device)


def case(augment: Augment) -> BenchmarkCase:
    """Return this peer's row."""
    note = "one affine for four ops"
    return BenchmarkCase("torch-albumentations", stream, "OpenCV + Albumentations", augment=augment, note=note)
