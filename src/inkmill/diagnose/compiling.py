"""How long compiling a backbone will take: next to nothing where torch finds in its cache what it compiled before.

torch does not tell what its cache holds before it has traced the model. So an empty file in the cache's folder, named
by what the compiled code depends on, stands for each backbone that a diagnosis compiled; it goes when the cache goes.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import torch

from inkmill import __version__
from inkmill.config.model import ModelSpec
from inkmill.diagnose.facts import Settings, Step
from inkmill.machine import cores

COMPILE_S = 35.0
"""Compiling a backbone with all the cores it can use: TAO's ResNet takes 24 s on 16 cores, 40 s on slow ones."""
CACHED_S = 15.0
"""The same, and measuring the step, where torch's cache has it."""

_COMPILERS = 16  # cores that compiling keeps busy; with fewer it takes longer


def seconds_to_compile(model: ModelSpec, step: Step | Settings) -> float:
    """Return about how long trying a compiled step takes."""
    mark = _mark(model, step)
    if mark is not None and mark.is_file():
        return CACHED_S
    return COMPILE_S * _COMPILERS / min(_COMPILERS, cores())


def note_compiled(model: ModelSpec, step: Step | Settings) -> None:
    """Remember that the backbone of a step was compiled, as long as torch does."""
    mark = _mark(model, step)
    if mark is not None:
        with suppress(OSError):  # then the next diagnosis allows for the whole time again
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(model: ModelSpec, step: Step | Settings) -> Path | None:
    try:
        from torch._inductor import config
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        if config.force_disable_caches or not config.fx_graph_cache:
            return None
        folder = Path(cache_dir())
    except Exception:  # torch promises nothing about all this, and it is only about a guess
        return None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    key = (__version__, torch.__version__, gpu, model.model_dump(), step.batch_size, step.precision, step.channels_last)
    digest = hashlib.sha256(json.dumps(key, default=str, sort_keys=True).encode()).hexdigest()[:24]
    return folder / f"inkmill-{digest}"
