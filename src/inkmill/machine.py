"""What this process may use of its machine, and the machine's stamp, without which a figure says nothing.

Containers, quotas and `taskset` allow less than the machine has, so nothing here asks for the machine's own numbers.
"""

from __future__ import annotations

import os
import platform
import threading
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_PACKAGES = (
    "inkmill",
    "numpy",
    "opencv-python-headless",
    "torch",
    "torchvision",
    "pillow",
    "lmdb",
    "webdataset",
    "albumentations",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "litdata",
    "spdl",
    "ffcv",
)


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's share of CPU time."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _quotas():
        if quota > 0 and period > 0:
            return min(allowed, max(1, round(quota / period)))
    return allowed


def physical_cores() -> int:
    """Return how many of the cores that this process may use are no second threads of another; `cores()` at most."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    siblings = {_text(_CPUS / f"cpu{number}/topology/thread_siblings_list") for number in allowed}
    return min(cores(), len(siblings)) if siblings and None not in siblings else cores()


def _quotas() -> list[tuple[int, int]]:
    """Return (quota, period) of cgroup v2 ("200000 100000"; "max" is no limit) and v1."""
    found = []
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        words = " ".join(_text(_CGROUP / file) or "" for file in files).split()
        if len(words) == 2 and all(word.lstrip("-").isdecimal() for word in words):
            found.append((int(words[0]), int(words[1])))
    return found


def memory_left() -> int | None:
    """Return the bytes of memory that can still be used, by the system's and the container's account; None: unknown."""
    meminfo = _text(Path("/proc/meminfo")) or ""
    lines = [line.split() for line in meminfo.splitlines() if line.startswith("MemAvailable:")]
    if not lines:
        return None
    left = int(lines[0][1]) * 1024
    limit, used = _text(_CGROUP / "memory.max"), _text(_CGROUP / "memory.current")
    if limit and used and limit.strip().isdecimal():
        left = min(left, max(0, int(limit) - int(used)))
    return left


def cpu_model() -> str:
    """Return the name of the processor."""
    lines = (_text(Path("/proc/cpuinfo")) or "").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def waited_for_core() -> float | None:
    """Return the seconds that this thread was ready to run and had no core, since it began; None: unknown."""
    told = _text(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat"))
    words = (told or "").split()  # ran ns, waited ns, times
    return int(words[1]) / 1e9 if len(words) == 3 else None


def busy_core_seconds() -> float | None:
    """Return the CPU time in seconds that all programs took on the cores that this process may use; None: unknown."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    lines = [line.split() for line in (_text(Path("/proc/stat")) or "").splitlines() if line.startswith("cpu")]
    busy = {words[0]: sum(map(int, words[1:4])) for words in lines if len(words) > 4}  # user, nice, system
    mine = [busy[name] for name in (f"cpu{number}" for number in allowed) if name in busy]
    return sum(mine) / os.sysconf("SC_CLK_TCK") if mine else None


def machine_stamp() -> dict[str, Any]:
    """Return what a figure of this machine must name, as plain values for JSON.

    Returns:
        date (UTC, ISO 8601), system, python, cpu, cores (those this process may use), memory_gib, gpus (a list of
        {name, memory_gib}), load (processes waiting for the CPU over the last minute, or None) and versions.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gib": _memory_gib(),
        "gpus": _gpus(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": _versions(),
    }


def stamp_line(stamp: dict[str, Any]) -> str:
    """Return a stamp as one line, for the head of a table."""
    gpus = ", ".join(gpu["name"] for gpu in stamp["gpus"]) or "no GPU"
    load = "" if stamp["load"] is None else f", load {stamp['load']}"
    return f"{stamp['cpu']}, {stamp['cores']} cores, {stamp['memory_gib']} GiB, {gpus}{load}, {stamp['date'][:10]}"


def _memory_gib() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    return round(total / 2**30, 1)


def _gpus() -> list[dict[str, Any]]:
    try:
        import torch
    except ImportError:
        return []
    found = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return [{"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1)} for gpu in found]


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
