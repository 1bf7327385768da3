"""What libraries log about themselves, kept back while they are called: our own lines say what a user needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_logging(level: int) -> Iterator[None]:
    """Keep back all log messages up to a level of `logging`, for as long as the block runs."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        yield
    finally:
        logging.disable(before)
