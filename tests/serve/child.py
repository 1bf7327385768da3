"""A server in a process of its own, for tests that stop it or attack it; it reads lines of bars."""

from __future__ import annotations

import sys

from tests.serve.conftest import BarDetector, BarReader

from inkmill.pages.reader import PageReader
from inkmill.serve.run import serve
from inkmill.serve.service import Limits

if __name__ == "__main__":
    readers = {"default": PageReader(BarDetector(), BarReader())}
    serve(readers, "127.0.0.1", 0, Limits(waiting=64), say=lambda line: print(line, flush=True))
    sys.exit(0)
