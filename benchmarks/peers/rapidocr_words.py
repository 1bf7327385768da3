"""Reads word crops with RapidOCR, in an environment of its own: what `benchmarks/readers.py --rapidocr PYTHON` starts.

It takes one JSON line, {"files": [...], "threads": 1, "rounds": 3}, and gives one: {"version", "texts", "seconds"}, the
seconds of each round over all files. It imports nothing of inkmill.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from rapidocr import RapidOCR


def main() -> None:
    """Read, and print what was read on the last line."""
    asked = json.loads(sys.stdin.readline())
    threads = {f"EngineConfig.onnxruntime.{name}_op_num_threads": asked["threads"] for name in ("intra", "inter")}
    engine: Any = RapidOCR(params={"Global.text_score": 0.0, "Global.log_level": "critical", **threads})
    images = [Path(file).read_bytes() for file in asked["files"]]
    texts, seconds = [], []
    for _ in range(asked["rounds"] + 1):  # the first warms up
        start = perf_counter()
        found = [engine(image, use_det=False, use_cls=False, use_rec=True).txts for image in images]
        seconds.append(perf_counter() - start)
        texts = [one[0] if one else "" for one in found]
    print(json.dumps({"version": version("rapidocr"), "texts": texts, "seconds": seconds[1:]}))


if __name__ == "__main__":
    main()
