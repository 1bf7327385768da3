"""The DALI loader: NVIDIA's pipeline does the work per pixel, inkmill says which samples and which numbers.

DALI decodes, resizes and augments in its own threads or on the GPU, and works ahead. With `decode_on="mixed"` pixels
never touch the CPU.

A pipeline dies of an image that its decoder refuses, without saying which. The loader then builds a new one, has the
batches in flight decoded without DALI, which finds the sample, and does what the plan says about bad samples.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from inkmill import shared_memory as shared
from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.dali import reason_of
from inkmill.data.loaders.dali.graph import AlbumentationsEngine, DaliEngine, Placement, build_pipeline
from inkmill.data.loaders.dali.prefetch import PrefetchQueue
from inkmill.data.loaders.dali.reader import DaliReader
from inkmill.data.loaders.dali.staging import BatchStager
from inkmill.data.loaders.plan import LoadPlan
from inkmill.errors import ConfigError, DataError

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn


class DaliLoader(Loader):
    """Loads with NVIDIA DALI.

    Images come as uint8 BHWC: where `device` is a GPU a torch tensor on it, in order with its current stream; else a
    NumPy array. Where the plan has a cache, pictures are decoded and resized as for every other loader, and DALI only
    augments.

    Args:
        plan: what to load.
        workers: DALI's threads; for every four of them a process stages batches, one at least and three at most.
        augment_on: "dali": DALI's operators, which run with resizing on the GPU where there is one; "cpu": the same on
            the CPU; "gpu": the consumer, by torch.
        device: where batches end: torch's device or its name.
        decode_on: "cpu", or "mixed" for NVIDIA's JPEG decoder on the GPU.
        dali_reader: "dali" leaves reading and order of a shuffled plan to DALI's own reader of tar shards, in one
            process; see reader.py. Validation sets, which are not shuffled, are of any kind.

    Raises:
        ConfigError: something is to run on a GPU, and there is none, or it runs on a CPU only; DALI is to read what its
            reader cannot.
    """

    def __init__(
        self,
        plan: LoadPlan,
        workers: int = 1,
        augment_on: AugmentOn = "dali",
        device: Any = "cpu",
        decode_on: Literal["cpu", "mixed"] = "cpu",
        dali_reader: Literal["inkmill", "dali"] = "inkmill",
    ) -> None:
        if plan.resize.mode == "aspect":
            raise ConfigError(
                "loader=dali resizes to one height, and input_resize=aspect has several: use loader=workers"
            )
        if plan.resize.mode == "page":
            raise ConfigError(
                "DALI resizes to one input size, and whole pictures have their own: use loader=workers, or cache=gpu"
            )
        super().__init__(plan, "gpu" if augment_on == "gpu" else "dali")  # "cpu" is OpenCV elsewhere, never here
        # 1. Where each stage runs. Foreign augmentation code runs on the CPU only, and resizing comes before it.
        kind, _, number = str(device).partition(":")
        device_id = int(number or 0) if kind == "cuda" else None
        on_cpu = device_id is None or augment_on == "cpu" or plan.pipeline is not None
        if decode_on == "mixed" and on_cpu:
            raise ConfigError(
                "decode_on=mixed leaves pictures on the GPU, and without one, with augment_on=cpu, or with an"
                " Albumentations pipeline they are wanted on the CPU: use decode_on=cpu"
            )
        if device_id is not None:
            self.memory = None
        decode: Literal["cpu", "mixed", "host"] = "host" if self._cache is not None else decode_on
        self._placement = Placement(decode, "cpu" if on_cpu else "gpu", device_id, max(1, workers))
        # 2. Who reads, in which order, and who stages.
        self._reader = DaliReader(plan) if dali_reader == "dali" and plan.shuffle else None
        self.workers = 1 if self._reader is not None else min(max(workers // 4, 1), 3)
        blocked = shared.allocate(len(plan.source))
        self._blocked_mask = np.frombuffer(blocked.buffer, np.uint8)
        self._stager = BatchStager(plan, self._cache, blocked, self.augment_on, self._reader)
        self._queue = PrefetchQueue(self._stager, self.workers, len(self), self.stats.notes)
        self._pipeline: Any = None
        self._staged_without: set[int] = set()  # samples that were blocked when the batches in flight were staged

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        # What is in flight is used where it is what comes next: an epoch's first batches are staged in the one before.
        blocked = set(self._blocked.values())
        if self._pipeline is None:
            self._start(epoch, first)
        elif self._queue.following() != (epoch, first) or blocked != self._staged_without:
            self._queue.seek(epoch, first)
        self._staged_without = blocked
        for _ in range(first, len(self)):
            yield self._next()

    def _start(self, epoch: int, first: int, fallbacks: int = 0) -> None:
        self._drop_pipeline()
        self._queue.in_flight.clear()
        self._queue.seek(epoch, first, fallbacks)
        names, plan, place = self._stager.input_names(), self.plan, self._placement
        try:
            self._pipeline = build_pipeline(self._queue, names, plan.batch_size, plan.resize, self._engine(), place)
        except RuntimeError as error:  # no driver, or too old a one, or no memory left
            raise ConfigError(f"DALI does not start here: {reason_of(error)} (set dataset.loader=workers)") from error

    def _engine(self) -> DaliEngine | AlbumentationsEngine | None:
        plan = self.plan
        if plan.pipeline is not None:
            return AlbumentationsEngine(plan.pipeline)
        if plan.numbers is None or self.augment_on == "gpu":
            return None
        largest = plan.resize.height * plan.resize.width * plan.resize.channels
        return DaliEngine(plan.numbers.layout, plan.resize.channels, largest, self._placement.augment)

    def _next(self) -> CollatedBatch:
        while True:
            # 1. DALI gives the images of the oldest batch in flight.
            images = self._run()
            staged = self._queue.in_flight.popleft()
            # 2. Drop those staged before the position was changed; DALI cannot be told to forget them.
            if staged.stale:
                continue
            # 3. Report what could not be staged.
            if staged.error is not None:
                raise staged.error
            # 4. Bring images and samples together; a batch without samples went through DALI as one black picture.
            assert staged.collated is not None
            staged.collated.batch.images = images[: len(staged.collated.batch)]
            return staged.collated

    def _run(self) -> Any:
        """Return the images of the oldest batch in flight; a pipeline that dies is replaced once."""
        try:
            return self._output()
        except RuntimeError as error:
            lost = [staged for staged in self._queue.in_flight if not staged.stale]
            if not lost or all(staged.fallback for staged in lost):
                raise DataError(f"DALI failed on {self.plan.source.name}: {reason_of(error)}") from error
            self.stats.notes.append(
                f"DALI's pipeline died at batch {lost[0].number} of epoch {lost[0].epoch} ({reason_of(error)});"
                f" it was built again, and {len(lost)} batches were decoded without it"
            )
            self._start(lost[0].epoch, lost[0].number, len(lost))
            return self._run()

    def _output(self) -> Any:
        if self._placement.device_id is None:
            (out,) = self._pipeline.run()
            return out.as_array()  # a copy
        import torch

        stream = torch.cuda.current_stream(self._placement.device_id)
        (out,) = self._pipeline.run(stream.cuda_stream)
        return torch.utils.dlpack.from_dlpack(out.as_tensor())

    def _drop_pipeline(self) -> None:
        if self._pipeline is not None:
            try:
                while not self._pipeline.empty():  # work in flight may need this thread's interpreter lock to end
                    self._pipeline.outputs()
            except RuntimeError:
                pass  # it is dead already
        self._pipeline = None

    def close(self) -> None:
        """Give back DALI's threads and memory; iterating again takes them again."""
        self._drop_pipeline()
        self._queue.close()
        super().close()

    @cached_property
    def _identity(self) -> dict[str, Any]:
        identity = super()._identity
        if self._reader is None:
            return identity
        return identity | {"shuffle": f"by DALI's reader, for {self.plan.world_size} ranks"}
