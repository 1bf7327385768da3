"""Reads whole pages with RapidOCR, in an environment of its own: what `benchmarks/pages.py --rapidocr PYTHON` starts.

A request comes as JSON on the standard input (files, threads), the answer goes as JSON to the standard output.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
from rapidocr import RapidOCR


def main() -> None:
    """Read every file with RapidOCR's defaults, on so many threads."""
    asked = json.load(sys.stdin)
    cv2.setNumThreads(asked["threads"])
    prefix = "EngineConfig.onnxruntime"
    threads = {f"{prefix}.{kind}_op_num_threads": asked["threads"] for kind in ("intra", "inter")}
    engine: Any = RapidOCR(params={"Global.log_level": "critical", **threads})
    engine(asked["files"][0])
    pages, seconds = [], []
    for file in asked["files"]:
        start = time.process_time()
        found = engine(file)
        seconds.append(time.process_time() - start)
        boxes = [] if found.boxes is None else found.boxes.tolist()
        pages.append([{"points": box, "text": text} for box, text in zip(boxes, found.txts or (), strict=True)])
    # Not getrusage's, which begins with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps({"version": version("rapidocr"), "pages": pages, "cpu_seconds": seconds, "peak_mib": peak}))


if __name__ == "__main__":
    main()
