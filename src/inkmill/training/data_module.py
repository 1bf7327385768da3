"""inkmill's loading in anyone's Lightning Trainer: labelled text images in, batches ready for a model out.

    data = TextDataModule("words/", batch_size=64)
    model = MyModel(data.codec.num_classes)
    lightning.pytorch.Trainer(max_epochs=10).fit(model, datamodule=data)

    data = TaskDataModule(load_spec(None, ["task=multilabel", "dataset.train=photos.csv"]))

The second does it for any task, from a spec. Epochs are exact and shuffled again, ranks get disjoint parts, and a
Trainer's checkpoints hold the position in the middle of an epoch, from which `fit(..., ckpt_path=...)` goes on exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from inkmill.config.dataset import AugmentationSpec, DatasetSpec, SourceSpec
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.data.augment import open_augmentation
from inkmill.data.jobs.check import SampleRules, check_targets
from inkmill.data.loaders import Loader, LoadPlan, make_loader, measure_buckets
from inkmill.data.loaders.dali import dali_extra, has_dali
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Mix, Source, Subset, holdout, open_source
from inkmill.errors import ConfigError, DataError, MissingExtraError
from inkmill.tasks.base import Task
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import Codec
from inkmill.tasks.recognition.rules import TextRules
from inkmill.tasks.recognition.task import Recognition
from inkmill.training.batches import VAL_WORKERS, cache_config, open_loader
from inkmill.training.prepare import open_sets, settle
from inkmill.training.tensor_loader import TaskLoader, TensorLoader

try:
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.utilities import rank_zero_info
except ImportError:
    raise MissingExtraError("lightning", "train", "a LightningDataModule") from None

Data = str | Path | SourceSpec | Source


@dataclass(frozen=True)
class _Opened:
    train: Source
    val: Source
    task: Task
    notes: list[str]


class _Module(LightningDataModule):
    """Opens once, gives loaders, ends them; subclasses say what is opened and loaded."""

    _opened: Any

    def __init__(self) -> None:
        super().__init__()
        self._loaders: list[TensorLoader | TaskLoader] = []

    @property
    def notes(self) -> list[str]:
        """What was seen and done that a user should know, one sentence each."""
        notes: list[str] = self._opened.notes
        return notes

    def setup(self, stage: str | None = None) -> None:
        """Open the data, once; Lightning calls this in every process."""
        _ = self._opened

    def teardown(self, stage: str | None = None) -> None:
        """End the loaders' processes."""
        while self._loaders:
            self._loaders.pop().close()

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device

    def _placed(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan for this rank."""
        if self.trainer is None:
            return plan
        return replace(plan, rank=self.trainer.global_rank, world_size=self.trainer.world_size)


class TaskDataModule(_Module):
    """What `inkmill train` would train on with the same spec, for a model of anyone's; see `TaskBatch`.

    Loader, cache, augmentation and splitting follow the spec's `dataset` section, DALI and cached tiers among them.
    Labels that cannot be used are left out and noted; images are not checked beforehand.

    Args:
        spec: as `inkmill.config.load.load_spec` returns it; `dataset.train` is needed.

    Attributes:
        notes: what was seen and done that a user should know.

    Raises:
        ConfigError: the spec asks for synthetic text.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if spec.dataset.synthetic.share:
            raise ConfigError(
                "synthetic text is drawn by `inkmill train` alone: keep some with `inkmill synth FOLDER`, and give the "
                "folder as dataset.train"
            )
        self.spec = spec

    @property
    def task(self) -> Task:
        """Settled on the training data: `task.class_names`, `task.encode`, `task.score`.

        Raises:
            InkmillError: there is no data, or none of it can be used.
        """
        return self._opened.task

    def train_dataloader(self) -> TaskLoader:
        """Return a loader of the training batches: shuffled again in each epoch, augmented."""
        dataset = self.spec.dataset
        plan = self._plan(self._opened.train, shuffle=True)
        return self._ready(replace(plan, augmentation=open_augmentation(dataset.augmentation)), dataset.workers)

    def val_dataloader(self) -> TaskLoader:
        """Return a loader of the validation batches, in the data's own order."""
        return self._ready(self._plan(self._opened.val, shuffle=False), min(self.spec.dataset.workers, VAL_WORKERS))

    @cached_property
    def _opened(self) -> _Opened:
        spec, notes = self.spec, list[str]()
        if spec.train.seed < 0:
            raise ConfigError("train.seed=-1 would give each process another order; give a TaskDataModule a seed")
        train, val = open_sets(spec, "train", notes.append), open_sets(spec, "val", notes.append)
        if not train:
            raise ConfigError("a TaskDataModule needs training data: set dataset.train in its spec")
        task = settle(spec, train, notes.append)
        if not val:
            parts = [(source, *holdout(source, spec.dataset.val_fraction)) for source in train]
            val = [Subset(source, held) for source, _, held in parts]
            train = [Subset(source, kept) for source, kept, _ in parts]
            notes.append(f"{sum(map(len, val)):,} samples are held out for validation")
        rules = task.rules()
        train, val = ([_usable(source, rules, notes) for source in side] for side in (train, val))
        weights = [one.weight for one in spec.dataset.sources("train")]
        return _Opened(Mix(train, weights), Mix(val), task, notes)

    def _plan(self, source: Source, shuffle: bool) -> LoadPlan:
        dataset = self.spec.dataset
        plan = LoadPlan(
            source,
            self.task.resize,
            batch_size=dataset.batch_size,
            seed=self.spec.train.seed,
            shuffle=shuffle,
            on_bad_sample="raise" if dataset.on_bad_sample == "raise" else "skip",
            cache=cache_config(dataset),
        )
        return self._placed(plan)

    def _ready(self, plan: LoadPlan, workers: int) -> TaskLoader:
        device = self._device
        opened = DeviceLoader(open_loader(plan, self.spec.dataset, device, workers), device)
        loader = TaskLoader(opened, self.task)
        self._loaders.append(loader)
        return loader


class TextDataModule(_Module):
    """Training and validation batches of labelled text images; see `TextBatch` for what is in one.

    Args:
        train: one data set or several: a path in any form that `inkmill check` knows, a SourceSpec (format, weight),
            or a Source.
        val: likewise; without it, `val_fraction` of the training samples are held out.
        batch_size: images a step and device.
        num_workers: loader processes; 0 loads in the calling one. Validation uses two at most.
        use_dali: let NVIDIA DALI decode and augment on the GPU. Without DALI or without a GPU, one line says so and
            the worker processes load instead: the same samples in the same order.
        resize: input size and how images are brought to it.
        augmentation: changes to training images: a preset's name, a spec, or None.
        prediction: the kind of head, CTC, Attn or Slots: how targets are encoded.
        charset: characters to read, or a file of them; without it, all that the training labels hold.
        max_label_length: longest label. Longer ones and those with other characters are left out, and noted.
        normalise: rule sets applied to every label after NFC; see docs/text.md.
        val_fraction: share held out for validation.
        on_bad_sample: raise, or skip (counted).
        keep: where resized pictures are kept.
        seed: of order and augmentation.

    Attributes:
        notes: what was seen and done that a user should know.
    """

    def __init__(
        self,
        train: Data | Sequence[Data],
        val: Data | Sequence[Data] | None = None,
        *,
        batch_size: int = 20,
        num_workers: int = 8,
        use_dali: bool = False,
        resize: Resize = Resize(32, 128, 3, "pad"),  # noqa: B008 - frozen
        augmentation: str | AugmentationSpec | None = None,
        prediction: Literal["CTC", "Attn", "Slots"] = "CTC",
        charset: Charset | str | Path | None = None,
        max_label_length: int = 25,
        normalise: Sequence[str] = (),
        val_fraction: float = 0.1,
        on_bad_sample: Literal["raise", "skip"] = "raise",
        cache: CacheConfig = CacheConfig(),  # noqa: B008 - frozen
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._data, self._val_fraction = (train, val), val_fraction
        self._prediction, self._max_label_length = prediction, max_label_length
        self._charset, self._normalise = charset, list(normalise)
        self._workers, self._use_dali = num_workers, use_dali
        if isinstance(augmentation, str):
            augmentation = AugmentationSpec(preset=augmentation)
        self._augmentation = None if augmentation is None else open_augmentation(augmentation)
        self._options = {
            "resize": resize,
            "batch_size": batch_size,
            "seed": seed,
            "on_bad_sample": on_bad_sample,
            "cache": cache,
        }

    @property
    def codec(self) -> Codec:
        """Between texts and classes; `codec.num_classes` is the width of a model's output.

        Raises:
            DataError: there is no data, or none of it can be used.
        """
        return self._task.codec

    @property
    def _task(self) -> Recognition:
        task = self._opened.task
        assert isinstance(task, Recognition)
        return task

    def train_dataloader(self) -> TensorLoader:
        """Return a loader of the training batches: shuffled again in each epoch, augmented."""
        return self._ready(self._opened.train, shuffle=True)

    def val_dataloader(self) -> TensorLoader:
        """Return a loader of the validation batches, in the data's own order."""
        return self._ready(self._opened.val, shuffle=False)

    @cached_property
    def _opened(self) -> _Opened:
        # 1. Open the sets.
        train, val = (None if data is None else _open(data) for data in self._data)
        if train is None:
            raise DataError("a TextDataModule needs training data: give a path or a source")
        notes = [note for source in (train, val) if source is not None for note in source.notes]
        # 2. Settle the task, on what is held out too, as `inkmill train` does.
        spec = Spec(
            model=ModelSpec(prediction=self._prediction),
            dataset=DatasetSpec(max_label_length=self._max_label_length, normalise=self._normalise),
        )
        if isinstance(self._charset, Charset):
            task = Recognition(spec.model, self._charset, self._max_label_length, self._normalise)
        else:
            spec.dataset.character_list_file = None if self._charset is None else str(self._charset)
            task = Recognition.from_data(spec, [train], lambda line: None)
        # 3. Hold some out where no validation set is given, and leave out what cannot be used.
        if val is None:
            kept, held = holdout(train, self._val_fraction)
            notes.append(f"{len(held):,} of {len(train):,} samples are held out for validation")
            train, val = Subset(train, kept), Subset(train, held)
        rules = TextRules(task.resize, task.codec, task.normaliser)  # the model is anyone's: its time steps are unknown
        train, val = (_usable(source, rules, notes) for source in (train, val))
        return _Opened(train, val, task, notes)

    def _ready(self, source: Source, shuffle: bool) -> TensorLoader:
        plan = LoadPlan(source, shuffle=shuffle, **self._options)  # type: ignore[arg-type]
        if plan.resize.buckets:
            plan = replace(plan, bucket_widths=measure_buckets(source, plan.resize))
        if shuffle:
            plan = replace(plan, augmentation=self._augmentation)
        loader = TensorLoader(self._loader(self._placed(plan)), self._task.codec, self._task.normaliser)
        self._loaders.append(loader)
        return loader

    def _loader(self, plan: LoadPlan) -> DeviceLoader | Loader:
        device = self._device
        workers = self._workers if plan.shuffle else min(self._workers, 2)
        if self._use_dali and device.type == "cuda" and has_dali():
            number = torch.cuda.current_device() if device.index is None else device.index
            by_torch = not plan.resize.buckets and plan.pipeline is None  # its pass is compiled for one width
            return make_loader(
                plan,
                workers,
                "dali",
                augment_on="gpu" if by_torch else "dali",
                device=torch.device("cuda", number),
                decode_on="cpu" if plan.pipeline is not None else "mixed",
            )
        if self._use_dali:
            self._say_without_dali(device)
        # A pass on the GPU is compiled for one width, and foreign code knows no GPU.
        on_gpu = device.type == "cuda" and plan.pipeline is None and not plan.resize.buckets
        return DeviceLoader(make_loader(plan, workers, augment_on="gpu" if on_gpu else "cpu"), device)

    def _say_without_dali(self, device: torch.device) -> None:
        missing = "batches go to the CPU" if has_dali() else f"DALI is absent (pip install 'inkmill[{dali_extra()}]')"
        line = f"use_dali: {missing}, so {self._workers} worker processes load the same batches"
        if line not in self.notes:
            self.notes.append(line)
            rank_zero_info(line)


def _open(data: Data | Sequence[Data]) -> Source:
    several = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    specs = [SourceSpec(path=str(one)) if isinstance(one, str | Path) else one for one in several]
    sources = [open_source(one) if isinstance(one, SourceSpec) else one for one in specs]
    weights = [one.weight if isinstance(one, SourceSpec) else 1.0 for one in specs]
    return sources[0] if weights == [1.0] else Mix(sources, weights)


def _usable(source: Source, rules: SampleRules, notes: list[str]) -> Source:
    """Return the samples whose labels can be encoded; the others are noted by reason."""
    kept, lost = check_targets(source, rules, np.arange(len(source)))
    notes.extend(f"{source.name}: {count:,} labels left out: {name.replace('_', ' ')}" for name, count in lost.items())
    if not len(kept):
        raise DataError(f"{source.name}: none of its {len(source)} labels can be encoded: {'; '.join(notes[-2:])}")
    return Subset(source, kept) if lost else source
