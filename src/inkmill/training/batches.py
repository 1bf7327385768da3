"""The loaders of a training run: one for training, one for each validation set, batches on the training device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from lightning.fabric import Fabric
from torch import Tensor

from inkmill.config.spec import Spec
from inkmill.data.augment import Augmentation
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.sample import Batch
from inkmill.training.prepare import Prepared
from inkmill.training.reading import to_input

VAL_WORKERS = 2
"""Validation loaders stay open beside the training loader; two processes each are enough."""


@contextmanager
def open_loaders(
    spec: Spec, prepared: Prepared, fabric: Fabric, seed: int
) -> Iterator[tuple[DeviceLoader, dict[str, DeviceLoader]]]:
    """Yield the training loader and the validation loaders by set name, and close them whatever happens.

    On a GPU the drawn augmentation travels with the batch and is applied there; on a CPU the loader applies it.
    """
    dataset = spec.dataset
    plan = LoadPlan(
        prepared.train.source,
        prepared.fit,
        augmentation=Augmentation.from_spec(dataset.augmentation),
        batch_size=dataset.batch_size,
        seed=seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        bucket_widths=prepared.train.bucket_widths,
        on_bad_sample=dataset.on_bad_sample,
        engine="none" if fabric.device.type == "cuda" else "cv",
    )
    with ExitStack() as stack:

        def opened(plan: LoadPlan, workers: int) -> DeviceLoader:
            return stack.enter_context(DeviceLoader(make_loader(plan, workers), fabric.device))

        train = opened(plan, dataset.workers)
        val = {
            name: opened(
                replace(plan, source=one.source, bucket_widths=one.bucket_widths, augmentation=None, shuffle=False),
                min(dataset.workers, VAL_WORKERS),
            )
            for name, one in prepared.val.items()
        }
        yield train, val


def training_input(batch: Batch) -> Tensor:
    """Return the images of a batch as the model takes them, augmented here where the loader left that to the GPU."""
    images: Tensor = batch.images
    table = batch.extra.get("table")
    if table is not None:
        from inkmill.data.augment.apply_torch import apply_torch

        with torch.no_grad():
            images = apply_torch(images, table)
    return to_input(images)
