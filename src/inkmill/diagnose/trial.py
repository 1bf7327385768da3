"""The proof: training itself with the settings of the plan, for a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from math import inf
from time import monotonic, perf_counter
from typing import Any

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.types import Batch
from inkmill.diagnose.cold import drop
from inkmill.diagnose.rig import StepHarness, for_ever
from inkmill.diagnose.sample import Sampled, enough_to_try
from inkmill.diagnose.windows import Interval, Rounds, in_rounds, interval
from inkmill.training.loop import TrainingLoop

_WARM_STEPS = 3
_COLD_WINDOWS = 3  # at least: each takes some batches of every worker


def changed(spec: Spec, overrides: dict[str, Any]) -> Spec:
    """Return the spec with some keys changed, the way a command line changes them."""
    given = [(f"{name}", value) for name, value in spec.model_dump(exclude_defaults=True).items()]
    return load_spec(None, [*given, *overrides.items()])


def open_warm(rig: StepHarness, seconds: float) -> DeviceLoader:
    """Open the real loader and take so many batches that everything that is kept is kept, if the time allows."""
    loader = rig.open_real()
    try:
        until, fills = monotonic() + seconds, rig.spec.dataset.cache not in ("none", "gpu")
        while True:
            for number, _ in enumerate(loader):
                if monotonic() > until or (not fills and number >= rig.spec.dataset.workers):
                    return loader
            if fills or monotonic() > until:
                return loader
    except BaseException:
        loader.close()
        raise


def run_trial(
    spec: Spec,
    sampled: Sampled,
    seconds: float,
    warm_s: float,
    cold: bool = False,
    loop: TrainingLoop | None = None,
    tell: Callable[[str], None] = print,
) -> Interval:
    """Train for about `seconds`, after at most `warm_s` of filling what is kept, and return the images a second.

    Args:
        spec: the settings.
        sampled: stands for the whole set.
        seconds, warm_s: see above.
        cold: read from the disk in every epoch, as a set does that is larger than the page cache; left out where an
            epoch of the sample has fewer batches than are made at a time.
        loop: see Rig.
        tell: gets a sentence where it was not cold after all.

    Raises:
        InkmillError: these settings cannot run here.
    """
    cold = cold and spec.dataset.cache == "none"
    if cold:
        sampled = enough_to_try(sampled, spec)
    rig = StepHarness(spec, sampled.prepared, batches=1, loop=loop)
    try:
        with open_warm(rig, warm_s) if spec.dataset.cache != "none" else rig.open_real() as loader:
            if cold and len(loader) <= _makers(loader):
                tell(
                    f"the trial read from memory, not from the disk: the sample has {len(loader)} batches"
                    f" of {spec.dataset.batch_size}, and {_makers(loader)} are made at a time"
                )
                cold = False
            window = _cold_window(rig, loader, seconds / 8) if cold else _window(rig, loader, seconds / 8)
            rounds = Rounds(seconds, least=_COLD_WINDOWS, narrow=0.01) if cold else Rounds(seconds, narrow=0.01)
            return interval(in_rounds({"images/s": window}, rounds)["images/s"])
    finally:
        rig.close()


def _window(rig: StepHarness, loader: DeviceLoader, seconds: float) -> Callable[[], float]:
    """Windows follow each other without a pause, so nothing is made between them."""
    batches = for_ever(loader)  # an epoch of its own: what was made ahead of others must not count
    _warm_up(rig, batches, 2 * rig.spec.dataset.workers, 2 * seconds)
    return lambda: _speed(rig, batches, seconds)


def _warm_up(rig: StepHarness, batches: Iterator[Batch], steps: int, seconds: float) -> None:
    """Do some steps, in which what is compiled is compiled, then up to so many more, for so long.

    The others use up what was made ahead meanwhile, which must not count as made in a window.
    """
    until = inf
    for number in range(_WARM_STEPS + steps):
        if number == _WARM_STEPS:
            until = monotonic() + seconds
        if monotonic() > until:
            break
        rig.step(next(batches))
        rig.settle()


def _cold_window(rig: StepHarness, loader: DeviceLoader, seconds: float) -> Callable[[], float]:
    """Each window is a part of an epoch whose files were dropped before it.

    Makers that start together finish together. So the clock runs from one batch to that which the same maker may have
    made some rounds later: over another number of batches it would count some that were ready when it started.
    """
    epochs, makers = count(1000, 2), _makers(loader)
    _warm_up(rig, for_ever(loader), 0, seconds)

    def window() -> float:
        source = loader.plan.source
        loader.release()  # workers have the files mapped, and may be reading ahead
        drop(source, range(len(source)))
        loader.set_epoch(next(epochs))
        batches = iter(loader)
        for _ in range(1 + (len(loader) - 1) % makers):
            rig.step(next(batches))
        rig.settle()
        return _speed(rig, batches, seconds, makers)

    return window


def _makers(loader: DeviceLoader) -> int:
    return max(1, loader.loader.workers)


def _speed(rig: StepHarness, batches: Iterator[Batch], seconds: float, at_a_time: int = 1) -> float:
    """Return images a second of training on batches, so many at a time, for a while, or until they end."""
    began, images = perf_counter(), 0
    for number, batch in enumerate(batches, 1):
        rig.step(batch)
        images += len(batch)
        if number % at_a_time == 0 and perf_counter() - began > seconds:
            break
    rig.settle()
    return images / (perf_counter() - began)
