"""The ranges of numbers in a reader, for int8: measured on pictures of its own kind, and kept in a file.

The pictures are resized exactly as in reading. The file (the calibration cache) is JSON; it names the ONNX file by its
SHA-256, so that ranges of another reader are never taken.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from inkmill.config.spec import Spec
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Concat, Source, Subset, holdout, open_source
from inkmill.data.sources.folder import FileSource
from inkmill.data.sources.open import find_images
from inkmill.deploy.export.pictures import Pictures
from inkmill.deploy.quantize.graph import Ranges, find_layers, measure_ranges
from inkmill.deploy.quantize.pictures import MOST_BYTES
from inkmill.deploy.tensorrt.graph import Graph
from inkmill.errors import ConfigError, DataError
from inkmill.files import explain, write_json_atomic

FORMAT = "inkmill-ranges-1"
MAX_CACHE = 64 << 20
"""Bytes of a cache; one of 1,000 layers has 0.1 MiB."""

Say = Callable[[str], None]


def find_ranges(graph: Graph, spec: Spec, say: Say) -> Ranges:
    """Return the ranges of a reader: of the calibration cache, where it is of this reader, else measured.

    What was measured is written to the cache, where the spec names one; an outdated one is replaced.

    Args:
        graph: the ONNX file, in fp32.
        spec: its `gen_trt_engine.tensorrt.calibration` and training set.
        say: takes a line about where the ranges come from.

    Raises:
        ConfigError: there are neither pictures nor a cache, or the file named as the cache is something else.
        DataError: a set is missing, or none of its pictures can be decoded.
    """
    name = spec.gen_trt_engine.tensorrt.calibration.cal_cache_file
    cache = Path(name) if name else None
    if cache is not None and cache.exists():
        ranges = _read(cache, graph)
        if ranges is not None:
            say(f"ranges of {cache}")
            return ranges
        say(f"{cache} is of another ONNX file: ranges are measured anew")
    pictures = calibration_pictures(spec, graph.reader.resize)
    ranges = measure(graph, pictures)
    lost = f" ({pictures.unreadable:,} could not be decoded)" if pictures.unreadable else ""
    say(f"ranges measured on {len(pictures.images):,} pictures of {pictures.origin}{lost}")
    if cache is not None:
        told = {"onnx_sha256": graph.sha256, "pictures": len(pictures.images), "of": pictures.origin}
        write_json_atomic(cache, {"format": FORMAT, **told, "ranges": ranges})
    return ranges


def calibration_pictures(spec: Spec, resize: Resize) -> Pictures:
    """Return the pictures to measure on: cal_batch_size x cal_batches, spread evenly over the set.

    They come from `cal_image_dir`, else from `dataset.quant_calibration_dataset.images_dir`, else from the training set
    without what is held out of it.

    Raises:
        ConfigError: the spec names none.
        DataError: a set is missing, or none of its pictures can be decoded.
    """
    settings = spec.gen_trt_engine.tensorrt.calibration
    source, name = _source(spec)
    most = max(1, MOST_BYTES // (resize.height * resize.width * resize.channels))
    count = min(settings.cal_batch_size * settings.cal_batches, len(source), most)
    pictures = Pictures(name)
    for index in (np.arange(count) * len(source) // max(1, count)).tolist():
        try:
            pictures.images.append(resize.apply(decode(source.get(index).image, resize.channels))[0])
        except DataError:  # damaged, or not there
            pictures.unreadable += 1
    if not pictures.images:
        raise DataError(f"{name}: none of {count} pictures can be decoded, and an INT8 engine is measured on them")
    return pictures


def _source(spec: Spec) -> tuple[Source, str]:
    own = spec.dataset.quant_calibration_dataset.images_dir
    folders = spec.gen_trt_engine.tensorrt.calibration.cal_image_dir or ([own] if own else [])
    if folders:
        return FileSource(find_images(folders)), ", ".join(folders)
    sets = [open_source(one, label_pattern=spec.dataset.label_pattern) for one in spec.dataset.sources("train")]
    if not sets:
        raise ConfigError(
            "an INT8 engine needs pictures to measure ranges on: give "
            "gen_trt_engine.tensorrt.calibration.cal_image_dir=[FOLDER] or dataset.train=PATH"
        )
    kept = [Subset(one, holdout(one, spec.dataset.val_fraction)[0]) for one in sets]
    return (kept[0] if len(kept) == 1 else Concat(kept)), ", ".join(one.name for one in sets)


def measure(graph: Graph, pictures: Pictures) -> Ranges:
    """Return the range of what goes into and comes out of every layer while the graph reads pictures."""
    layers = find_layers(graph.model)
    same = defaultdict(list)
    for image in pictures.images:
        same[image.shape[1]].append(image)
    found: Ranges = {}
    for images in same.values():
        for name, (low, high) in measure_ranges(graph.model, layers, np.stack(images)).items():
            before = found.get(name, (low, high))
            found[name] = min(low, before[0]), max(high, before[1])
    return found


def _read(path: Path, graph: Graph) -> Ranges | None:
    """Return the ranges of a cache, None where it is of another ONNX file."""
    try:
        size = path.stat().st_size
        told = json.loads(path.read_bytes()) if size <= MAX_CACHE else {}
        if told["format"] != FORMAT:
            raise KeyError
        if told["onnx_sha256"] != graph.sha256:
            return None
        ranges = {str(name): (float(low), float(high)) for name, (low, high) in told["ranges"].items()}
    except OSError as error:
        raise ConfigError(f"cal_cache_file={path}: cannot be read ({explain(error)})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"cal_cache_file={path}: not a calibration cache of inkmill (TensorRT's own are of no use to it); "
            "give another name"
        ) from error
    needed = {name for layer in find_layers(graph.model) for name in layer.tensors}
    if not needed <= ranges.keys() or not all(-np.inf < low <= high < np.inf for low, high in ranges.values()):
        raise ConfigError(f"cal_cache_file={path}: damaged; remove it, and ranges are measured anew")
    return ranges
