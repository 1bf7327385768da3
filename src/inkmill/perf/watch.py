"""Watches, while training runs, whether it waits for its data, and says once what would help.

What the first seconds of a run cost (processes start, kernels are chosen) and what an epoch costs that fills a cache is
not what the rest will cost, so neither is judged. After that each minute is; a stall above `rules.STALL_SHARE` is worth
a line, once for each cause. What would help is predicted from the loader's own stage clock, by the predictor and the
table of rules that `inkmill diagnose` has too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from inkmill import machine
from inkmill.config.spec import Spec
from inkmill.data.loaders import loader_for
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.loaders.plan import Seconds, Stats, add
from inkmill.perf import rules
from inkmill.perf.plan import make_plan, words_of
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost, look_up

WARM_UP_S = 10.0
WINDOW_S = 60.0
SHORTEST_RUN_S = 10.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was measured while training waited.

    Attributes:
        seconds: of training.
        images: trained on meanwhile.
        share: of the time, 0..1, that training waits for data.
        busy: share of the time, 0..1, that the loader's workers were at work.
        copying: share of the waiting, 0..1, that was for a batch's copy to the GPU.
        stages: seconds by stage, of all workers together.
    """

    seconds: float
    images: int
    share: float
    busy: float
    copying: float
    stages: Seconds

    def slowest(self) -> tuple[str, float]:
        """Return the stage that took most, and its share of all stages."""
        seconds = {stage: max(0.0, some) for stage, some in self.stages.items()}
        stage = max(seconds, key=lambda name: seconds[name], default="other")
        return stage, seconds.get(stage, 0.0) / (sum(seconds.values()) or 1.0)


@dataclass(frozen=True, slots=True)
class Advice:
    """One line for people.

    Attributes:
        cause: a key of `rules.RULES`.
        line: how much time is lost, to what, and what would help.
    """

    cause: str
    line: str


def advise(waiting: Waiting, settings: Settings, facts: Facts) -> Advice:
    """Name the cause of waiting and the setting that would help.

    Args:
        waiting: what was measured.
        settings: how the run loads.
        facts: of the machine and the data; costs and step are taken from `waiting`.
    """
    cause, reason = _cause(waiting, settings)
    info = loader_for(settings.loader, settings.cache)
    change: dict[str, Any] = {}
    if info.processes or settings.cache == "gpu":  # of other loaders too little is known to predict another one
        facts = _with_costs(facts, waiting, settings, cause)
        stays = ("loader", "workers") if cause in ("copy", "handover") else ()  # more workers would idle too
        plan = make_plan(settings, facts, fixed=stays)
        if 1 - 1 / plan.change_gain >= rules.WINS_BACK * waiting.share:
            change = plan.change
    remedy = rules.otherwise(cause, facts)
    if change:
        tier = change.get("dataset.cache", settings.cache)
        free = facts.room.get(tier, 0) / rules.CACHE_ROOM.get(tier, 1.0)
        fits = f"{rules.size_words(facts.cache_bytes)} of {rules.size_words(free)} free; "
        fits = fits if change.keys() & {"dataset.cache", "dataset.cache_gib"} else ""
        remedy = f"set {words_of(change)} ({fits}predicted: {plan.change_gain:.2g} times as fast)"
    return Advice(cause, f"{waiting.share:.0%} of the time training waits for data; {reason}: {remedy}")


def _cause(waiting: Waiting, settings: Settings) -> tuple[str, str]:
    """Return the cause of waiting, a key of the table, and the reason in words."""
    info = loader_for(settings.loader, settings.cache)
    if waiting.copying > rules.COPY_ABOVE:
        return "copy", f"{waiting.copying:.0%} of that is for {rules.RULES['copy'].words}"
    if settings.workers and waiting.busy < rules.IDLE_BELOW:
        idle = f"{1 - waiting.busy:.0%} of the time"
        if not info.processes and settings.cache != "gpu":
            return "loader", f"{rules.RULES['loader'].words} takes it, for what feeds {info.name} is idle {idle}"
        return "handover", f"the workers that load are idle {idle}"
    stage, share = waiting.slowest()
    whose = "the workers'" if info.processes and settings.workers else "the loader's"
    return stage, f"{rules.RULES[stage].words} takes {share:.0%} of {whose} time"


