"""What the measurements come to: one word, one sentence, one change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from inkmill.diagnose.fixed_batch import BAR, FixedBatch, Stall
from inkmill.diagnose.plan import Plan
from inkmill.diagnose.stages import StageTimes
from inkmill.diagnose.storage import Storage

VerdictName = Literal["compute", "copy", "prepare", "fetch", "launch", "none", "cannot tell"]

_CROWDED = 0.5  # cores that other programs use, from which on they are named


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        name: what limits training; "none": nothing that a setting could mend; "cannot tell": too much noise.
        sentence: it with its number and the one change to make.
        change: the change as spec keys; empty where it is not one of the spec.
    """

    name: VerdictName
    sentence: str
    change: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made from.

    Attributes:
        test, stages, storage, plan: as measured and made.
        epochs: of the run.
        page_cached: the set stays in the page cache, so that fetching costs in the first epoch only.
        on_gpu: training runs on a GPU.
        tried_steps: other ways to do the step were tried.
        others_cores: how many cores other programs used meanwhile; None: unknown.
        convert: the command that makes shards of the set.
    """

    test: FixedBatch
    stages: StageTimes
    storage: Storage
    plan: Plan
    epochs: int = 1
    page_cached: bool = False
    on_gpu: bool = False
    tried_steps: bool = False
    others_cores: float | None = None
    convert: str = ""


def judge(evidence: Evidence) -> Verdict:
    """Name the largest real stall, or the step where that wastes more; without any, noise that could hide one."""
    real = [stall for stall in evidence.test.stalls if stall.state == "real" and _weight(stall, evidence) > BAR]
    if not evidence.on_gpu and not saturated(evidence.test):
        real = [stall for stall in real if stall.name != "launch"]
    if real:
        largest = max(real, key=lambda stall: _weight(stall, evidence))
        return _of_step(evidence) if _step_costs_more(largest, evidence) else _of_stall(largest, evidence)
    unclear = [one.name for one in evidence.test.stalls if one.state == "unclear" and one.name != "launch"]
    if unclear:
        return Verdict(
            "cannot tell",
            f"cannot tell: the times vary so much that {' and '.join(unclear)} may cost nothing or more than a tenth"
            f" of each step{_others(evidence)}; run it again when the machine is quieter",
        )
    return _of_step(evidence)


def saturated(test: FixedBatch) -> bool:
    """Return whether training on a CPU waits for a core longer than all else takes, its own work included."""
    launch = test.stall("launch")
    if launch is None or launch.state != "real":
        return False
    rest = sum(max(0.0, stall.seconds.mean) for stall in test.stalls if stall.name in ("copy", "prepare"))
    return launch.seconds.mean > test.step.mean + rest


def _weight(stall: Stall, evidence: Evidence) -> float:
    """Return a stall's share of the run: what comes in the first epoch only counts once."""
    return stall.share / evidence.epochs if stall.name == "fetch" and evidence.page_cached else stall.share


def _step_costs_more(stall: Stall, evidence: Evidence) -> bool:
    """Whether a faster step gains more than the stall's end would; where batches come late, it gains nothing."""
    return stall.name in ("launch", "copy") and evidence.plan.step_gain > 1 / (1 - min(stall.share, 0.99))


def _of_stall(stall: Stall, evidence: Evidence) -> Verdict:
    half = stall.seconds.half * 1e3
    measured = f"{stall.share:.0%} of each step ({stall.seconds.mean * 1e3:.3g} +- {half:.2g} ms)"
    match stall.name:
        case "fetch":
            when = " of the first epoch" if evidence.page_cached else ""
            lead = f"fetch: reading from the disk adds {stall.share:.0%} to each step{when}"
            if evidence.storage.converting_pays and evidence.convert and "dataset.cache" not in evidence.plan.change:
                gain = f"which reads {evidence.storage.gain:.1f} times as fast here"
                return Verdict("fetch", f"{lead}; convert the files to shards, {gain}: {evidence.convert}")
            return _with_change("fetch", lead, evidence, "copy the data set to a faster disk")
        case "prepare":
            stage = _largest_stage(evidence)
            lead = f"prepare: training waits for batches to be made for {measured}, most of it {stage}"
            return _with_change("prepare", lead, evidence, "give it more cores")
        case "copy":
            lead = f"copy: pictures are on their way to the GPU for {measured}"
            return _with_change("copy", lead, evidence, "make the model's input smaller")
    if evidence.on_gpu:
        lead = f"launch: the GPU waits for the host to issue its work for {measured}{_others(evidence)}"
        return _with_change("launch", lead, evidence, "use larger batches (dataset.batch_size)")
    lead = f"launch: the training process is ready and gets no core for {measured}{_others(evidence)}"
    return Verdict("launch", f"{lead}; stop what else runs here, or give it more cores")


def _of_step(evidence: Evidence) -> Verdict:
    test = evidence.test
    share = min(1.0, test.step.mean / test.warm.mean)
    took = f"{share:.0%} of the time ({test.step.mean * 1e3:.3g} ms)"
    lead = f"the model's step takes {took}, and loading hides behind it"
    launch = test.stall("launch")
    if not evidence.on_gpu and launch is not None and launch.state == "real":
        lead += f"; for {launch.share:.0%} of the time there is no core{_others(evidence)}"
    if evidence.plan.change:
        return _with_change("compute", f"compute: {lead}", evidence, "")
    if evidence.tried_steps:
        return Verdict("none", f"none: {lead}; no setting that was tried is faster")
    return Verdict("compute", f"compute: {lead}; a smaller model or a faster device would help, no loader would")


def _with_change(name: VerdictName, lead: str, evidence: Evidence, otherwise: str) -> Verdict:
    plan = evidence.plan
    if not plan.change:
        return Verdict(name, f"{lead}; no setting of inkmill's helps: {otherwise}")
    keys = " ".join(f"{key}={_spelled(value)}" for key, value in plan.change.items())
    return Verdict(name, f"{lead}; set {keys} (predicted: {_times(plan.change_gain)} as fast)", dict(plan.change))


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.1f} times" if factor >= 1.2 else f"{factor:.2f} times"


def _largest_stage(evidence: Evidence) -> str:
    names = {"read": "reading", "decode": "decoding", "resize": "fitting", "draw": "drawing numbers"}
    names |= {"augment": "augmentation", "collate": "laying out"}
    settings, times = evidence.plan.current.settings, evidence.stages.times
    for_gpu = {"draw", "augment"} if settings.augment_on == "gpu" else set[str]()
    if "hand over" in times and settings.cache == "none" and (for_gpu or "augment" not in times):
        for_gpu.add("resize")
    means = {name: time.mean for name, time in times.items() if name in names and name not in for_gpu}
    return names[max(means, key=lambda name: means[name])]


def _others(evidence: Evidence) -> str:
    cores = evidence.others_cores
    return f" (other programs use {cores:.1f} cores)" if cores is not None and cores > _CROWDED else ""


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
