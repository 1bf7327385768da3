"""Pillow and torchvision v2, one picture at a time: what most OCR training code does, and several peers here share."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Any

from inkmill.bench.contest import Task
from inkmill.bench.strong import Strength

if TYPE_CHECKING:
    from torch import Tensor

NEEDS = (("torch", "torch"), ("torchvision", "torchvision"), ("PIL", "pillow"))
ENGINE = "PIL + torchvision v2"
NOTE = "one affine for four changes; black borders; JPEG before blur and noise"


class PilTransform:
    """Encoded bytes to a uint8 tensor (3, H, W); picklable, so that worker processes can have it."""

    def __init__(self, task: Task) -> None:
        from torchvision.transforms import v2

        resize = v2.Resize((task.resize.height, task.resize.width))
        before, after = _strong() if task.augment == "strong" else ([], [])
        self._transform = v2.Compose([resize, *before, v2.PILToTensor(), *after])

    def __call__(self, data: bytes) -> Tensor:
        """Decode and transform one picture."""
        from PIL import Image

        result: Tensor = self._transform(Image.open(io.BytesIO(data)).convert("RGB"))
        return result


class PilJpeg:
    """JPEG's marks, by Pillow: torchvision 0.29 deprecates its own codec and warns at every start."""

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

    s, bilinear = Strength(), v2.InterpolationMode.BILINEAR

    def sometimes(p: float, step: Any) -> Any:
        return v2.RandomApply([step], p)

    shift, shear = (s.shift.x[1], s.shift.y[1]), (*s.shear.degrees_x, *s.shear.degrees_y)
    on_picture = [
        sometimes(s.affine_p, v2.RandomAffine(s.rotate.degrees, shift, s.scale.factor, shear, bilinear)),
        v2.RandomPerspective(2 * s.corner_shift, s.perspective.p),
        sometimes(s.brightness.p, v2.ColorJitter(brightness=s.brightness.factor)),
        sometimes(s.contrast.p, v2.ColorJitter(contrast=s.contrast.factor)),
        sometimes(s.saturation.p, v2.ColorJitter(saturation=s.saturation.factor)),
        sometimes(s.hue.p, v2.ColorJitter(hue=s.hue_share)),
        v2.RandomGrayscale(s.gray.p),
        v2.RandomInvert(s.invert.p),
        sometimes(s.jpeg.p, PilJpeg(s.jpeg.quality)),
    ]
    size = s.cutout.size
    on_tensor = [
        sometimes(s.blur.p, v2.GaussianBlur(s.blur_side, s.blur.sigma)),
        sometimes(s.noise.p, v2.GaussianNoise(sigma=sum(s.noise_share) / 2)),
        # the area that both rectangles of ours have together, as a share of a picture four times as wide as high
        v2.RandomErasing(s.cutout.p, (2 * size[0] ** 2 / 4, 2 * size[1] ** 2 / 4)),
    ]
    return on_picture, on_tensor