def _with_costs(facts: Facts, waiting: Waiting, settings: Settings, cause: str) -> Facts:
    """Return the facts with what the stage clock tells of an image, and what is left of the time told of the step."""
    images = max(1, waiting.images)
    an_image = {stage: max(0.0, some) / images for stage, some in waiting.stages.items()}
    # Where all of the time was waiting, the step costs next to nothing: not zero, for speeds are divided by it.
    step_s = max(waiting.seconds * (1 - waiting.share) / images, rules.LEAST_STEP_S)
    taken = an_image.get("cache", 0.0)
    costs = ImageCost(
        read=an_image.get("read", 0.0),
        decode=an_image.get("decode", 0.0),
        resize=an_image.get("resize", 0.0),
        augment=an_image.get("augment", 0.0),
        other=an_image.get("other", 0.0),
        cached=taken or rules.CACHED_IMAGE_S + facts.cache_bytes / facts.samples / rules.COPY_BYTES_PER_S,
        transfer=waiting.seconds * waiting.share / images if cause in ("copy", "handover") else 0.0,
        augment_gpu=rules.GPU_AUGMENT_S if facts.gpu_can_augment else None,
        augment_host=rules.GPU_AUGMENT_S if facts.gpu_can_augment else 0.0,
    )
    step = StepCost(
        settings.batch_size, settings.precision, settings.compile, settings.channels_last, seconds=step_s, host=step_s
    )
    return replace(facts, costs=costs, steps=(step,))


def watch_loader(loader: DeviceLoader, spec: Spec, ranks: int) -> WaitingWatch:
    """Return the watch of a training loader.

    Args:
        loader: the one that is trained from.
        spec: what it was opened by, `auto` decided.
        ranks: trainers on this machine.
    """
    at_work, dataset = _CoresAtWork(), spec.dataset
    counts = loader_for(dataset.loader, dataset.cache).processes or dataset.cache == "gpu"
    workers = loader.loader.workers if counts else dataset.workers  # what feeds other loaders is their own affair
    settings = settings_in_use(spec, loader.loader.augment_on, workers, spec.train.precision)

    def advised(waiting: Waiting) -> Advice:
        return advise(waiting, settings, _facts(loader, spec, ranks, waiting, at_work.since_last()))

    return WaitingWatch(loader.stats, max(1, settings.workers), advised)


def settings_in_use(spec: Spec, augment_on: str, workers: int, precision: str) -> Settings:
    """Return how a run loads and trains.

    Args:
        spec: the resolved spec.
        augment_on: who augments.
        workers: how many batches are assembled at a time.
        precision: "auto" decided.
    """
    dataset, train = spec.dataset, spec.train
    info = loader_for(dataset.loader, dataset.cache)
    return Settings(
        loader=info.name if info.selectable else "workers",
        workers=workers,
        cache=dataset.cache,
        cache_gib=dataset.cache_gib,
        augment_on="gpu" if augment_on == "gpu" else "cpu",
        options=tuple((name, getattr(dataset, name)) for name in info.options),
        batch_size=dataset.batch_size,
        precision=precision,
        compile=train.compile,
        channels_last=train.channels_last,
    )


def _facts(loader: DeviceLoader, spec: Spec, ranks: int, waiting: Waiting, cores_at_work: float) -> Facts:
    """Return what is known beside the clocks; `cores_at_work` of the whole machine, by whatever program."""
    found = look_up(loader.plan, spec.dataset, loader.device, ranks, cache_filled=True)
    own = 1 + waiting.busy * max(1, loader.loader.workers)  # the training process, and its workers
    elsewhere = (os.cpu_count() or 1) - found["cores"] * ranks  # cores that this process may not use
    others = max(0.0, (cores_at_work - elsewhere) / ranks - own)
    free = min(float(found["cores"]), max(own, found["cores"] - others))
    nothing = ImageCost(0.0, 0.0, 0.0)
    return Facts(nothing, (), epochs=spec.train.num_epochs, free_cores=free, **found)


class _CoresAtWork:
    """How many of the machine's cores all its programs together keep busy."""

    def __init__(self) -> None:
        self._since, self._busy_s = perf_counter(), machine.busy_core_seconds()

    def since_last(self) -> float:
        """Return their mean number since the last call, or since the start; 0 where the system does not tell."""
        before, busy_before = self._since, self._busy_s
        self._since, self._busy_s = perf_counter(), machine.busy_core_seconds()
        if self._busy_s is None or busy_before is None:
            return 0.0
        return (self._busy_s - busy_before) / max(1e-3, self._since - before)


