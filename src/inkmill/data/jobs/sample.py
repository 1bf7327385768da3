"""A few samples of a set in memory, spread evenly over it: to measure ranges on, and to compare two models with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Concat, Source
from inkmill.data.types import Target
from inkmill.errors import DataError

MAX_BYTES = 1 << 29
"""Memory of the images of one set; fewer are read of large ones."""

Image = NDArray[np.uint8]


@dataclass
class SampleSet:
    """Decoded samples.

    Attributes:
        origin: where they come from, for people.
        images: uint8 (height, width, channels) each; resized ones may still differ in width.
        targets: one for each image; none where the images were found without labels, or rendered.
        sizes: width and height of each image as it was decoded.
        unreadable: how many images could not be decoded, and are left out.
    """

    origin: str
    images: list[Image] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    unreadable: int = 0

    def batches(self, size: int, first: int | None = None) -> Iterator[Image]:
        """Yield all images, (B, height, width, channels); images of one size come together.

        Args:
            size: B, at most.
            first: B of the first batch of each size, where it is to be another.
        """
        first = first or size
        by_size: dict[tuple[int, ...], list[Image]] = defaultdict(list)
        for image in self.images:
            by_size[image.shape].append(image)
        for images in by_size.values():
            yield np.stack(images[:first])
            for start in range(first, len(images), size):
                yield np.stack(images[start : start + size])

    def sort_by_size(self) -> None:
        """Sort the samples by the size of their images, so that `batches` yields them in their own order."""
        order = sorted(range(len(self.images)), key=lambda number: self.images[number].shape[1::-1])
        self.images = [self.images[number] for number in order]
        self.targets = [self.targets[number] for number in order] if self.targets else []
        self.sizes = [self.sizes[number] for number in order] if self.sizes else []

    def counted(self) -> str:
        """Return "300 images of words/ (2 could not be decoded)"."""
        lost = f" ({self.unreadable:,} could not be decoded)" if self.unreadable else ""
        return f"{len(self.images):,} images of {self.origin}{lost}"


def read_evenly(
    sources: Sequence[Source],
    count: int,
    channels: Literal[1, 3],
    prepare: Callable[[Image], Image] = lambda image: image,
    origin: str | None = None,
) -> SampleSet:
    """Return up to `count` samples, in order, spread evenly over all sources together.

    Args:
        sources: one or more.
        count: at most so many; images that cannot be decoded are among them.
        channels: 1 decodes to gray, 3 to RGB.
        prepare: is given each decoded image and returns the one that is kept.
        origin: by default the sources' names.

    Raises:
        DataError: a set is missing, or none of the images can be decoded.
    """
    origin = origin or ", ".join(source.name for source in sources)
    source = sources[0] if len(sources) == 1 else Concat(sources)
    samples, count = SampleSet(origin), min(count, len(source))
    for index in (np.arange(count) * len(source) // max(1, count)).tolist():
        try:
            sample = source.get(index)
            image = decode(sample.image, channels)
            samples.images.append(prepare(image))
            samples.sizes.append((image.shape[1], image.shape[0]))
        except DataError:  # damaged, or its file is not there
            samples.unreadable += 1
        else:
            samples.targets.append(sample.target)
    if not samples.images:
        raise DataError(f"{origin}: none of {count:,} images can be decoded; `inkmill check` shows why")
    return samples


def read_resized(sources: Sequence[Source], count: int, resize: Resize, origin: str | None = None) -> SampleSet:
    """Return `read_evenly` of images brought to a model's input; fewer where they would need more than MAX_BYTES."""
    most = max(1, MAX_BYTES // (resize.most_pixels * resize.channels))
    return read_evenly(sources, min(count, most), resize.channels, lambda image: resize.apply(image)[0], origin)
