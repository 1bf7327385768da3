"""How fast training will be: a bottleneck model in closed form.

Training is as fast as the slowest of what it needs: the device for the step, each worker for its image, the cores for
everything on the CPU, the training process for handing over. Near a tie the real thing is slower than either, for
their hiccups do not coincide; a sum of high powers of the times stands for that, so that headroom counts a little, and
more of it where workers wait for a disk, whose hiccups are larger.

    GPU     device, workers and the training process work at the same time
    CPU     the step takes cores too: all work together is bounded by the cores
    0       workers: the training process makes the batch itself, between steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inkmill.diagnose.facts import Facts, Settings, Step

_SHARPNESS = 8
_WAITING_SHARPNESS = 4

Limits = dict[str, float]
"""Seconds an image that each thing needs; the largest is the limit."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A speed and what limits it.

    Attributes:
        settings: of what.
        images_per_s: once everything that is kept is kept.
        of_run: images a second over the whole run, its first epoch included.
        limit: step, workers, cores, host, or dali.
    """

    settings: Settings
    images_per_s: float
    of_run: float
    limit: str


def predict(settings: Settings, facts: Facts) -> Prediction:
    """Return the speed of training with `settings`.

    Raises:
        ValueError: the step of these settings was not measured.
    """
    step = step_of(settings, facts)
    cached, cold = facts.cached_share(settings.cache), not facts.page_cached
    later, first = _limits(settings, facts, step, cached, cold), _limits(settings, facts, step, 0.0, cold=True)
    waits = facts.stages.wait > 0
    steady, start = _seconds(later, waits and cold and cached < 1), _seconds(first, waits)
    if settings.cache == "gpu":  # the pictures are loaded before the first epoch, which is then like the others
        start += steady
    average = (start + (facts.epochs - 1) * steady) / facts.epochs
    return Prediction(settings, 1 / steady, 1 / average, max(later, key=lambda name: later[name]))


def step_of(settings: Settings, facts: Facts) -> Step:
    """Return the measured step of some settings."""
    for step in facts.steps:
        if all(getattr(settings, name) == value for name, value in settings.with_step(step).items()):
            return step
    raise ValueError(f"no step was measured for {settings}")


def _seconds(limits: Limits, waits: bool) -> float:
    longest, power = max(limits.values()), _WAITING_SHARPNESS if waits else _SHARPNESS
    if math.isinf(longest):
        return longest
    return longest * math.pow(sum((one / longest) ** power for one in limits.values()), 1 / power)


def _limits(settings: Settings, facts: Facts, step: Step, cached: float, cold: bool) -> Limits:
    """Return what each part needs for an image of which the share `kept` is kept, and the rest read `cold` or not."""
    stages = facts.stages
    on_gpu = settings.augment_on == "gpu" or settings.cache == "gpu"
    device = step.seconds + ((stages.augment_gpu or 0.0) if on_gpu else 0.0)
    host = step.host + (stages.augment_host if on_gpu else 0.0)
    if settings.loader == "dali" and cached < 1:
        rate = facts.dali.get(settings.decode_on, 0.0)
        alone = 1 / rate if rate else float("inf")
        reading = (stages.wait + stages.fetch if cold else 0.0) / _dali_readers(facts.cores)
        # Measured warm, with all cores for itself: what others, or fetching, take of those is lost to DALI.
        others = host + (stages.fetch if cold else 0.0)
        return {"step": device, "host": host, "dali": alone + others / _cores(facts), "workers": reading}
    augment = 0.0 if on_gpu else stages.draw + stages.augment
    fresh = stages.fresh + (stages.fetch if cold else 0.0)
    if not augment and settings.cache == "none" and stages.hand_over is not None:  # see HostMemory.may_be_ragged
        fresh += stages.hand_over - stages.resize
    if settings.cache == "gpu" and cached == 1:
        return {"step": device, "host": host}
    work = (1 - cached) * fresh + cached * stages.cached + augment + stages.other
    wait = (1 - cached) * stages.wait if cold else 0.0
    if settings.workers == 0:
        own = work + wait + host
        return {"step": device, "host": own} if facts.on_gpu else {"step": device + work + wait}
    makers = settings.workers
    each = work / efficiency(makers, facts)
    # On a CPU `host` is the step's own CPU time.
    return {
        "step": device,
        "workers": (each + wait) / makers,
        "cores": (each + host) / _cores(facts),
        **({"host": host} if facts.on_gpu else {}),
    }


def _dali_readers(cores: int) -> int:
    """Return who reads for DALI at a time, see DaliLoader: some processes, or two threads."""
    return min(cores // 4, 3) or 2


def _cores(facts: Facts) -> float:
    return facts.cores if facts.free_cores is None else facts.free_cores


def efficiency(makers: int, facts: Facts) -> float:
    """Return what one of `makers` processes does, as a share of what it would do alone: from 1 to the measured one."""
    if facts.cores < 2:
        return 1.0
    return 1 - (1 - facts.efficiency) * (min(makers, facts.cores) - 1) / (facts.cores - 1)
