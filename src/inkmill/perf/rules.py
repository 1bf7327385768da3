"""The table of rules and thresholds: what counts as a stall, how much room a cache may take, what to say of each cause.

Everything that gives advice reads this file and nothing else: the watch beside a running training, the verdict of
`inkmill diagnose` and the tuning plan of both. Which setting helps most is not in the table: that is predicted (see
predict.py). The table says what is left to advise where no setting helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inkmill.perf.predict import Facts

# Thresholds ----------------------------------------------------------------------------------------------------------

STALL_SHARE = 0.05
"""A stall of a smaller share of the step, or of a minute of training, is not worth a word."""
ABSENT_BELOW = 0.10
"""A stall that is not real is absent if its whole interval lies below this share; in between noise could hide one."""
WORTH = 0.03
"""A plan must be faster by more than this; of plans that differ by less, the simplest is taken."""
WINS_BACK = 1 / 3
"""A change is advised while training runs if it wins back this share of the time that is lost, by the prediction."""
IDLE_BELOW = 0.5
"""Workers that are busy for a smaller share of the time are not what training waits for."""
COPY_ABOVE = 0.5
"""From this share of the waiting on, the copy to the GPU is its cause."""
CROWDED_CORES = 0.5
"""Cores that other programs use, from which on they are named."""
CACHE_ROOM: Mapping[str, float] = {"ram": 0.75, "disk": 0.8, "gpu": 0.6}
"""Share of what is free in a tier that a cache may take: batches, and the model's largest ones, need some too."""
PAGE_CACHE_ROOM = 0.6
"""A data set up to this share of the free memory stays in the system's page cache after its first epoch."""
EFFICIENCY = 0.85
"""What a worker does when all cores work, as a share of what it does alone, where that was not measured."""
LEAST_STEP_S = 1e-9
"""Seconds an image that a step takes at the least; no GPU trains a billion images a second."""
CACHED_IMAGE_S, COPY_BYTES_PER_S = 2e-6, 5e9
"""What taking an image from the cache costs, and how fast its bytes are copied, where neither was measured."""
GPU_AUGMENT_S = 2e-6
"""What augmenting an image costs a GPU, where that was not measured."""

# Rules ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """What is said of one cause of waiting.

    Attributes:
        words: what is going on, for "... takes 62% of the workers' time".
        otherwise: (condition, advice) where no setting is predicted to help: the first whose condition holds. Advice
            may contain {cores}, {need}, {ram} and {disk}: the cores, the size of a cache of all images, and what is
            free. Conditions are those of `CONDITIONS`.
    """

    words: str
    otherwise: tuple[tuple[str, str], ...]


_BUSY = "{cores} busy, so only more of them would help"
_NO_ROOM = "{cores} busy, and a cache of the resized images needs {need} ({ram} of RAM and {disk} of disk are free)"
_SHARDS = "`inkmill convert SOURCE FOLDER --to shards` puts the many small files into few large ones"

RULES: Mapping[str, Rule] = {
    # stages of assembling a batch, see STAGES of the loaders
    "read": Rule("reading", (("small files", _SHARDS), ("always", "no setting helps, but a faster disk would"))),
    "decode": Rule("decoding", (("not cached", _NO_ROOM), ("always", _BUSY))),
    "resize": Rule("resizing", (("not cached", _NO_ROOM), ("always", _BUSY))),
    "cache": Rule("copying cached images", (("always", _BUSY),)),
    "augment": Rule(
        "augmentation", (("always", "{cores} busy, so only fewer operations in dataset.augmentation would help"),)
    ),
    "other": Rule("collating", (("always", _BUSY),)),
    # between loader and device
    "copy": Rule("the copy to the GPU", (("always", "a larger dataset.batch_size is copied less often"),)),
    "handover": Rule("handing batches over", (("always", "a larger dataset.batch_size is handed over less often"),)),
    # loaders that do not count workers
    "loader": Rule(
        "the loader's own work",
        (
            ("fits RAM", "dataset.cache=ram would save it ({need} of {ram} free)"),
            ("fits disk", "dataset.cache=disk would save it ({need} of {disk} free)"),
            ("always", "dataset.loader=workers loads without it"),
        ),
    ),
    # the step itself
    "launch": Rule(
        "launching kernels",
        (
            ("on a GPU", "use larger batches (dataset.batch_size)"),
            ("always", "stop what else runs here, or give it more cores"),
        ),
    ),
    "compute": Rule("the step", (("always", "a smaller model or a faster device would help, no loader would"),)),
}

CONDITIONS: Mapping[str, Callable[[Facts], bool]] = {
    "always": lambda facts: True,
    "small files": lambda facts: facts.small_files,
    "not cached": lambda facts: facts.cache == "none",
    "fits RAM": lambda facts: facts.cache == "none" and facts.cache_bytes <= facts.room.get("ram", 0),
    "fits disk": lambda facts: facts.cache == "none" and facts.cache_bytes <= facts.room.get("disk", 0),
    "on a GPU": lambda facts: facts.on_gpu,
}


def otherwise(cause: str, facts: Facts) -> str:
    """Return what the table advises for a cause where no setting helps."""
    advice = next(words for condition, words in RULES[cause].otherwise if CONDITIONS[condition](facts))
    cores = f"the {facts.cores} cores of this machine are all" if facts.cores > 1 else "its one core is"
    free = {tier: size_words(room / CACHE_ROOM[tier]) for tier, room in facts.room.items()}
    need, ram, disk = size_words(facts.cache_bytes), free.get("ram", "nothing"), free.get("disk", "nothing")
    return advice.format(cores=cores, need=need, ram=ram, disk=disk)


def size_words(size: float) -> str:
    """Return a number of bytes for people."""
    if size < 2**30:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / 2**30:.1f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.0f} GiB"
