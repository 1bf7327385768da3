"""The loaders of a training run: one for training, one for each validation set, batches on the training device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import Tensor

from inkmill.config.dataset import DatasetSpec
from inkmill.config.results import results_folder
from inkmill.config.spec import Spec
from inkmill.data.augment import open_augmentation
from inkmill.data.loaders import AugmentOn, Loader, LoadPlan, loader_for, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.cache import CacheConfig
from inkmill.data.pipeline.resize import Resize
from inkmill.data.types import Batch
from inkmill.errors import ConfigError
from inkmill.tasks.model import to_input
from inkmill.training.prepare import Prepared
from inkmill.training.synthetic import on_device, with_files

VAL_WORKERS = 2
"""Validation loaders stay open beside the training loader; two processes each are enough."""


@contextmanager
def open_loaders(
    spec: Spec, prepared: Prepared, fabric: Fabric, seed: int
) -> Iterator[tuple[DeviceLoader, dict[str, DeviceLoader]]]:
    """Yield the training loader and the validation loaders by set name, and close them whatever happens.

    Raises:
        ConfigError: a placement that this machine cannot have.
    """
    dataset = spec.dataset
    plan = training_plan(spec, prepared, fabric, seed)
    with ExitStack() as stack:

        def opened(plan: LoadPlan, workers: int) -> DeviceLoader:
            loader = open_loader(plan, dataset, fabric.device, workers)
            return stack.enter_context(DeviceLoader(loader, fabric.device))

        train = stack.enter_context(DeviceLoader(_training_loader(spec, prepared, plan, fabric.device), fabric.device))
        val = {
            name: opened(
                replace(
                    plan,
                    source=one.source,
                    bucket_widths=one.bucket_widths,
                    augmentation=None,
                    shuffle=False,
                    sizes=one.sizes,
                    window=None,
                ),
                min(dataset.workers, VAL_WORKERS),
            )
            for name, one in prepared.val.items()
        }
        yield train, val


def _training_loader(spec: Spec, prepared: Prepared, plan: LoadPlan, device: torch.device) -> Loader:
    """Return the loader of the training samples, real, synthetic or both."""
    dataset = spec.dataset

    def real(plan: LoadPlan) -> Loader:
        return open_loader(plan, dataset, device, dataset.workers)

    if prepared.synthetic is None:
        return real(plan)
    if device.type == "cuda":
        return on_device(plan, prepared.synthetic, device, real if prepared.real else None)
    return real(with_files(plan, prepared.synthetic, prepared.real))


def training_plan(spec: Spec, prepared: Prepared, fabric: Fabric, seed: int) -> LoadPlan:
    """Return what this rank trains on."""
    dataset, window = spec.dataset, prepared.task.window
    augmentation = open_augmentation(dataset.augmentation)
    if window is not None:
        augmentation = augmentation.for_windows()
    return LoadPlan(
        prepared.train.source,
        prepared.resize,
        augmentation=augmentation,
        batch_size=dataset.batch_size,
        seed=seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        bucket_widths=prepared.train.bucket_widths,
        sizes=prepared.train.sizes,
        on_bad_sample=dataset.on_bad_sample,
        quarantine=results_folder(spec, "train") / "quarantine",
        cache=cache_config(dataset),
        window=window,
    )


def open_loader(plan: LoadPlan, dataset: DatasetSpec, device: torch.device, workers: int) -> Loader:
    """Return the loader that `dataset.loader` and `dataset.cache` ask for.

    Raises:
        ConfigError: a GPU is asked for and not there, or more pictures than it holds.
        MissingExtraError: loader=dali without DALI.
    """
    info = loader_for(dataset.loader, dataset.cache)
    options = {name: getattr(dataset, name) for name in info.options}
    augment_on = augments_on(dataset, device, plan.resize)
    return make_loader(plan, workers, info.name, augment_on=augment_on, device=device, **options)


def training_input(batch: Batch) -> Tensor:
    """Return the images of a batch as the model takes them; see `augmented_images`."""
    return to_input(augmented_images(batch))


def augmented_images(batch: Batch) -> Tensor:
    """Return the images of a batch, uint8 (B, H, W, C), augmented here where the loader left that to the GPU.

    Of parts of whole pictures `batch.matrix` becomes the one to these images, a tensor on their device; the batch stays
    as it was otherwise, so that it can be augmented again.
    """
    images: Tensor = batch.images
    deferred = batch.augmentation
    if deferred is None:
        return images
    if deferred.window is not None:
        from inkmill.data.augment.page_passes import apply_deferred_pages

        images, batch.matrix = apply_deferred_pages(batch.images.pages(), deferred)
        return images
    from inkmill.data.augment.gpu import apply_deferred

    return apply_deferred(images, deferred)


def augments_on(dataset: DatasetSpec, device: torch.device, resize: Resize) -> AugmentOn:
    """Return who augments what a spec loads, `auto` decided.

    Raises:
        ConfigError: dataset.augment_on names a GPU that is not there.
    """
    info = loader_for(dataset.loader, dataset.cache)
    on_gpu, wanted = device.type == "cuda", dataset.augment_on
    if wanted == "gpu" and not on_gpu:
        raise ConfigError("dataset.augment_on=gpu, and there is no GPU here; use augment_on=auto")
    if len(info.augments_on) == 1:  # nobody else can
        return info.augments_on[0]
    if wanted != "auto":
        return wanted
    if not on_gpu or resize.buckets or dataset.augmentation.albumentations:
        return info.augments_on[0]  # every size of the input would be compiled again, and foreign code knows no GPU
    return "gpu"


def cache_config(dataset: DatasetSpec) -> CacheConfig:
    """Return where a spec caches resized images; the GPU's cache is a loader of its own."""
    tier = "none" if dataset.cache == "gpu" else dataset.cache
    return CacheConfig(tier, dataset.cache_gib, Path(dataset.cache_dir) if dataset.cache_dir else None)
