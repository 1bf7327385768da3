"""Loaders: interchangeable ways to turn a plan into batches; the batches are the same from each."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from inkmill.data.loaders.base import Loader
from inkmill.data.loaders.buckets import measure_buckets
from inkmill.data.loaders.inline import InlineLoader
from inkmill.data.loaders.plan import LoadPlan, Stats
from inkmill.data.loaders.threads import ThreadLoader
from inkmill.data.loaders.workers import WorkerLoader

__all__ = ["LoadPlan", "Loader", "Stats", "make_loader", "measure_buckets"]


def make_loader(plan: LoadPlan, workers: int = 0, kind: Literal["auto", "workers", "threads"] = "auto") -> Loader:
    """Return a loader for `plan`.

    Args:
        plan: what to load; bucket widths that it needs and lacks are measured here.
        workers: processes or threads; 0 loads in the calling thread.
        kind: "auto" takes processes.

    Raises:
        OutputError: the disk tier of the cached pictures cannot be written.
    """
    if plan.resize.mode == "height" and plan.bucket_widths is None:
        plan = replace(plan, bucket_widths=measure_buckets(plan.source, plan.resize))
    if workers == 0:
        return InlineLoader(plan)
    return ThreadLoader(plan, workers) if kind == "threads" else WorkerLoader(plan, workers)
