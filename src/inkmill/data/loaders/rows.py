"""Where a batch's pictures are written: resized, or as they were decoded, for the GPU that trains to fit them.

Fitting is a sixth of what a core does for a streamed picture, and next to nothing for a GPU. So what is neither kept
nor augmented on the CPU goes to the GPU as it was decoded, one picture behind the other, whatever their sizes; there
`fit_triton` does what `Resize` does, to the last bit. Pictures that would not leave room for the rest, and those that
take more than one step to fit, are resized here: a batch may hold both.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inkmill.data.loaders.plan import LoadPlan
from inkmill.data.pipeline.resize import Image, Resize, resize_and_pad

Shape = tuple[int, int, int, int]
"""B, height, width, channels."""

NUMBERS = 4
"""What is known of a picture as it was decoded: where it begins, its rows and columns, and the columns it will fill."""

_NUMBER_BYTES = 8
_ROOM = 2  # times the size of the resized pictures: word crops of 20 to 64 rows take 1.6 times that of 32


def ragged_bytes(shape: Shape) -> int:
    """Return the memory for a batch of pictures to be resized to `shape`."""
    return shape[0] * NUMBERS * _NUMBER_BYTES + _ROOM * prod(shape)


def batch_bytes(plan: LoadPlan, fits: bool) -> int:
    """Return the memory for the largest batch of a plan, resized or not."""
    if fits:
        return plan.batch_bytes
    return ragged_bytes((plan.batch_size, plan.resize.height, plan.resize.width, plan.resize.channels))


def resize_here(written: NDArray[np.uint8], shape: Shape) -> NDArray[np.uint8]:
    """Fit what `RaggedImages` wrote, on the CPU; return uint8 (B, H, W, C), memory of its own."""
    out = np.empty(shape, np.uint8)
    numbers = written[: shape[0] * NUMBERS * _NUMBER_BYTES].view(np.int64).reshape(-1, NUMBERS)
    for row, (begin, rows, columns, valid) in zip(out, numbers.tolist(), strict=True):
        image = written[begin : begin + rows * columns * shape[3]].reshape(rows, columns, shape[3])
        resize_and_pad(image, valid, row)
    return out


class Rows(Protocol):
    """Memory for the pictures of a batch."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """What was written: uint8."""
        ...

    @property
    def width(self) -> int:
        """Columns of the batch once it is resized."""
        ...

    def put(self, row: int, image: Image) -> int:
        """Write a picture, uint8 (h, w, C); return how many columns of the input it fills."""
        ...

    def only(self, good: NDArray[np.bool_]) -> None:
        """Leave out the others; nothing is written after that."""
        ...


class ResizedImages:
    """Pictures of the model's size.

    Args:
        buffer: uint8, as large as they are or larger; written from its start.
        shape: of the batch.
        resize: how it is resized.

    Attributes:
        images: uint8 (B, H, W, C).
        width: W.
    """

    def __init__(self, buffer: NDArray[np.uint8], shape: Shape, resize: Resize) -> None:
        self.images = buffer[: prod(shape)].reshape(shape)
        self.width, self._resize = shape[2], resize

    def put(self, row: int, image: Image) -> int:
        """See Rows."""
        return self._resize.apply(image, out=self.images[row])[1]

    def only(self, good: NDArray[np.bool_]) -> None:
        """See Rows."""
        count = int(good.sum())
        self.images[:count] = self.images[good]
        self.images = self.images[:count]


class RaggedImages:
    """Pictures of any size, one behind the other, after int64 (B, NUMBERS) about them.

    Args:
        buffer: uint8, of `unfitted_bytes` or more; written from its start, which is aligned to 8 bytes.
        shape: of the batch once it is resized.
        resize: how it will be.

    Attributes:
        width: columns it will have.
    """

    def __init__(self, buffer: NDArray[np.uint8], shape: Shape, resize: Resize) -> None:
        self.width, self._buffer, self._resize = shape[2], buffer, resize
        self._size = ragged_bytes(shape)
        self._used = shape[0] * NUMBERS * _NUMBER_BYTES
        self._numbers = buffer[: self._used].view(np.int64).reshape(-1, NUMBERS)
        self._resized = prod(shape[1:])
        self._left = shape[0] * self._resized  # of the room, for the rows to come

    @property
    def images(self) -> NDArray[np.uint8]:
        """Everything that was written, in one dimension."""
        return self._buffer[: self._used]

    def put(self, row: int, image: Image) -> int:
        """See Rows; each row is written once at most."""
        resize, (rows, columns) = self._resize, image.shape[:2]
        valid = resize.valid_width(columns, rows)
        self._left -= self._resized
        several_steps = rows > 2 * resize.height or columns > 2 * valid  # see fit.resize
        if several_steps or self._used + image.size + self._left > self._size:
            image, _ = resize.apply(image)
            image = image[:, :valid]
            rows, columns = resize.height, valid
        begin, self._used = self._used, self._used + image.size
        self._buffer[begin : self._used].reshape(image.shape)[...] = image
        self._numbers[row] = begin, rows, columns, valid
        return valid

    def only(self, good: NDArray[np.bool_]) -> None:
        """See Rows."""
        self._numbers[: good.sum()] = self._numbers[good]
