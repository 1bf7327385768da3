"""The DALI loader: NVIDIA's pipeline does the work per pixel, inkmill says which samples and which numbers.

DALI decodes, resizes and augments in its own threads or on the GPU, and works ahead. With `decode="mixed"` and
`augment="gpu"` pixels never touch the CPU.

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
from inkmill.data.loaders.dali.staging import BatchStager, StagedBatch
from inkmill.data.loaders.plan import LoadPlan
from inkmill.errors import ConfigError, DataError, MissingExtraError
from inkmill.machine import cores

if TYPE_CHECKING:
    from inkmill.data.loaders import AugmentOn


class DaliLoader(Loader):
    """Loads with NVIDIA DALI.

    Images come as uint8 BHWC: with `device_id` a torch tensor on that GPU, in order with the current stream; without, a
    NumPy array. Where the plan has a cache, pictures are decoded and resized as for every other loader, and DALI only
    augments.

    Args:
        plan: what to load.
        decode: "cpu", or "mixed" for NVIDIA's JPEG decoder on the GPU.
        augment: "cpu" or "gpu": where images are resized and augmented.
        device_id: number of the GPU on which batches end; None uses no GPU.
        threads: of DALI's; 0 takes as many as there are cores.
        reader: "dali" leaves reading and order to DALI's own reader of tar shards; see `dali.reader`.
        producers: processes that stage batches for DALI (read them, draw their augmentation); 0 takes one for every
            four threads, three at most. DALI's reader, which reads in order, has one.
        augment_on: "dali" augments by DALI's operators, "gpu" leaves it to the consumer.

    Raises:
        MissingExtraError: DALI is not installed, or torch is not and a GPU is wanted.
        ConfigError: a stage is to run on a GPU, and there is none or none is named, or its work is for a CPU only; DALI
            is to read what its reader cannot.
    """

    def __init__(
        self,
        plan: LoadPlan,
        decode: Literal["cpu", "mixed"] = "cpu",
        augment: Literal["cpu", "gpu"] = "cpu",
        device_id: int | None = None,
        threads: int = 0,
        reader: Literal["inkmill", "dali"] = "inkmill",
        producers: int = 0,
        augment_on: AugmentOn = "dali",
    ) -> None:
        _check_placement(decode, augment, device_id)
        if augment == "gpu" and plan.pipeline is not None:
            raise ConfigError("an Albumentations pipeline runs on the CPU: set decode=cpu and augment=cpu")
        super().__init__(plan, augment_on)
        if device_id is not None:
            self.memory = None
        threads = threads or cores()
        self._placement = Placement("host" if self._cache is not None else decode, augment, device_id, threads)
        self._reader = DaliReader(plan) if reader == "dali" else None
        self.workers = 1 if self._reader is not None else producers or min(max(threads // 4, 1), 3)
        blocked = shared.allocate(len(plan.source))
        self._blocked_mask = np.frombuffer(blocked.buffer, np.uint8)
        self._stager = BatchStager(plan, self._cache, blocked, augment_on, self._reader)
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
        plan = self.plan
        names = self._stager.input_names()
        try:
            self._pipeline = build_pipeline(
                self._queue, names, plan.batch_size, plan.resize, self._engine(), self._placement
            )
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
            self._note_rebuild(lost, error)
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

    def _note_rebuild(self, lost: list[StagedBatch], error: RuntimeError) -> None:
        self.stats.notes.append(
            f"DALI's pipeline died at batch {lost[0].number} of epoch {lost[0].epoch} ({reason_of(error)});"
            f" it was built again, and {len(lost)} batches were decoded without it"
        )

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
        return identity | {"shuffle": f"by DALI's reader, {self.plan.shuffle}, for {self.plan.world_size} ranks"}


def open_loader(
    plan: LoadPlan,
    workers: int,
    augment_on: AugmentOn,
    device: Any,
    decode_on: Literal["cpu", "mixed"] = "cpu",
    dali_reader: Literal["inkmill", "dali"] = "inkmill",
) -> DaliLoader:
    """Return a loader whose batches end on `device`; see LoaderInfo. `workers` counts DALI's threads.

    Args:
        decode_on, dali_reader: as in the spec.
    """
    kind, _, number = str(device).partition(":")
    device_id = int(number or 0) if kind == "cuda" else None
    on_cpu = device_id is None or augment_on == "cpu" or plan.pipeline is not None
    return DaliLoader(
        plan,
        decode_on,
        "cpu" if on_cpu else "gpu",
        device_id,
        max(1, workers),
        dali_reader if plan.shuffle else "inkmill",  # validation sets are of any kind
        augment_on="gpu" if augment_on == "gpu" else "dali",
    )


def _check_placement(decode: str, augment: str, device_id: int | None) -> None:
    if decode not in ("cpu", "mixed") or augment not in ("cpu", "gpu"):
        raise ConfigError(f"decode is cpu or mixed and augment is cpu or gpu, not {decode!r} and {augment!r}")
    if decode == "mixed" and augment == "cpu":
        raise ConfigError("decode=mixed leaves images on the GPU: set augment=gpu too, or decode=cpu")
    if device_id is None:
        if decode == "mixed" or augment == "gpu":
            raise ConfigError(f"decode={decode}, augment={augment} need a GPU: set device_id, or use cpu for both")
        return
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "DALI on a GPU") from None
    if device_id >= torch.cuda.device_count():
        raise ConfigError(
            f"device_id={device_id} is not there, this machine has {torch.cuda.device_count()} CUDA devices:"
            " use device_id=None, decode=cpu and augment=cpu to run DALI without a GPU"
        )
