"""How a batch's images lie in host memory: resized, or ragged (as decoded, of any size, for the GPU to resize).

Resizing is a sixth of what a core does for a streamed image, and next to nothing for a GPU. So images that are neither
cached nor augmented on the CPU may go to the GPU as they were decoded, one behind the other; there `kernels.resize`
does what `Resize` does, to the last bit. Images that would leave no room for the rest, and those that take more than
one step to resize, are resized here: a ragged batch may hold both.

Only three places know of it: the writers below, `DeviceLoader`, which allows it, and `Loader.__iter__`, which undoes it
for everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.pipeline.resize import Image, Resize, resize_and_pad

Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int, int]
"""B, height, width, channels."""

_HEADER = 4  # int64 an image: where its pixels begin, its height and width, and the columns that it will fill
_HEADER_BYTES = 8 * _HEADER
_ROOM = 2  # times the size of the resized images: word crops of 20 to 64 rows take 1.6 times that of 32


@dataclass(slots=True)
class HostMemory:
    """The host memory that a loader writes its batches into: the one object that knows where that lies.

    Attributes:
        plan: what is loaded.
        reused: a batch is written over an earlier one; else each has memory of its own.
        may_be_ragged: nothing needs resized images where batches are assembled.
        ragged: batches come as `RaggedImages`; set by `allow_ragged`.
        blocks: the arrays that batches lie in for as long as workers live; an upload page-locks them. None of them
            before the first batch, or where batches have memory of their own.
    """

    plan: LoadPlan
    reused: bool = False
    may_be_ragged: bool = False
    ragged: bool = False
    blocks: list[Pixels] = field(default_factory=list)

    def allow_ragged(self) -> None:
        """Let batches come ragged, where that can be; workers that run already continue as they are."""
        if self.may_be_ragged and not self.blocks:
            self.ragged = True

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        plan, resize = self.plan, self.plan.resize
        if not self.ragged:
            return plan.batch_bytes
        if resize.mode == "page":
            from inkmill.data.loaders.pages import packed_bytes

            return packed_bytes(plan)
        return ragged_bytes((plan.largest_batch, 1, resize.most_pixels, resize.channels))


def ragged_bytes(shape: Shape) -> int:
    """Return the bytes for a ragged batch of images to be resized to `shape`."""
    return shape[0] * _HEADER_BYTES + _ROOM * prod(shape)


@dataclass(frozen=True, slots=True)
class RaggedImages:
    """Images as they were decoded, in one piece of memory.

    Attributes:
        memory: uint8, in one dimension: int64 (B, 4) of where each image begins, its height, its width, and the columns
            that it will fill; then the pixels of one image behind the other.
        shape: of the batch once it is resized and padded.
    """

    memory: Pixels
    shape: Shape

    @property
    def headers(self) -> NDArray[np.int64]:
        """int64 (B, 4); see `memory`."""
        return self.memory[: self.shape[0] * _HEADER_BYTES].view(np.int64).reshape(-1, _HEADER)

    def kept(self) -> Any:
        """Return what a consumer may keep."""
        return self.resized()

    def resized(self) -> Pixels:
        """Return the images resized on the CPU: uint8 (B, H, W, C), memory of their own."""
        out = np.empty(self.shape, np.uint8)
        channels = self.shape[3]
        for target, (begin, height, width, valid) in zip(out, self.headers.tolist(), strict=True):
            image = self.memory[begin : begin + height * width * channels].reshape(height, width, channels)
            resize_and_pad(image, valid, target)
        return out


class ResizedWriter:
    """Writes images at the model's input size.

    Args:
        buffer: uint8, as large as they are or larger; written from its start.
        shape: of the batch.
        resize: how to resize.
    """

    def __init__(self, buffer: Pixels, shape: Shape, resize: Resize) -> None:
        self.images = buffer[: prod(shape)].reshape(shape)
        self._resize = resize

    def put(self, number: int, image: Image) -> int:
        """Write image `number`, uint8 (h, w, C); return how many columns of the input it fills."""
        return self._resize.apply(image, out=self.images[number])[1]

    def close(self, good: NDArray[np.bool_]) -> Pixels | RaggedImages:
        """Return the good images, bool (B,); nothing is written after that."""
        if good.all():
            return self.images
        count = int(good.sum())
        self.images[:count] = self.images[good]
        return self.images[:count]


class RaggedWriter:
    """Writes images as they were decoded; see `RaggedImages`.

    Args:
        buffer: uint8, of `ragged_bytes` or more; written from its start, which is aligned to 8 bytes.
        shape: of the batch once it is resized.
        resize: how it will be.
    """

    def __init__(self, buffer: Pixels, shape: Shape, resize: Resize) -> None:
        self._buffer = buffer
        self._shape = shape
        self._resize = resize
        self._size = ragged_bytes(shape)
        self._used = shape[0] * _HEADER_BYTES
        self._headers = RaggedImages(buffer, shape).headers
        self._resized_bytes = prod(shape[1:])
        self._reserved = shape[0] * self._resized_bytes  # for the images to come, so that each finds room resized

    def put(self, number: int, image: Image) -> int:
        """See ResizedWriter; each image is written once at most."""
        resize = self._resize
        height, width = image.shape[:2]
        valid = resize.valid_width(width, height)
        self._reserved -= self._resized_bytes
        rows = self._shape[1]
        several_steps = height > 2 * rows or width > 2 * valid  # see pipeline.resize
        if several_steps or self._used + image.size + self._reserved > self._size:
            image, _ = resize.apply(image)
            image = image[:, :valid]
            height, width = rows, valid
        begin, self._used = self._used, self._used + image.size
        self._buffer[begin : self._used].reshape(image.shape)[...] = image
        self._headers[number] = begin, height, width, valid
        return valid

    def close(self, good: NDArray[np.bool_]) -> Pixels | RaggedImages:
        """See ResizedWriter."""
        count = int(good.sum())
        if count < len(good):
            self._headers[:count] = self._headers[good]
        return RaggedImages(self._buffer[: self._used], (count, *self._shape[1:]))