@dataclass(slots=True)
class _Span:
    """Some time of training, and where it went."""

    seconds: float = 0.0
    stalled_s: float = 0.0
    copy_s: float = 0.0
    images: int = 0
    stages: Seconds = field(default_factory=dict)

    def add(self, other: _Span) -> None:
        self.seconds += other.seconds
        self.stalled_s += other.stalled_s
        self.copy_s += other.copy_s
        self.images += other.images
        add(self.stages, other.stages)

    def since(self, before: _Span) -> _Span:
        return _Span(
            self.seconds - before.seconds,
            self.stalled_s - before.stalled_s,
            self.copy_s - before.copy_s,
            self.images - before.images,
            {stage: some - before.stages.get(stage, 0.0) for stage, some in self.stages.items()},
        )

    @property
    def share(self) -> float:
        return min(1.0, self.stalled_s / self.seconds) if self.seconds > 0 else 0.0

    def waiting(self, workers: int) -> Waiting:
        busy = sum(self.stages.values()) / max(1e-9, self.seconds * workers)
        copying = self.copy_s / max(1e-9, self.stalled_s)
        return Waiting(self.seconds, self.images, self.share, busy, copying, dict(self.stages))


class WaitingWatch:
    """Sums up the epochs of a run.

    Args:
        stats: of the training loader.
        workers: how many batches are assembled at a time, at least 1.
        advise: turns what was measured into a line.
    """

    def __init__(self, stats: Stats, workers: int, advise: Callable[[Waiting], Advice]) -> None:
        self._stats, self._workers, self._advise = stats, workers, advise
        self._before: _Span | None = None  # the clocks when they were last read; None between epochs
        self._judged_from: float | None = None  # None: before the first epoch
        self._counts = True
        self._window = _Span()  # the minute that is being judged
        self._judged = _Span()  # all that was judged
        self._all = _Span()  # the whole run, start and filling of caches included
        self._given: dict[str, Advice] = {}

    def epoch_starts(self, now: float, counts: bool = True) -> None:
        """Begin to look.

        Args:
            now: seconds of any steady clock.
            counts: whether this epoch is like the others.
        """
        self._judged_from = now + WARM_UP_S if self._judged_from is None else self._judged_from
        self._before, self._counts = self._read(now), counts

    def look(self, now: float) -> str | None:
        """Return the line that is due, or None."""
        if self._before is None:
            return None
        # 1. What passed since the last look.
        read = self._read(now)
        span, begun = read.since(self._before), self._before.seconds
        self._before = read
        self._all.add(span)
        assert self._judged_from is not None
        if not self._counts or begun < self._judged_from:
            return None
        # 2. A whole minute is judged at a time, over short epochs too.
        self._judged.add(span)
        self._window.add(span)
        if self._window.seconds < WINDOW_S:
            return None
        window, self._window = self._window, _Span()
        return self._line(window)

    def epoch_ends(self, now: float) -> str | None:
        """Look a last time until the next epoch starts."""
        line = self.look(now)
        self._before = None
        return line

    def summary(self) -> str | None:
        """Return the line for the end of the run, or None where it hardly waited."""
        if self._judged.seconds < SHORTEST_RUN_S or self._judged.share <= rules.STALL_SHARE:
            return None
        return f"over the run, {self._advise(self._judged.waiting(self._workers)).line}"

    def as_dict(self) -> dict[str, Any]:
        """Return the figures of the whole run, start and filling of caches included, and the advice given."""
        return {
            "seconds": round(self._all.stalled_s, 3),
            "share": round(self._all.share, 4),
            "stages": {stage: round(seconds, 3) for stage, seconds in self._all.stages.items()},
            "images": self._stats.images,
            "advice": [advice.line for advice in self._given.values()],
        }

    def _read(self, now: float) -> _Span:
        stats = self._stats
        return _Span(now, stats.stalled_s, stats.copy_s, stats.images, dict(stats.stages))

    def _line(self, window: _Span) -> str | None:
        """Return the advice on a minute, where it waited and its cause is new."""
        if window.share <= rules.STALL_SHARE:
            return None
        advice = self._advise(window.waiting(self._workers))
        if advice.cause in self._given:
            return None
        self._given[advice.cause] = advice
        return advice.line
