"""Where the time of the DALI loader goes: staging alone, its graph alone, and both together.

    python benchmarks/dali.py [--batch 2048] [--threads N] [--seconds 0.5] [--only staging,graph,loader] [--json FILE]

    staging  batches staged ahead and taken as DALI takes them, but thrown away; beside images a second it says how
             long the trainer's thread worked for an image, which is time that the training loop does not have
    graph    one batch over and over: what DALI's own work costs, stage by stage and operator by operator
    loader   the loader as training uses it; "ops": DALI's operators augment, "torch": the torch engine does

The data are rendered JPEG word crops, those of `inkmill bench loaders`, in memory; --data takes any source instead.
Without a GPU the rows that need one are left out. On 16 cores and a GPU it takes a minute, and half a one more until
the torch engine is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from inkmill import shared_memory as shared
from inkmill.bench.cases import augmented
from inkmill.bench.workload import render_crop, strong_ops
from inkmill.config.dataset import SourceSpec
from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import Blur, Cutout, Jpeg, Noise
from inkmill.data.loaders import AugmentOn, LoadPlan
from inkmill.data.loaders.dali import require_dali
from inkmill.data.loaders.dali.graph import PREFETCH, DaliEngine, Placement, build_pipeline
from inkmill.data.loaders.dali.loader import DaliLoader
from inkmill.data.loaders.dali.prefetch import PrefetchQueue
from inkmill.data.loaders.dali.staging import BatchStager
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source
from inkmill.data.types import Batch, Text

RESIZE = Resize(32, 128, 3)
PLACES: dict[str, tuple[Any, Any]] = {"cpu": ("cpu", "cpu"), "mixed": ("cpu", "gpu"), "gpu": ("mixed", "gpu")}
"""As in `inkmill bench loaders`: where DALI decodes, and where it resizes and augments."""
LONE_OPS = {"blur": Blur, "noise": Noise, "jpeg": Jpeg, "cutout": Cutout}


@dataclass
class Crops(Source):
    """JPEG crops in memory."""

    pool: list[tuple[bytes, str]]
    copies: int
    name: str = "crops"
    fingerprint: str = "crops"

    def __len__(self) -> int:
        return len(self.pool) * self.copies

    def key(self, index: int) -> str:
        """Return the key of a sample."""
        return f"image-{index:09d}"

    def target(self, index: int) -> Text:
        """Return the text of a sample."""
        return Text(self.pool[index % len(self.pool)][1])

    def image(self, index: int) -> bytes:
        """Return the encoded image of a sample."""
        return self.pool[index % len(self.pool)][0]


@dataclass
class Bench:
    """What all rows share."""

    source: Source
    batch: int
    threads: int
    seconds: float
    gpu: bool

    def plan(self, ops: list[Any] | None = None) -> LoadPlan:
        """Return the plan of a row; no `ops` are the strong ones."""
        changes = Augmentation(strong_ops() if ops is None else ops) if ops != [] else None
        return LoadPlan(self.source, RESIZE, changes, self.batch, seed=1)

    def rate(self, step: Callable[[], Any], warm: int = 4) -> float:
        """Return images a second of `step`, which takes a batch."""
        for _ in range(warm):
            step()
        self.settle()
        start, images = perf_counter(), 0
        while perf_counter() - start < self.seconds:
            step()
            images += self.batch
        self.settle()
        return images / (perf_counter() - start)

    def settle(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            import torch

            torch.cuda.synchronize()

    def staging_rows(self) -> Iterator[dict[str, Any]]:
        """Staging without DALI."""
        ways: list[tuple[AugmentOn, int]] = [("gpu", 1), ("gpu", 3), ("dali", 3)]
        for augment_on, processes in ways:
            plan = self.plan()
            queue = PrefetchQueue(_stager(plan, augment_on), processes, len(plan.order()), [])
            for _ in range(12):  # every slot is written once: its pages are mapped then
                _drop_one(queue)
            start, busy, images = perf_counter(), thread_time(), 0
            while perf_counter() - start < self.seconds:
                _drop_one(queue)
                images += self.batch
            took, busy = perf_counter() - start, thread_time() - busy
            queue.close()
            what = "for DALI's operators" if augment_on == "dali" else "for the torch engine"
            yield {
                "half": "staging",
                "what": f"{processes} processes, {what}",
                "images_per_s": round(images / took),
                "consumer_us": round(busy / images * 1e6, 2),
            }

    def graph_rows(self) -> Iterator[dict[str, Any]]:
        """DALI with one batch over and over."""
        for name in self.places():
            for what, decoding in _decoders(name).items():
                yield self._graph_row(name, what, partial(self.decoding, decoding))
            yield self._graph_row(name, "decode, resize", partial(self.graph, name, []))
            if name == "mixed":
                yield self._graph_row(name, "decode, resize on the CPU", partial(self.graph, "resize on the CPU", []))
            if name == "mixed" or not self.gpu:
                for what, ops in _ablations().items():
                    yield self._graph_row(name, f"decode, resize, {what}", partial(self.graph, name, ops))
            yield self._graph_row(name, "decode, resize, strong", partial(self.graph, name, strong_ops()))

    def _graph_row(self, name: str, what: str, build: Callable[[], Any]) -> dict[str, Any]:
        try:
            pipeline = build()
            speed = self.rate(pipeline.run)
        except RuntimeError as error:  # an option that this machine's decoder lacks, say
            return {"half": "graph", "what": f"{name}: {what}", "images_per_s": 0, "note": str(error)[:100]}
        return {"half": "graph", "what": f"{name}: {what}", "images_per_s": round(speed)}

    def places(self) -> list[str]:
        """Return the placements that this machine can have."""
        return list(PLACES) if self.gpu else ["cpu"]

    def graph(self, name: str, ops: list[Any]) -> Any:
        """Build the loader's own graph, fed with one batch."""
        decode, augment = PLACES.get(name, ("cpu", "cpu"))
        plan = self.plan(ops)
        staged = _one_batch(plan)
        inputs = tuple(staged.values())
        device = 0 if self.gpu and name != "cpu" else None
        layout = None if plan.numbers is None else plan.numbers.layout
        engine = None if layout is None else DaliEngine(layout, 3, RESIZE.height * RESIZE.width * 3, augment)
        placement = Placement(decode, augment, device, self.threads)
        return build_pipeline(lambda: inputs, list(staged), self.batch, RESIZE, engine, placement)

    def decoding(self, options: dict[str, Any] | None) -> Any:
        """Build a graph that only decodes; None: that only takes the encoded images."""
        from nvidia.dali import fn, pipeline_def

        images = _one_batch(self.plan([]))["images"]

        def graph() -> Any:
            encoded = fn.external_source(source=lambda: images)
            return encoded if options is None else fn.decoders.image(encoded, **options)

        device = 0 if options is not None and options.get("device") == "mixed" else None
        settings = {"num_threads": self.threads, "device_id": device, "prefetch_queue_depth": PREFETCH}
        return pipeline_def(graph, batch_size=self.batch, exec_dynamic=True, **settings)()

    def loader_rows(self) -> Iterator[dict[str, Any]]:
        """The whole loader."""
        device = "cuda" if self.gpu else "cpu"
        for name, way in [(name, way) for name in self.places() for way in ("none", "ops", "torch")]:
            decode_on, place = PLACES[name]
            if way == "torch" and place == "cpu":
                continue
            plan = self.plan([] if way == "none" else None)
            augment_on: Any = "gpu" if way == "torch" else "cpu" if place == "cpu" else "dali"
            with DaliLoader(plan, self.threads, augment_on, device, decode_on) as loader:
                batches = (batch for _ in count() for batch in loader.views() if len(batch) == self.batch)
                speed = self.rate(partial(_augmented_next, batches), warm=8)
                batches.close()
            yield {"half": "loader", "what": f"{name}, augmented by: {way}", "images_per_s": round(speed)}


