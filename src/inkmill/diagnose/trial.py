"""The proof: training itself with the settings of the plan, for a few seconds."""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import Any

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.loaders.device import DeviceLoader
from inkmill.diagnose.rig import Rig, for_ever
from inkmill.diagnose.sample import Sampled
from inkmill.diagnose.windows import Interval, Rounds, in_rounds, interval

_WARM_STEPS = 3


def changed(spec: Spec, overrides: dict[str, Any]) -> Spec:
    """Return the spec with some keys changed, the way a command line changes them."""
    given = [(f"{name}", value) for name, value in spec.model_dump(exclude_defaults=True).items()]
    return load_spec(None, [*given, *overrides.items()])


def open_warm(rig: Rig, seconds: float) -> DeviceLoader:
    """Open the real loader and take so many batches that everything that is kept is kept, if the time allows."""
    loader = rig.open_real()
    try:
        until, fills = monotonic() + seconds, rig.spec.dataset.keep not in ("none", "gpu")
        while True:
            for number, _ in enumerate(loader):
                if monotonic() > until or (not fills and number >= rig.spec.dataset.workers):
                    return loader
            if fills or monotonic() > until:
                return loader
    except BaseException:
        loader.close()
        raise


def run_trial(spec: Spec, sampled: Sampled, seconds: float, warm_s: float) -> Interval:
    """Train for about `seconds`, after at most `warm_s` of filling what is kept, and return the images a second.

    The sample stands for the whole: pictures are kept as far as they are of the whole set.

    Raises:
        InkmillError: these settings cannot run here.
    """
    rig = Rig(spec, sampled.prepared)
    try:
        with open_warm(rig, warm_s) as loader:
            return speed(rig, loader, seconds)
    finally:
        rig.close()


def speed(rig: Rig, loader: DeviceLoader, seconds: float) -> Interval:
    """Train on a loader for about `seconds`; windows follow each other without a pause, so nothing is made between."""
    batches = for_ever(loader)
    for _ in range(max(_WARM_STEPS, 2 * rig.spec.dataset.workers)):
        rig.step(next(batches))
    rig.settle()
    window_s = seconds / 8

    def window() -> float:
        began, images = perf_counter(), 0
        while perf_counter() - began < window_s or not images:
            batch = next(batches)
            rig.step(batch)
            images += len(batch)
        rig.settle()
        return images / (perf_counter() - began)

    return interval(in_rounds({"images/s": window}, Rounds(seconds, narrow=0.01))["images/s"])
