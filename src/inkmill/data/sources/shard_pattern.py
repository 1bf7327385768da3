"""Names of many shards in one: `train-{000000..000146}.tar`, `{train,extra}.tar`, `*.tar`, expanded as a shell does."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from inkmill.errors import DataError

_MAX_SHARDS = 1_000_000


def expand(pattern: str) -> list[Path]:
    """Return the files a shard pattern names, in order.

    Raises:
        DataError: a path that is not there, or a pattern that means nothing or too much.
    """
    names = list(_braces(pattern))
    try:
        paths = [path for name in names for path in (_glob(name) if "*" in name else [Path(name)])]
    except ValueError as error:  # a** and its like
        raise DataError(f"the shard pattern {pattern} cannot be searched for: {error}") from None
    missing = [path for path in paths if not path.is_file()]
    if not paths or missing:
        what = (
            f"{len(missing)} of {len(paths)} shards are missing, first {missing[0]}" if missing else "no file fits it"
        )
        raise DataError(f"the shard pattern {pattern}: {what}")
    return paths


def _braces(pattern: str) -> Iterator[str]:
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if at % 2 == 0 else _choices(part, pattern) for at, part in enumerate(parts)]
    total = math.prod(len(choice) for choice in choices)
    if total > _MAX_SHARDS:
        raise DataError(f"the shard pattern {pattern} means {total:,} files; at most {_MAX_SHARDS:,} are taken")
    return map("".join, product(*choices))


def _choices(part: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", part)
    if not numbers:
        return part.split(",")
    first, last = numbers.groups()
    if int(last) < int(first) or int(last) - int(first) >= _MAX_SHARDS:
        raise DataError(f"the shard pattern {pattern}: expected {{first..last}}, and found {{{part}}}")
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _glob(name: str) -> list[Path]:
    path = Path(name)
    return (
        sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))) if path.anchor else sorted(Path().glob(name))
    )
