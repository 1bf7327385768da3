"""NVIDIA DALI as a loader, and whether it is installed. Only graph.py and reader.py import nvidia.dali.

Read in this order: loader.py (the loader), staging.py (what goes into DALI for a batch), inputs.py (as which arrays),
prefetch.py (who stages ahead), graph.py (what DALI does with it), reader.py (reading by DALI itself).
"""

from __future__ import annotations

import importlib.util
import re
import subprocess

from inkmill.errors import MissingExtraError

_NEWEST_CUDA = 13


def has_dali() -> bool:
    """Return whether DALI is installed, without loading its hundreds of megabytes."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # not even a package named nvidia
        return False


def require_dali(needed_for: str) -> None:
    """Return if DALI is installed.

    Raises:
        MissingExtraError: it is not; the message has the pip line for this machine's CUDA.
    """
    if not has_dali():
        raise MissingExtraError("nvidia.dali", dali_extra(), needed_for)


def dali_extra() -> str:
    """Return the extra that installs DALI for the CUDA of torch, else of the driver, else the newest."""
    major = _cuda_of_torch() or _cuda_of_driver() or _NEWEST_CUDA
    return "dali-cuda12" if major <= 12 else "dali-cuda13"


def _cuda_of_torch() -> int | None:
    try:
        import torch
    except ImportError:
        return None
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def _cuda_of_driver() -> int | None:
    try:
        output = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"CUDA Version: (\d+)", output)
    return int(found[1]) if found else None
