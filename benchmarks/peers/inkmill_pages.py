"""Reads whole pages with inkmill, in a process of its own, as `benchmarks/pages.py` asks.

A request comes as JSON on the standard input (files, threads, detector, reader), the answer goes as JSON to standard
output.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import cv2

from inkmill import __version__
from inkmill.pages import PageReader
from inkmill.pages.documents import open_pages


def main() -> None:
    """Read every file, one page after the other."""
    asked = json.load(sys.stdin)
    cv2.setNumThreads(asked["threads"])
    reader = PageReader(asked["detector"], asked["reader"], threads=asked["threads"])
    list(reader.read(asked["files"][0]))
    pages, seconds = [], []
    for file in asked["files"]:
        start = time.process_time()
        (page,) = (reader.read_page(image) for image in open_pages(file))
        seconds.append(time.process_time() - start)
        pages.append([{"points": line.polygon.tolist(), "text": line.text} for line in page.lines])
    # Not getrusage's, which begins with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps({"version": __version__, "pages": pages, "cpu_seconds": seconds, "peak_mib": peak}))


if __name__ == "__main__":
    main()
