"""Does the plan fit the machine? Three machines on one GPU, each plan tried on each of them.

    python benchmarks/diagnose_profiles.py [--only PROFILE] [--seconds 100] [--trial 8] [--json FILE] [--smoke]

    many cores    all cores of this machine, samples in an LMDB
    few cores     2 cores, the same samples
    slow disk     2 cores, and each first read of a sample waits 2 ms, as a network's or a rotating disk's does

The cores are those that the process may use (sched_setaffinity), so the software sees a small machine; the slow disk is
a source that sleeps. The set counts as one of so many samples that neither RAM nor GPU holds it, and is trained on for
one epoch: else the answer on all three would be to keep it. OCRNet (ResNet, 2 BiLSTM, CTC, 32x100) on 3-channel JPEG
word crops, strong augmentation. `diagnose` starts from two workers, fp32, augmentation on the CPU, nothing kept.

The table: each profile's plan, predicted and measured, and what each plan makes on it, twice in turn. The exit code is
1 where another plan wins by more than 3 % on average, or where two plans are the same. A diagnosis on few cores gets
1.6 times as long: in the usual time it has none left to try a compiled backbone. A profile takes five minutes on one
H200, a diagnosis and six trials. `--smoke` runs two small profiles on a CPU: a test, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from injected import RepeatedSource, SlowDisk
from inkmill.bench.workload import strong_spec, write_crops
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.sources import LmdbSource, Source
from inkmill.diagnose.harness import take_sample
from inkmill.diagnose.run import diagnose
from inkmill.diagnose.validate_plan import changed, run_trial
from inkmill.machine import machine_stamp, stamp_line

FEW = 2
LATENCY_S = 0.002
TURNS = 2  # that each plan is tried on each profile
MORE_TIME = 1.6  # times as long a diagnosis takes on few cores, where starting and measuring processes take longer
REPEATED_TO = 500_000_000  # samples of the repeated set: 4.8 TB of resized images


Speeds = dict[str, list[float]]
"""By plan, the images/s of each turn."""


@dataclass(frozen=True)
class Profile:
    """A machine that is stood for."""

    name: str
    cores: int
    latency_s: float


def profiles(smoke: bool) -> list[Profile]:
    """Return the three machines, or a small one."""
    every = len(os.sched_getaffinity(0))
    if smoke:
        return [Profile("many cores", every, 0.0), Profile("slow disk", 1, LATENCY_S)]
    return [
        Profile("many cores", every, 0.0),
        Profile("few cores", FEW, 0.0),
        Profile("slow disk", FEW, LATENCY_S),
    ]


def spec_of(folder: Path, smoke: bool) -> Spec:
    """Return the settings that every profile starts from."""
    model = {"backbone": "ResNet", "sequence": "BiLSTM", "prediction": "CTC", "input_channel": 3, "input_width": 100}
    if smoke:
        model |= {"backbone": "VGG", "feature_channel": 8, "sequence": "none"}
    dataset: dict[str, Any] = {"batch_size": 16 if smoke else 512, "workers": 2, "augment_on": "cpu"}
    dataset["augmentation"] = strong_spec().model_dump(exclude_defaults=True)
    train = {"precision": "fp32", "num_epochs": 1, "optim": {"name": "adamw"}}
    given = {"model": model, "dataset": dataset, "train": train, "results_dir": str(folder / "results")}
    return load_spec(None, list(given.items()))


@contextmanager
def machine(profile: Profile, stored: Source, folder: Path) -> Iterator[Source]:
    """Make this process and those it starts see the profile's cores; yield its data."""
    allowed = os.sched_getaffinity(0)
    _confine(sorted(allowed)[: profile.cores])
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, profile.cores))
    source = SlowDisk(stored, profile.latency_s, folder / "flags.npy") if profile.latency_s else stored
    try:
        yield source
    finally:
        torch.set_num_threads(threads)
        _confine(allowed)


def _confine(cores: Iterable[int]) -> None:
    """Let every thread of this process run on these cores alone: torch's own for the gradients may exist already."""
    cores = list(cores)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def plan_of(profile: Profile, spec: Spec, source: Source, seconds: float) -> dict[str, Any]:
    """Diagnose on a profile."""
    whole = RepeatedSource(source, REPEATED_TO)
    found = diagnose(spec, lambda line: print(line, file=sys.stderr, flush=True), source=whole, seconds=seconds)
    return {
        "profile": profile.name,
        "verdict": found.verdict.sentence,
        "overrides": found.overrides,
        "settings": found.plan.best.settings.keys(),
        "now": found.now.mean,
        "predicted": found.plan.best.images_per_s,
        "measured": found.measured.mean,
        "seconds": found.seconds,
        "why": found.plan.why,
        "costs": asdict(found.facts.costs),
        "notes": found.notes,
        "phases": found.phases,
    }


