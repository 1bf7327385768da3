"""Loaders: interchangeable ways to turn a plan into batches; the samples and their order are the same from each.

What each loader can do stands in one record of `LOADERS`, which config, advice, diagnose and bench read. A new loader
is a file with an `open_loader`, one record here, and one line in tests/data/loaders/conformance.py. Nothing below is
imported before it is used: the spec, whose `dataset.loader` takes its names from here, must load without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from inkmill.errors import ConfigError
from inkmill.registry import suggest

if TYPE_CHECKING:
    from inkmill.data.loaders.base import Loader
    from inkmill.data.loaders.plan import LoadPlan, Stats, measure_buckets

__all__ = [
    "LOADERS",
    "AugmentOn",
    "LoadPlan",
    "Loader",
    "LoaderInfo",
    "Stats",
    "loader_for",
    "make_loader",
    "measure_buckets",
]

AugmentOn = Literal["cpu", "gpu", "dali"]
"""Who augments: OpenCV where batches are assembled; torch on the training device, which finds in `Batch.augmentation`
what to do; DALI's own operators. Each draws the same parameters, but may round pixels in its own way."""


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """What a kind of loader can do.

    Attributes:
        name: the value of `dataset.loader`, or where it has none (`selectable`), what reports call it.
        opens: MODULE:FUNCTION, called as `function(plan, workers, augment_on, device, **options)`; imported when used.
        processes: `workers` counts processes that assemble whole batches; else what it counts is the loader's affair.
        on_device: images are born on the training device, where that is a GPU; nothing is copied to it.
        caches: the values of `dataset.cache` that it takes.
        augments_on: who can augment its batches; the first is the default.
        options: further keys of `dataset` that it takes, and nobody else does.
        selectable: whether `dataset.loader` names it; else `dataset.cache` does, by a tier that only this loader has.
    """

    name: str
    opens: str
    processes: bool = False
    on_device: bool = False
    caches: tuple[str, ...] = ("none", "disk", "ram")
    augments_on: tuple[AugmentOn, ...] = ("cpu", "gpu")
    options: tuple[str, ...] = ()
    selectable: bool = True


LOADERS: dict[str, LoaderInfo] = {
    info.name: info
    for info in (
        LoaderInfo("workers", "inkmill.data.loaders.workers:open_loader", processes=True),
        LoaderInfo(
            "dali",
            "inkmill.data.loaders.dali.loader:DaliLoader",
            on_device=True,
            augments_on=("dali", "gpu", "cpu"),  # cpu: DALI's operators on the CPU
            options=("decode_on", "dali_reader"),
        ),
        LoaderInfo(
            "resident",
            "inkmill.data.loaders.resident:open_loader",
            on_device=True,
            caches=("gpu",),
            augments_on=("gpu",),
            selectable=False,
        ),
    )
}

SELECTABLE = tuple(info.name for info in LOADERS.values() if info.selectable)
"""The values of `dataset.loader`, beside auto."""


def loader_for(loader: str, cache: str = "none") -> LoaderInfo:
    """Return the record of the loader that a spec asks for.

    Args:
        loader: `dataset.loader`; "auto" takes worker processes.
        cache: `dataset.cache`.

    Raises:
        ConfigError: no such loader, or it cannot cache there.
    """
    name = "workers" if loader == "auto" else loader
    if name not in LOADERS:
        raise ConfigError(f"unknown loader {name!r}{suggest(name, LOADERS)}; known: auto, {', '.join(LOADERS)}")
    info = LOADERS[name]
    if cache in info.caches:
        return info
    special = [other for other in LOADERS.values() if cache in other.caches and not other.selectable]
    if info.processes and special:
        return special[0]
    raise ConfigError(f"loader={name} cannot cache on {cache!r}: use cache={'|'.join(info.caches)}, or loader=auto")


def make_loader(
    plan: LoadPlan,
    workers: int = 0,
    kind: str = "auto",
    *,
    augment_on: AugmentOn | None = None,
    device: Any = "cpu",
    **options: Any,
) -> Loader:
    """Return a loader for `plan`.

    Args:
        plan: what to load; bucket widths that it needs and lacks are measured here.
        workers: processes; 0 loads in the calling thread.
        kind: a name of `LOADERS`; "auto" takes worker processes.
        augment_on: who augments; the loader's own default where None.
        device: the training device, torch's or its name; a loader on the device needs it.
        options: values for the keys in `LoaderInfo.options`.

    Raises:
        ConfigError: no such loader, or it cannot do what is asked.
        OutputError: the disk tier of the cache cannot be written.
        MissingExtraError: the loader needs a package that is not installed.
    """
    info = loader_for(kind) if kind not in LOADERS else LOADERS[kind]
    augment_on = augment_on or info.augments_on[0]
    if augment_on not in info.augments_on:
        raise ConfigError(f"augment_on={augment_on} is not for loader={info.name}: use {'|'.join(info.augments_on)}")
    if plan.resize.buckets and plan.bucket_widths is None:
        from inkmill.data.loaders.plan import measure_buckets

        plan = replace(plan, bucket_widths=measure_buckets(plan.source, plan.resize))
    if plan.resize.mode == "page":
        from inkmill.data.loaders.pages import with_sizes

        plan = with_sizes(plan)
    module, function = info.opens.split(":")
    opened: Loader = getattr(import_module(module), function)(plan, workers, augment_on, device, **options)
    return opened


_HOME = {"Loader": "base", "LoadPlan": "plan", "Stats": "plan", "measure_buckets": "plan"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
