"""What the measurements amount to: one word, one sentence, one change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from inkmill.diagnose.fixed_batch import FixedBatch
from inkmill.diagnose.probe import Times
from inkmill.perf.plan import TuningPlan, words_of
from inkmill.perf.predict import Facts
from inkmill.perf.rules import CROWDED_CORES, RULES, STALL_SHARE, otherwise
from inkmill.perf.stats import Stall

VerdictName = Literal["compute", "copy", "prepare", "fetch", "launch", "none", "cannot tell"]


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        name: what limits training; "none": nothing that a setting could change; "cannot tell": too much noise.
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
        test, times, facts, plan: as measured and made.
        tried_steps: other ways to do the step were tried.
        others_cores: how many cores other programs used meanwhile; None: unknown.
    """

    test: FixedBatch
    times: Times
    facts: Facts
    plan: TuningPlan
    tried_steps: bool = False
    others_cores: float | None = None


def judge(evidence: Evidence) -> Verdict:
    """Name the largest real stall, or the step where that wastes more; without any, noise that could hide one."""
    test, on_gpu = evidence.test, evidence.facts.on_gpu
    # 1. A real stall. On a CPU waiting for a core counts only where it is more than all else together.
    real = [one for one in test.stalls if one.state == "real" and _weight(one, evidence) > STALL_SHARE]
    if not on_gpu and not saturated(test):
        real = [stall for stall in real if stall.name != "launch"]
    if real:
        largest = max(real, key=lambda stall: _weight(stall, evidence))
        return _of_step(evidence) if _step_costs_more(largest, evidence) else _of_stall(largest, evidence)
    # 2. Noise that could hide one.
    unclear = [one.name for one in test.stalls if one.state == "unclear" and one.name != "launch"]
    if unclear:
        return Verdict(
            "cannot tell",
            f"cannot tell: the times vary so much that {' and '.join(unclear)} may cost nothing or more than a tenth"
            f" of each step{_others(evidence)}; run it again when the machine is quieter",
        )
    # 3. The step itself.
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
    facts = evidence.facts
    return stall.share / facts.epochs if stall.name == "fetch" and facts.page_cached else stall.share


def _step_costs_more(stall: Stall, evidence: Evidence) -> bool:
    """Whether a faster step gains more than the stall's end would; where batches come late, it gains nothing."""
    return stall.name in ("launch", "copy") and evidence.plan.step_gain > 1 / (1 - min(stall.share, 0.99))


def _of_stall(stall: Stall, evidence: Evidence) -> Verdict:
    half = stall.seconds.half * 1e3
    measured = f"{stall.share:.0%} of each step ({stall.seconds.mean * 1e3:.3g} +- {half:.2g} ms)"
    match stall.name:
        case "fetch":
            when = " of the first epoch" if evidence.facts.page_cached else ""
            lead = f"fetch: reading from the disk adds {stall.share:.0%} to each step{when}"
            return _with_change("fetch", lead, evidence, "read")
        case "prepare":
            stage = _largest_stage(evidence)
            lead = f"prepare: training waits for batches for {measured}, most of it {RULES[stage].words}"
            return _with_change("prepare", lead, evidence, stage)
        case "copy":
            return _with_change("copy", f"copy: images are on their way to the GPU for {measured}", evidence, "copy")
    if evidence.facts.on_gpu:
        lead = f"launch: the GPU waits for the host to launch its work for {measured}{_others(evidence)}"
        return _with_change("launch", lead, evidence, "launch")
    lead = f"launch: the training process is ready and gets no core for {measured}{_others(evidence)}"
    return Verdict("launch", f"{lead}; {otherwise('launch', evidence.facts)}")


def _of_step(evidence: Evidence) -> Verdict:
    test = evidence.test
    share = min(1.0, test.step.mean / test.warm.mean)
    took = f"{share:.0%} of the time ({test.step.mean * 1e3:.3g} ms)"
    lead = f"the model's step takes {took}, and loading hides behind it"
    launch = test.stall("launch")
    if not evidence.facts.on_gpu and launch is not None and launch.state == "real":
        lead += f"; for {launch.share:.0%} of the time there is no core{_others(evidence)}"
    if evidence.tried_steps and not evidence.plan.change:
        return Verdict("none", f"none: {lead}; no setting that was tried is faster")
    return _with_change("compute", f"compute: {lead}", evidence, "compute")


def _with_change(name: VerdictName, lead: str, evidence: Evidence, cause: str) -> Verdict:
    """Return a verdict with the plan's change, or with what the table of rules says where there is none."""
    plan = evidence.plan
    if not plan.change:
        return Verdict(name, f"{lead}; {otherwise(cause, evidence.facts)}")
    predicted = f"predicted: {_times(plan.change_gain)} as fast"
    return Verdict(name, f"{lead}; set {words_of(plan.change)} ({predicted})", dict(plan.change))


def _times(factor: float) -> str:
    return f"{factor:.0f} times" if factor >= 10 else f"{factor:.1f} times" if factor >= 1.2 else f"{factor:.2f} times"


def _largest_stage(evidence: Evidence) -> str:
    """Return the stage of the loader that takes most, what the GPU does left out."""
    settings, times = evidence.plan.current.settings, evidence.times
    names = {"read", "decode", "resize", "augment", "other"}
    if settings.augment_on == "gpu":
        names -= {"augment"}
        if "resize (GPU)" in times and settings.cache == "none":
            names -= {"resize"}
    means = {name: time.mean for name, time in times.items() if name in names}
    return max(means, key=lambda name: means[name])


def _others(evidence: Evidence) -> str:
    cores = evidence.others_cores
    return f" (other programs use {cores:.1f} cores)" if cores is not None and cores > CROWDED_CORES else ""
