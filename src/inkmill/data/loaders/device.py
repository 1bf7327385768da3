"""From any loader to the training device, one batch ahead: while the model works on a batch, the next one is copied.

How it is copied is in upload.py. On a CPU the arrays are only wrapped. The values are the loader's own. Where nothing
needs resized pictures before, a GPU fits them: see rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.plan import LoadPlan, Stats
from inkmill.data.types import Batch
from inkmill.errors import MissingExtraError

if TYPE_CHECKING:
    import torch

    from inkmill.data.loaders.gpu_idle import GpuIdle
    from inkmill.data.loaders.upload import Upload

_Uploaded = tuple[Batch, dict[str, Any], "torch.cuda.Event"]
"""A batch, the wrapped loader's state after it, and the end of its copy."""
_Item = tuple[Batch, dict[str, Any], "torch.cuda.Event | None"]
"""The same; None where nothing was copied."""


class DeviceLoader:
    """A loader whose images are uint8 tensors (BHWC) on `device`; everything else is the wrapped loader's.

    Args:
        loader: where batches come from; closed together with this one.
        device: a torch device or its name.

    Raises:
        MissingExtraError: torch is not installed.
    """

    def __init__(self, loader: Loader, device: torch.device | str) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "train", "loading onto a device") from None
        self.loader = loader
        self.device = torch.device(device)
        self._upload: Upload | None = None
        self._idle: GpuIdle | None = None
        if self.device.type == "cuda":
            from inkmill.data.loaders.gpu_idle import GpuIdle

            self._idle = GpuIdle(self.device)
            loader.stats.idle_s = 0.0
            if loader.on_device:
                loader.before_queueing = self._idle.makes
            self._leave_ragged(loader)
        self._state: dict[str, Any] | None = None  # of the batch handed over last, while others are on their way

    def _leave_ragged(self, loader: Loader) -> None:
        """Have the GPU fit what the loader need not, where it can."""
        from inkmill.data.loaders.upload import why_not_resize

        reason = why_not_resize(self.device)
        if reason is None:
            loader.leave_ragged()
            return
        note = f"pictures are resized on the CPU: {reason}"
        if loader.could_stay_ragged and note not in loader.stats.notes:
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
        copies = self.device.type == "cuda" and not self.loader.on_device
        batches = self._uploaded() if copies else self._wrapped()
        while True:
            if self._idle is not None:
                self._idle.asks()
            item = next(batches, None)
            if item is None:
                break
            batch, self._state, copied = item
            if self._idle is not None:
                self._receive(batch, copied, self._idle)
            yield batch
        self._state = None

    def _receive(self, batch: Batch, copied: torch.cuda.Event | None, idle: GpuIdle) -> None:
        """Make the consumer's stream wait for the copy, and count for how long the GPU had nothing else to do."""
        import torch

        idle.gets()
        if copied is not None:
            consumer = torch.cuda.current_stream(self.device)
            consumer.wait_event(copied)
            batch.images.record_stream(consumer)  # tells the allocator who uses the memory
        idle.goes_on()
        stats, (waited, copying) = self.stats, idle.take()
        stats.idle_s = (stats.idle_s or 0.0) + waited
        stats.copy_s += copying

    def _wrapped(self) -> Iterator[_Item]:
        import torch

        for batch in self.loader:
            if not self.loader.on_device:
                batch = replace(batch, images=torch.from_numpy(batch.images).to(self.device))
            yield batch, self.loader.state_dict(), None

    def _uploaded(self) -> Iterator[_Item]:
        from inkmill.data.loaders.upload import Upload

        loader = self.loader
        upload = self._upload = self._upload or Upload(self.device, loader.batch_bytes)
        upload.wait()  # the end of an iteration may have left a copy on its way, and the loader begins to write there
        waiting: _Uploaded | None = None
        for number, batch in enumerate(loader.views()):
            if number == 0 and (note := upload.lock(loader.memory)) is not None:  # workers run from the first batch on
                loader.stats.notes.append(note)
            images, copied = upload.send(batch.images, batch.ragged)
            batch = replace(batch, images=images, ragged=None)
            following = batch, loader.state_dict(), copied
            if waiting is not None:
                yield waiting
                waiting[2].synchronize()  # the loader writes there again once it is asked for the next batch but one
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