def try_all(
    profile: Profile, plans: list[dict[str, Any]], spec: Spec, source: Source, seconds: float, found: Speeds
) -> Iterator[str]:
    """Add to `found` the images/s of every plan on a profile that it lacks; yield the names of the plans.

    The plans take turns, for what a disk and other programs do changes from minute to minute. All is read from the
    disk, as of a set that neither RAM nor the page cache holds.
    """
    for turn in range(TURNS):
        for plan in plans:
            speeds = found.setdefault(plan["profile"], [])
            if len(speeds) > turn:
                continue
            sampled = take_sample(spec, source, lambda line: None)
            settings = spec if not plan["overrides"] else changed(spec, plan["overrides"])
            try:
                speeds.append(run_trial(settings, sampled, seconds, 1.0, cold=True).mean)
            except Exception as error:  # a plan that a machine cannot run has lost there, whatever the reason
                print(f"{plan['profile']} on {profile.name}: {error}", file=sys.stderr)
                speeds.append(0.0)
            yield plan["profile"]


def show(plans: list[dict[str, Any]], tried: dict[str, Speeds], stamp: dict[str, Any]) -> bool:
    """Print the tables; return whether each plan wins on its own profile and no two are the same."""
    table = Table(title=stamp_line(stamp), title_justify="left")
    names = [f"plan of {plan['profile']}" for plan in plans]
    for heading in ("profile", "plan", "now", "predicted", "measured", *names):
        table.add_column(heading)
    good = len({json.dumps(plan["settings"], sort_keys=True) for plan in plans}) == len(plans)
    for plan in plans:
        name, words = plan["profile"], " ".join(f"{key}={value}" for key, value in plan["overrides"].items())
        turns = {whose: each for whose, each in tried.get(name, {}).items() if each}
        speeds = {whose: fmean(each) for whose, each in turns.items()}
        own = speeds.get(name, 0.0)
        good = good and all(own >= 0.97 * speed for speed in speeds.values())
        cells = [f"{plan['now']:,.0f}", f"{plan['predicted']:,.0f}", f"{plan['measured']:,.0f}"]
        each_turn = (turns.get(other["profile"], []) for other in plans)
        table.add_row(name, words, *cells, *(", ".join(f"{speed:,.0f}" for speed in each) for each in each_turn))
    Console(width=200).print(table)
    return good


def main() -> int:
    """Diagnose every profile, try every plan on each, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="diagnose, and try all plans on, this profile alone")
    parser.add_argument(
        "--seconds", type=float, default=100.0, help=f"of a diagnosis; {MORE_TIME} times as long on few cores"
    )
    parser.add_argument("--trial", type=float, default=8.0, help="seconds of each plan on each profile; 0 tries none")
    parser.add_argument("--images", type=int, default=150_000)
    parser.add_argument("--json", type=Path, help="what was found; what it holds already is not done again")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.images, args.seconds, args.trial = 200, 1.5, 0.3
    kept = json.loads(args.json.read_text("utf-8")) if args.json and args.json.exists() else {"plans": [], "tried": {}}
    plans = {plan["profile"]: plan for plan in kept["plans"]}
    tried: dict[str, Speeds] = kept["tried"]
    with tempfile.TemporaryDirectory(prefix="inkmill-profiles-") as name:
        folder = Path(name)
        stored = LmdbSource(write_crops(folder / "crops", args.images))
        spec, chosen = spec_of(folder, args.smoke), profiles(args.smoke)
        wanted = [profile for profile in chosen if args.only in profile.name]
        for profile in wanted:
            if profile.name not in plans:
                with machine(profile, stored, folder) as source:
                    longer = MORE_TIME if profile.cores <= FEW else 1.0
                    plans[profile.name] = plan_of(profile, spec, source, longer * args.seconds)
                print(json.dumps(plans[profile.name]), file=sys.stderr, flush=True)
                _cache_config(args.json, plans, tried)
        for profile in wanted if args.trial and all(one.name in plans for one in chosen) else []:
            found = tried.setdefault(profile.name, {})
            with machine(profile, stored, folder) as source:
                for name in try_all(profile, list(plans.values()), spec, source, args.trial, found):
                    print(f"the plan of {name} on {profile.name}: {found[name][-1]:,.0f}", file=sys.stderr, flush=True)
                    _cache_config(args.json, plans, tried)
    good = show(list(plans.values()), tried, machine_stamp())
    return 0 if good or args.only or args.smoke else 1


def _cache_config(path: Path | None, plans: dict[str, Any], tried: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps({"plans": list(plans.values()), "tried": tried}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
