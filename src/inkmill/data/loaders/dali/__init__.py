"""NVIDIA DALI as a loader, and whether it is installed. Only graph.py and reader.py import nvidia.dali.

Read in this order: loader.py (the loader), staging.py (what goes into DALI for a batch), inputs.py (as which arrays),
prefetch.py (who stages ahead), graph.py (what DALI does with it), reader.py (reading by DALI itself).
"""

from __future__ import annotations

import importlib.util

from inkmill.errors import MissingExtraError


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
    """Return the extra that installs DALI for the CUDA of torch, else for the newest."""
    try:
        import torch
    except ImportError:
        return "dali-cuda13"
    return "dali-cuda12" if (torch.version.cuda or "13").startswith("12.") else "dali-cuda13"


def reason_of(error: RuntimeError) -> str:
    """Return the line of DALI's report that says what went wrong; the rest is about its own source code."""
    lines = [line.strip() for line in str(error).splitlines()]
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    return next((line for line in after if line and not line.startswith("Critical error")), "no reason given")
