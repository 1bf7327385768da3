"""The machine's stamp: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from inkmill.machine import cores, cpu_model

__all__ = ["cores", "in_words", "machine_stamp"]

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


def in_words(stamp: dict[str, Any]) -> str:
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