def _augmented_next(batches: Iterator[Batch]) -> Any:
    return augmented(next(batches))


def _drop_one(queue: PrefetchQueue) -> None:
    queue()
    queue.in_flight.clear()


def _one_batch(plan: LoadPlan) -> dict[str, Any]:
    staged = _stager(plan).stage(0, 0, False, np.empty(plan.batch_bytes, np.uint8))
    if staged.error is not None:
        raise staged.error
    return staged.inputs


def _stager(plan: LoadPlan, augment_on: AugmentOn = "dali") -> BatchStager:
    return BatchStager(plan, None, shared.allocate(len(plan.source)), augment_on=augment_on)


def _decoders(name: str) -> dict[str, dict[str, Any] | None]:
    if name == "cpu":
        return {"inputs only": None, "decode": {"device": "cpu"}}
    if name == "mixed":
        return {}
    same_pixels = {"device": "mixed", "jpeg_fancy_upsampling": True, "hw_decoder_load": 0.0}
    return {
        "decode": same_pixels,
        "decode, half of it by the hardware decoder": same_pixels | {"hw_decoder_load": 0.5},
        "decode, plain upsampling": same_pixels | {"jpeg_fancy_upsampling": False},
    }


def _ablations() -> dict[str, list[Any]]:
    strong = strong_ops()
    lone = {name: [op for op in strong if isinstance(op, kind)] for name, kind in LONE_OPS.items()}
    rest = [op for op in strong if not isinstance(op, tuple(LONE_OPS.values()))]
    of_space = {"rotate", "shear", "scale", "shift", "perspective"}
    groups = {
        "warp": [op for op in rest if type(op).__name__.lower() in of_space],
        "colour": [op for op in rest if type(op).__name__.lower() not in of_space],
    }
    return {f"{name} alone": ops for name, ops in (groups | lone).items()}


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each row")
    parser.add_argument("--only", default="staging,graph,loader")
    parser.add_argument("--data", help="any source instead of rendered crops")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    require_dali("this benchmark")
    warnings.simplefilter("ignore")
    bench = Bench(_source(options), options.batch, options.threads, options.seconds, _has_gpu())
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "gpu": bench.gpu, "batch": options.batch}
    print(f"{machine}, {options.threads} threads", flush=True)
    table = []
    for half in options.only.split(","):
        for row in getattr(bench, f"{half}_rows")():
            table.append(row)
            busy = f"  {row['consumer_us']:5.2f} us of the consumer an image" if "consumer_us" in row else ""
            line = f"{row['half']:7} {row['what']:62} {row['images_per_s']:>9,} images/s{busy}"
            print(line, row.get("note", ""), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": table}, indent=1))


def _source(options: argparse.Namespace) -> Any:
    if options.data is None:
        return Crops([render_crop(1, index) for index in range(2048)], max(8, 16 * options.batch // 2048))
    from inkmill.data.sources import open_source

    return open_source(SourceSpec(path=options.data))


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
