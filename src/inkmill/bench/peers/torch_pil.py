"""torch's DataLoader with Pillow and torchvision v2: the classic, and the yardstick of this table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from inkmill.bench.contest import Augment, Contestant, Task, upload
from inkmill.bench.peers.pil_v2 import ENGINE, NEEDS, NOTE, PilTransform
from inkmill.data.sources import Source

if TYPE_CHECKING:
    from torch import Tensor


class BytesDataset:
    """A map-style torch dataset: source bytes through a transform."""

    def __init__(self, source: Source, transform: Callable[[bytes], Any]) -> None:
        self._source, self._transform = source, transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._transform(self._source.get(int(index)).image)


def worker_context(task: Task) -> str | None:
    """Return how worker processes start: the source is open here, and an LMDB must not be carried through a fork."""
    return "spawn" if task.workers else None


def data_loader(task: Task, transform: Callable[[bytes], Any]) -> Any:
    """Return a DataLoader as its documentation advises: persistent workers, pinned memory, shuffled.

    Its sampler never ends, which spares it the pause between epochs.
    """
    from torch.utils.data import DataLoader, RandomSampler

    dataset: Any = BytesDataset(task.source, transform)
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


def stream(task: Task) -> Iterator[Tensor]:
    """See `inkmill.bench.contest.Stream`."""
    for batch in data_loader(task, PilTransform(task)):
        yield upload(batch, task.device).permute(0, 2, 3, 1)


def contestant(augment: Augment) -> Contestant:
    """Return this peer's row."""
    return Contestant("torch-pil", stream, ENGINE, augment=augment, needs=NEEDS, note=NOTE)
