"""From any loader to the training device, one batch ahead: while the model works on a batch, the next one is copied.

On a CPU the arrays are only wrapped. A GPU fetches batches itself, on a stream of its own, and can only fetch from
page-locked memory. Worker processes write into memory that lives as long as they do, so that memory is locked once and
each batch goes from where it was assembled straight to the GPU: copying it into other locked memory first would keep
the training process busy for longer than the GPU needs to fetch it. Batches with memory of their own go through two
locked buffers in turn. Needs torch.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.images import HostMemory, Pixels, RaggedImages, RaggedWriter, ragged_bytes
from inkmill.data.loaders.pages import PackedPages
from inkmill.data.loaders.plan import LoadPlan, Stats
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch
from inkmill.errors import MissingExtraError, first_line

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "train", "loading onto a device") from None

try:  # it comes with torch where there are GPUs, except on Windows
    from inkmill.kernels.resize import resize_ragged
except ImportError:
    resize_ragged = None  # type: ignore[assignment]


class _OnDevice(NamedTuple):
    """A batch on the device, the wrapped loader's state after it, and the end of its copy, if there was one."""

    batch: Batch
    state: dict[str, Any]
    copied: torch.cuda.Event | None


class DeviceLoader:
    """A loader whose images are uint8 tensors (BHWC) on `device`; everything else is the wrapped loader's.

    Args:
        loader: where batches come from; closed together with this one.
        device: a torch device or its name.

    Raises:
        MissingExtraError: torch is not installed (as this module is imported).
    """

    def __init__(self, loader: Loader, device: torch.device | str) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self._upload: _Upload | None = None
        self._idle: GpuIdle | None = None
        self._state: dict[str, Any] | None = None  # of the batch handed over last, while others are on their way
        if self.device.type == "cuda":
            self._idle = loader.gpu_idle or GpuIdle(self.device)
            loader.stats.idle_s = 0.0
            self._allow_ragged(loader)

    def _allow_ragged(self, loader: Loader) -> None:
        """Leave resizing to the GPU, where it can do it and nothing else needs resized images."""
        if loader.memory is None or not loader.memory.may_be_ragged:
            return
        reason = why_not_resize(self.device)
        if reason is None:
            loader.memory.allow_ragged()
        elif (note := f"images are resized on the CPU: {reason}") not in loader.stats.notes:
            loader.stats.notes.append(note)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.loader)

    @property
    def plan(self) -> LoadPlan:
        """What is loaded."""
        return self.loader.plan

    @property
    def epoch(self) -> int:
        """The epoch that is, or was last, handed over."""
        return self.loader.epoch

    @property
    def stats(self) -> Stats:
        """The wrapped loader's counts; a batch counts when it is on its way."""
        return self.loader.stats

    def set_epoch(self, epoch: int) -> None:
        """See Loader.set_epoch."""
        self.loader.set_epoch(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer stands: the batch that is on its way does not count yet."""
        return self.loader.state_dict() if self._state is None else self._state

    def differences(self, state: dict[str, Any]) -> list[str]:
        """See Loader.differences."""
        return self.loader.differences(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Loader.load_state_dict."""
        self.loader.load_state_dict(state)
        self._state = None

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch."""
        memory = self.loader.memory
        copies = self.device.type == "cuda" and memory is not None
        batches = self._uploaded(memory) if copies and memory is not None else self._wrapped()
        while True:
            if self._idle is not None:
                self._idle.mark_requested()
            found = next(batches, None)
            if found is None:
                break
            self._state = found.state
            if self._idle is not None:
                self._receive(found, self._idle)
            yield found.batch
        self._state = None

    def _receive(self, found: _OnDevice, idle: GpuIdle) -> None:
        """Make the consumer's stream wait for the copy, and count for how long the GPU had nothing else to do."""
        idle.mark_ready()
        if found.copied is not None:
            consumer = torch.cuda.current_stream(self.device)
            consumer.wait_event(found.copied)
            found.batch.images.record_stream(consumer)  # tells the allocator who uses the memory
        idle.mark_copied()
        waited, copying = idle.take()
        self.stats.idle_s = (self.stats.idle_s or 0.0) + waited
        self.stats.copy_s += copying

    def _wrapped(self) -> Iterator[_OnDevice]:
        """Yield batches that are on the device already, or on a CPU."""
        for batch in self.loader:
            if self.loader.memory is not None:
                batch = replace(batch, images=torch.from_numpy(batch.images).to(self.device))
            yield _OnDevice(batch, self.loader.state_dict(), None)

    def _uploaded(self, memory: HostMemory) -> Iterator[_OnDevice]:
        """Yield batches whose copy has begun, each when the copy of the next one has begun too."""
        loader = self.loader
        upload = self._upload = self._upload or _Upload(self.device, memory.batch_bytes)
        # 1. An iteration that ended early may have left a copy on its way, and the loader begins to write there.
        upload.wait()
        waiting: _OnDevice | None = None
        for number, batch in enumerate(loader.views()):
            # 2. Workers run from the first batch on: lock the memory that they write into.
            if number == 0 and (note := upload.lock(memory.blocks)) is not None:
                loader.stats.notes.append(note)
            # 3. Begin to copy this batch, before the consumer gets the one before.
            images, copied = upload.send(batch.images)
            following = _OnDevice(replace(batch, images=images), loader.state_dict(), copied)
            if waiting is not None:
                yield waiting
                # 4. Asked for the next batch but one, the loader writes over this one: its copy must have ended.
                assert waiting.copied is not None
                waiting.copied.synchronize()
            waiting = following
        if waiting is not None:
            yield waiting

    def release(self) -> None:
        """See Loader.release."""
        self.loader.release()
        self._state = None

    def close(self) -> None:
        """Close the wrapped loader."""
        if self._upload is not None:
            self._upload.unlock()
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@lru_cache(maxsize=8)
def why_not_resize(device: torch.device) -> str | None:
    """Return why a GPU does not resize images, or None.

    Triton needs a C compiler, and a GPU that it knows; and OpenCV may round differently on another processor.
    """
    if resize_ragged is None:
        return "Triton is not installed"
    resize, picture = Resize(24, 50, 3), np.random.default_rng(0).integers(0, 256, (31, 67, 3), np.uint8)
    shape = (1, resize.height, resize.width, resize.channels)
    writer = RaggedWriter(np.empty(ragged_bytes(shape), np.uint8), shape, resize)
    writer.put(0, picture)
    images = writer.close(np.ones(1, np.bool_))
    assert isinstance(images, RaggedImages)
    try:
        # Kernels run on the current device.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            found = resize_ragged(torch.from_numpy(images.memory).to(device), shape).cpu().numpy()
    except Exception as error:  # a compiler's errors share no base
        return f"Triton does not run here ({first_line(error)})"
    return None if np.array_equal(found[0], resize.apply(picture)[0]) else "OpenCV rounds differently here"


class _Upload:
    """Sends batches to a GPU.

    Args:
        device: a CUDA device.
        batch_bytes: size of the largest batch.
    """

    def __init__(self, device: torch.device, batch_bytes: int) -> None:
        self._device = device
        self._batch_bytes = batch_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging: list[_Staging] = []
        self._locked: list[Pixels] = []
        self._refused: list[Pixels] = []
        self._finalizer = weakref.finalize(self, _unlock, self._locked)

    def lock(self, blocks: list[Pixels]) -> str | None:
        """Page-lock the memory that batches will lie in, and unlock what was locked before.

        Args:
            blocks: see HostMemory.

        Returns:
            What a user should know where the system refuses, else None.
        """
        known = {id(block) for block in (*self._locked, *self._refused)}
        if {id(block) for block in blocks} == known:
            return None
        self.unlock()
        for block in blocks:
            error = int(_runtime().cudaHostRegister(block.ctypes.data, block.nbytes, 0))
            if error:
                self._refused = list(blocks)
                _unlock(self._locked)
                with contextlib.suppress(RuntimeError):
                    # Takes the error, which the next kernel would report as its own.
                    torch.zeros(1, device=self._device)
                return (
                    f"{sum(one.nbytes for one in blocks) / 2**30:.1f} GiB of the workers' memory cannot be page-locked"
                    f" (CUDA error {error}): each batch is copied once more on its way to the GPU"
                )
            self._locked.append(block)
        return None

    def send(self, images: Pixels | RaggedImages) -> tuple[torch.Tensor | PackedPages, torch.cuda.Event]:
        """Begin to copy a batch, and to resize it where it is ragged.

        Returns:
            The tensor on the device, and the event after which it may be read and `images` may change.
        """
        with torch.cuda.stream(self._stream):
            sent: torch.Tensor | PackedPages
            if isinstance(images, PackedPages):  # warped when they are augmented
                sent = PackedPages(self._copied(images.memory), images.shape)  # type: ignore[arg-type]
            elif isinstance(images, RaggedImages):
                sent = resize_ragged(self._copied(images.memory), images.shape)
            else:
                sent = self._copied(images)
            return sent, self._stream.record_event()

    def _copied(self, pixels: Pixels) -> torch.Tensor:
        if self._locked:
            return torch.from_numpy(pixels).to(self._device, non_blocking=True)
        if not self._staging:
            self._staging = [_Staging(self._batch_bytes) for _ in range(2)]
        self._staging.reverse()
        return self._staging[0].send(pixels, self._device)

    def wait(self) -> None:
        """Return when all that was sent has arrived."""
        self._stream.synchronize()

    def unlock(self) -> None:
        """Unlock all memory; the next batch needs `lock` again."""
        self.wait()
        _unlock(self._locked)
        self._refused = []


def _unlock(locked: list[Pixels]) -> None:
    for block in locked:
        _runtime().cudaHostUnregister(block.ctypes.data)
    locked.clear()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Staging:
    """Page-locked memory for one batch, used again when its copy has left."""

    def __init__(self, size: int) -> None:
        self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._sent: Any = None

    def send(self, pixels: Pixels, device: torch.device) -> torch.Tensor:
        if self._sent is not None:
            self._sent.synchronize()
        pinned = self._pinned[: pixels.size].view(pixels.shape)
        pinned.copy_(torch.from_numpy(pixels))
        tensor = pinned.to(device, non_blocking=True)
        self._sent = torch.cuda.current_stream(device).record_event()
        return tensor


_Marks = tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Event]


