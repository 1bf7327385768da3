"""The training step as training does it, and ways to feed it: what the fixed-batch test and the plan's check run.

Nothing is imitated: the rig holds a `TrainingLoop` with the user's model, precision, optimiser and clipping, and its
loaders are those of `train`. Only the learning rate is next to nothing, so that no number of steps on one batch can
make the loss infinite, which would end the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from rich.console import Console

from inkmill import shared_memory as shared
from inkmill.config.results import results_folder
from inkmill.config.spec import Spec
from inkmill.data.loaders import AugmentOn, LoadPlan, measure_buckets
from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.sources import Subset
from inkmill.data.types import Batch
from inkmill.diagnose.gpu_clock import GpuClock
from inkmill.training.batches import augments_on, open_loader, training_plan
from inkmill.training.loop import TrainingLoop
from inkmill.training.prepare import Prepared
from inkmill.training.progress import Reporter
from inkmill.training.run import launch

_CACHED_BYTES = 256 << 20
_CACHED_BATCHES = 8
_LEARNING_RATE = 1e-8
_NEVER = 1_000_000


class CachedLoader(Loader):
    """The first few real batches of a plan, made once and handed over again and again from host memory.

    They lie in one piece of memory, as those of worker processes do, so they reach a GPU by the same road.
    """

    def __init__(self, plan: LoadPlan, most: int = _CACHED_BATCHES, augment_on: AugmentOn = "cpu") -> None:
        super().__init__(plan, augment_on)
        count = min(len(self), most, max(2, _CACHED_BYTES // plan.batch_bytes))
        self._arena = shared.allocate(count * plan.batch_bytes)
        self._pixels = np.frombuffer(self._arena.buffer, np.uint8)[: count * plan.batch_bytes]
        assert self.memory is not None
        self.memory.blocks.append(self._pixels)
        maker = BatchAssembler(plan, None, self._blocked_mask, augment_on=augment_on)
        self._made = [maker.make(0, number, self._slot(number)) for number in range(count)]

    def _slot(self, number: int) -> Any:
        size = self.plan.batch_bytes
        return self._pixels[number * size : (number + 1) * size]

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        for number in range(first, len(self)):
            yield self._made[number % len(self._made)]


class StepHarness:
    """A model on its device with everything that a step needs.

    Args:
        spec: the resolved spec; one GPU of it is used.
        prepared: data, characters, codec.
        batches: how many are cached, at most; making them takes one core's time.
        loop: of another rig, whose step is the same: what was compiled for it is not compiled again.

    Raises:
        ConfigError: the device, or the model's input, cannot be.
    """

    def __init__(
        self, spec: Spec, prepared: Prepared, batches: int = _CACHED_BATCHES, loop: TrainingLoop | None = None
    ) -> None:
        self.spec = measurable(spec)
        fabric, self.note = launch(self.spec.train)
        self.device: torch.device = fabric.device
        self.clock = GpuClock(self.device)
        prepared = _whole_batches(prepared, self.spec.dataset.batch_size)
        plan = training_plan(self.spec, prepared, fabric, seed=0)
        if plan.resize.mode == "height" and plan.bucket_widths is None:
            plan = replace(plan, bucket_widths=measure_buckets(plan.source, plan.resize))
        self.plan = plan
        by_gpu = augments_on(self.spec.dataset, self.device, plan.resize) == "gpu"
        self.augment_on: AugmentOn = "gpu" if by_gpu else "cpu"  # what DALI augments, OpenCV does here
        cached = CachedLoader(replace(plan, cache=CacheConfig()), batches, self.augment_on)
        self.cached = DeviceLoader(cached, self.device)
        try:
            self.loop = self._new_loop(fabric, prepared) if loop is None else loop
        except BaseException:
            self.cached.close()
            raise
        self.loop.model.train()

    def _new_loop(self, fabric: Fabric, prepared: Prepared) -> TrainingLoop:
        settings = self.spec.model.model_copy(update={"backbone_pretrained": False})
        model = prepared.task.build(settings)
        reporter = Reporter(Console(quiet=True), None, 1, prepared.task.figures)
        folder = results_folder(self.spec, "diagnose")
        return TrainingLoop(fabric, self.spec, model, prepared, (self.cached, {}), folder, reporter)

    def repeated(self) -> Iterator[Batch]:
        """Yield one batch on the device for ever."""
        with closing(iter(self.cached)) as batches:  # type: ignore[type-var]
            batch = next(batches)
        return repeat(batch)

    def open_real(self, workers: int | None = None) -> DeviceLoader:
        """Open the loader that training would read from."""
        dataset = self.spec.dataset
        count = dataset.workers if workers is None else workers
        return DeviceLoader(open_loader(self.plan, dataset, self.device, count), self.device)

    def step(self, batch: Batch) -> None:
        """Do one step of training; nothing waits for the device."""
        self.loop.train_on(batch)

    def settle(self) -> None:
        """Wait until the device has done all that was asked of it."""
        self.clock.settle()

    def close(self) -> None:
        """Give the memory back, the device's too."""
        self.cached.close()
        del self.loop
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def measurable(spec: Spec) -> Spec:
    """Return the spec of one process whose steps change next to nothing and write nothing."""
    spec = spec.model_copy(deep=True)
    spec.train.num_gpus = min(1, spec.train.num_gpus)
    spec.train.gpu_ids = spec.train.gpu_ids[:1]
    spec.train.num_nodes = 1
    spec.train.optim.lr = _LEARNING_RATE
    spec.train.checkpoint_interval_unit = "epoch"
    spec.train.log_every = _NEVER  # looking at the loss waits for the device
    if spec.dataset.on_bad_sample == "raise":
        spec.dataset.on_bad_sample = "skip"  # the sample was not checked: training would have left bad ones out
    return spec


def _whole_batches(prepared: Prepared, batch_size: int) -> Prepared:
    """Leave out what would make a short batch: of a sample it comes often, and may be compiled for by itself."""
    source = prepared.train.source
    count = len(source) // batch_size * batch_size
    if count in (0, len(source)):
        return prepared
    return replace(prepared, train=replace(prepared.train, source=Subset(source, range(count))))


def for_ever(loader: DeviceLoader) -> Iterator[Batch]:
    """Yield the batches of all epochs to come."""
    return chain.from_iterable(repeat(loader))
