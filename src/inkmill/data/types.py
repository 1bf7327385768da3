"""What a data set gives (Sample), what a model is asked for (Target), and what a loader hands over (Batch)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import DataError

if TYPE_CHECKING:
    from inkmill.data.augment.params import DeferredAugmentation


@dataclass(frozen=True, slots=True)
class Text:
    """The characters in an image of text."""

    value: str


@dataclass(frozen=True, slots=True)
class Polygons:
    """Regions of an image, in pixels of the encoded image as a viewer shows it (EXIF rotation applied).

    Attributes:
        points: one (N, 2) float32 array of x, y a region; N >= 3.
        ignore: True for a region that is neither right nor wrong to find.
        texts: what each region says, where known, else empty strings.
    """

    points: tuple[NDArray[np.float32], ...]
    ignore: tuple[bool, ...]
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Labels:
    """The class names of an image, any number of them.

    Attributes:
        names: the classes that it shows; every other class is absent.
        unknown: the classes of which nobody knows whether it shows them.
    """

    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()


Target = Text | Polygons | Labels


class Texts(Sequence[Target]):
    """The targets of a batch of text, held as strings: a loader makes a million a second, and few are looked at.

    Attributes:
        values: the characters in each image.
    """

    __slots__ = ("values",)

    def __init__(self, values: list[str]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, row: int) -> Text: ...
    @overload
    def __getitem__(self, row: slice) -> Texts: ...
    def __getitem__(self, row: int | slice) -> Text | Texts:
        return Texts(self.values[row]) if isinstance(row, slice) else Text(self.values[row])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return self.values == other.values
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({self.values!r})"


def as_targets(targets: Iterable[Target]) -> Sequence[Target]:
    """Return targets as a sequence, as `Texts` where all are text."""
    targets = list(targets)
    values = [target.value for target in targets if type(target) is Text]
    return Texts(values) if targets and len(values) == len(targets) else targets


@dataclass(frozen=True, slots=True)
class Sample:
    """One encoded image with its target.

    Attributes:
        key: unique within its source and stable: a relative path, an LMDB key, a member of a shard.
        image: the file's bytes, as they are on disk.
        target: what a model should answer.
    """

    key: str
    image: bytes
    target: Target


@dataclass(slots=True)
class Batch:
    """One batch as a loader hands it over. In the last batch of an exact epoch samples may be missing, never repeated.

    Attributes:
        images: uint8 BHWC, RGB or gray (C = 3 or 1), resized and augmented, not normalised: a NumPy array, or a torch
            tensor on the training device.
        widths: int32 (B,), columns of each image that hold picture; the rest is padding.
        targets: the samples' targets, in order.
        keys: the samples' keys, in order.
        index: int64 (B,), positions in the source.
        augmentation: what the training device is still to do to the images; None where they are augmented.
        sizes: int32 (B, 2), width and height of whole pictures as they are displayed; None of other inputs. Their
            targets stay in pixels of the picture.
        matrix: float32 (B, 3, 3), from a pixel of the whole picture to the pixel of the input that shows it, centres at
            whole numbers; NumPy's or a tensor. To pixels of the kept picture where the device is still to augment.
        window: float64 (4, B), which part of each kept picture the device is still to warp (see `augment.windows`).
    """

    images: Any
    widths: NDArray[np.int32]
    targets: Sequence[Target]
    keys: list[str]
    index: NDArray[np.int64]
    augmentation: DeferredAugmentation | None = None
    sizes: NDArray[np.int32] | None = None
    matrix: Any = None
    window: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def texts(self) -> list[str]:
        """The targets as strings.

        Raises:
            DataError: a target is something else than text; nothing is left out.
        """
        if isinstance(self.targets, Texts):
            return self.targets.values
        texts = []
        for key, target in zip(self.keys, self.targets, strict=True):
            if not isinstance(target, Text):
                raise DataError(f"{key} has {type(target).__name__.lower()} as its target where text is expected")
            texts.append(target.value)
        return texts