class GpuIdle:
    """How long a GPU was idle before a batch arrived, measured by events in its stream, without waiting for it.

    Python queues work for a GPU and runs ahead of it, so what Python waits for the loader says little: the GPU may be
    busy with its queue all the while. What counts is when the GPU itself comes to the end of the queue. So events are
    recorded among the work: when a batch is requested, when it is ready, and when its copy has ended. The time the GPU
    takes between the first two is idleness for want of data; it is next to nothing where the queue was still long. The
    events are read some batches later, when the GPU has passed them, so nothing ever waits.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._recorded: deque[_Marks] = deque()  # the GPU may not have come there yet
        self._free: list[_Marks] = []
        self._marks: _Marks | None = None

    def mark_requested(self) -> None:
        """A batch is asked for."""
        self._marks = self._free.pop() if self._free else (_new_event(), _new_event(), _new_event())
        self._mark(0)

    def mark_ready(self) -> None:
        """The batch is there."""
        self._mark(1)

    def mark_copied(self) -> None:
        """What the stream must wait for before the batch may be used has been queued."""
        self._mark(2)
        if self._marks is not None:
            self._recorded.append(self._marks)
            self._marks = None

    def mark_generating(self) -> None:
        """The GPU itself makes the batch from here on, which is work: that the batch is ready later says nothing."""
        self.mark_ready()
        self.mark_copied()

    def _mark(self, which: int) -> None:
        if self._marks is not None:
            self._marks[which].record(torch.cuda.current_stream(self._device))

    def take(self) -> tuple[float, float]:
        """Return the seconds for want of data and for want of the copy that have become known since the last call."""
        idle = copy = 0.0
        while self._recorded and self._recorded[0][2].query():  # type: ignore[no-untyped-call]
            marks = self._recorded.popleft()
            idle += marks[0].elapsed_time(marks[1]) / 1000
            copy += marks[1].elapsed_time(marks[2]) / 1000
            self._free.append(marks)
        return idle, copy


def _new_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
