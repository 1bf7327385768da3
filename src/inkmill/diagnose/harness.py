"""What a diagnosis trains on and with: a random sample of the data, the training step, and ways to feed it.

Nothing is imitated: the harness holds a `TrainingLoop` with the user's model, precision, optimiser and clipping, and
its loaders are those of `train`. Only the learning rate is next to nothing, so that no number of steps on one batch can
make the loss infinite, which would end the run.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from rich.console import Console

from inkmill import shared_memory as shared
from inkmill.config.results import results_folder
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, measure_buckets
from inkmill.data.loaders.assemble import CollatedBatch
from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.pages import open_assembler, with_sizes
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.sources import Mix, Source, Subset, open_source
from inkmill.data.types import Batch
from inkmill.diagnose.timing import GpuClock
from inkmill.errors import ConfigError, DataError
from inkmill.tasks import find_task
from inkmill.tasks.base import Say, Task
from inkmill.training.batches import augments_on, open_loader, training_plan
from inkmill.training.loop import TrainingLoop
from inkmill.training.prepare import Prepared, prepare_targets
from inkmill.training.progress import Reporter
from inkmill.training.run import launch

MOST_SAMPLES = 20_000
MOST_TO_TRY = 100_000
"""Where a plan is tried that makes many large batches at a time and reads each from the disk."""

_ROUNDS = 4  # of all workers, in an epoch that is read from the disk
_MEMORY_BYTES = 256 << 20
_ALIGNMENT = 64  # bytes: a cache line
_MEMORY_BATCHES = 8
_LEARNING_RATE = 1e-8
_NEVER = 1_000_000


@dataclass(frozen=True)
class Sampled:
    """A part of the data and how large the whole is.

    Attributes:
        prepared: what training needs; no validation sets.
        whole: all training samples.
        taken: how many of them were chosen, those included whose labels cannot be used.
    """

    prepared: Prepared
    whole: Source
    taken: int

    @property
    def source(self) -> Source:
        """The samples to measure with."""
        return self.prepared.train.source

    def cut(self, most: int) -> Sampled:
        """Return at most `most` of the samples: the first ones, which are in no order."""
        if len(self.source) <= most:
            return self
        part = replace(self.prepared.train, source=Subset(self.source, np.arange(most)))
        return replace(self, prepared=replace(self.prepared, train=part), taken=most)


def open_whole(spec: Spec, say: Say) -> Source:
    """Open all training sets of a spec as one source.

    Raises:
        ConfigError: none is named.
        DataError: one is missing or of an unknown format.
    """
    wanted = spec.dataset.sources("train")
    if not wanted:
        raise ConfigError("diagnose needs data: give dataset.train=PATH, or dataset.train_dataset_dir")
    pattern, folders = spec.dataset.label_pattern, find_task(spec.task).folder_format
    sources = [open_source(one, label_pattern=pattern, folder_format=folders) for one in wanted]
    for source in sources:
        say(f"{source.name}: {len(source):,} samples")
    weights = [one.weight for one in wanted]
    return sources[0] if weights == [1.0] else Mix(sources, weights)


def take_sample(
    spec: Spec, whole: Source, say: Say, most: int = MOST_SAMPLES, seed: int = 0, task: Task | None = None
) -> Sampled:
    """Take a random part of the data, without the samples whose label cannot be trained on; no image is opened.

    Args:
        spec: the resolved spec.
        whole: all training samples.
        say: prints one line.
        most: size of the part.
        seed: of the choice.
        task: settled already; settled on the part's labels where None.

    Raises:
        DataError: no label of the part can be used.
    """
    if not len(whole):
        raise DataError(f"{whole.name} holds no samples: there is nothing to measure with")
    rows = np.random.default_rng(seed).choice(len(whole), min(most, len(whole)), replace=False).astype(np.int64)
    return Sampled(prepare_targets(spec, whole, rows, say, task), whole, len(rows))


def enough_to_try(sampled: Sampled, spec: Spec) -> Sampled:
    """Return a larger part of the data where this one has too few batches for `spec` to be read from the disk.

    All that is prefetched, some times over: else what is read comes from memory, where it was read just before. Where
    widths are free all images would have to be looked at first, and the sample stays as it is.
    """
    needed = min(_ROUNDS * max(1, spec.dataset.workers) * spec.dataset.batch_size, MOST_TO_TRY)
    task = sampled.prepared.task
    if sampled.taken >= min(needed, len(sampled.whole)) or task.resize.buckets:
        return sampled
    return take_sample(spec, sampled.whole, lambda line: None, needed, task=task)


class MemoryLoader(Loader):
    """The first few real batches of a plan, made once and yielded again and again from host memory.

    They lie in one piece of memory, as those of worker processes do, so they reach a GPU by the same road.
    """

    def __init__(self, plan: LoadPlan, augment_on: Any, most: int = _MEMORY_BATCHES) -> None:
        super().__init__(plan, augment_on)
        assert self.memory is not None
        # Parts of whole pictures reach a GPU packed, to be warped there.
        self.memory.ragged = plan.window is not None and augment_on == "gpu"
        self._size = -(-self.memory.batch_bytes // _ALIGNMENT) * _ALIGNMENT
        count = min(len(self), most, max(2, _MEMORY_BYTES // self._size))
        self._arena = shared.allocate(count * self._size)
        self._pixels = np.frombuffer(self._arena.buffer, np.uint8)[: count * self._size]
        self.memory.blocks.append(self._pixels)
        assembler = open_assembler(plan, None, self._blocked_mask, self.memory.ragged, augment_on)
        self._batches_made = [assembler.make(0, number, self._slot(number)) for number in range(count)]

    def _slot(self, number: int) -> Any:
        return self._pixels[number * self._size : (number + 1) * self._size]

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        for number in range(first, len(self)):
            yield self._batches_made[number % len(self._batches_made)]


class StepHarness:
    """A model on its device with everything that a step needs.

    Args:
        spec: the resolved spec; one GPU of it is used.
        prepared: data and task.
        batches: how many are held in memory, at most; making them takes one core's time.
        loop: of another harness, whose step is the same: what was compiled for it is not compiled again.

    Attributes:
        device: what is trained on.
        plan: what training would load.
        augment_on: who augments.
        memory: the loader of batches in memory.

    Raises:
        ConfigError: a device that is not there, or a model's input that is not possible.
    """

    def __init__(
        self, spec: Spec, prepared: Prepared, batches: int = _MEMORY_BATCHES, loop: TrainingLoop | None = None
    ) -> None:
        self.spec = measurable(spec)
        fabric, self.note = launch(self.spec.train)
        self.device: torch.device = fabric.device
        self.clock = GpuClock(self.device)
        # 1. The plan, over whole batches of the sample.
        prepared = _whole_batches(prepared, self.spec.dataset.batch_size)
        plan = training_plan(self.spec, prepared, fabric, seed=0)
        if plan.resize.buckets and plan.bucket_widths is None:
            plan = replace(plan, bucket_widths=measure_buckets(plan.source, plan.resize))
        if plan.resize.mode == "page":
            plan = with_sizes(plan)
        self.plan = plan
        self.augment_on = augments_on(self.spec.dataset, self.device, plan.resize)
        # 2. Batches in memory, and the step itself.
        uncached = replace(plan, cache=CacheConfig())
        assembled_on: Any = "gpu" if self.augment_on == "gpu" else "cpu"
        self.memory = DeviceLoader(MemoryLoader(uncached, assembled_on, batches), self.device)
        try:
            self.loop = self._new_loop(fabric, prepared) if loop is None else loop
        except BaseException:
            self.memory.close()
            raise
        self.loop.model.train()

    def _new_loop(self, fabric: Fabric, prepared: Prepared) -> TrainingLoop:
        model = prepared.task.build(self.spec.model.model_copy(update={"backbone_pretrained": False}))
        reporter = Reporter(Console(quiet=True), None, 1, prepared.task.figures)
        folder = results_folder(self.spec, "diagnose")
        return TrainingLoop(fabric, self.spec, model, prepared, (self.memory, {}), folder, reporter)

    def repeated(self) -> Iterator[Batch]:
        """Yield one batch on the device for ever."""
        with closing(iter(self.memory)) as batches:  # type: ignore[type-var]
            batch = next(batches)
        return repeat(batch)

    def open_real(self) -> DeviceLoader:
        """Open the loader that training would read from."""
        dataset = self.spec.dataset
        return DeviceLoader(open_loader(self.plan, dataset, self.device, dataset.workers), self.device)

    def step(self, batch: Batch) -> None:
        """Do one step of training; nothing waits for the device."""
        self.loop.train_on(batch)

    def settle(self) -> None:
        """Wait until the device has done all that was asked of it."""
        self.clock.settle()

    def close(self) -> None:
        """Give the memory back, the device's too."""
        self.memory.close()
        del self.loop
        if self.device.type == "cuda":
            gc.collect()  # a captured step and its functions refer to each other
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
    return replace(prepared, train=replace(prepared.train, source=Subset(source, range(count)), sizes=None))


def for_ever(loader: DeviceLoader) -> Iterator[Batch]:
    """Yield the batches of all epochs to come."""
    return chain.from_iterable(repeat(loader))
