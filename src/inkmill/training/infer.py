"""`infer`: the text in image files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from inkmill.config.load import require
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.sources.files import FileSource
from inkmill.errors import ConfigError, DataError
from inkmill.runtime.reader import Reading
from inkmill.training.reading import TorchReader, read_loader

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"}


def infer(spec: Spec, images: Sequence[str] = (), *, problems: list[str] | None = None) -> Iterator[Reading]:
    """Yield the reading of every image, in order.

    Args:
        spec: `inference.checkpoint` is needed; `inference.inference_dataset_dir` is read too.
        images: files, folders (searched recursively), globs, and lists of them (`@list.txt`, one a line).
        problems: gets one sentence for each image that could not be read; without it the first is raised.

    Raises:
        InkmillError: no model, or nothing to read.
    """
    checkpoint = require(spec, "inference.checkpoint", "infer")
    asked = list(images) + ([spec.inference.inference_dataset_dir] if spec.inference.inference_dataset_dir else [])
    if not asked:
        raise ConfigError("infer needs images: give files, folders or globs, or inference.inference_dataset_dir")
    source = FileSource(find_images(asked))
    reader = TorchReader.load(Path(checkpoint))
    bad: Literal["raise", "skip"] = "raise" if problems is None else "skip"
    plan = LoadPlan(
        source, reader.fit, batch_size=spec.inference.batch_size, shuffle=False, on_bad_sample=bad, max_bad=1.0
    )
    found: dict[int, Reading] = {}
    wanted = 0
    workers = spec.inference.workers if len(source) > 4 * spec.inference.batch_size else 0
    with make_loader(plan, workers=workers) as loader:
        for batch, texts, confidences in read_loader(reader.model, DeviceLoader(loader, reader.device), reader.codec):
            for index, key, text, confidence in zip(
                batch.index.tolist(), batch.keys, texts, confidences.tolist(), strict=True
            ):
                found[index] = Reading(text, confidence, key)
            while wanted in found:  # batches of one width each come out of order; what is in order goes out at once
                yield found.pop(wanted)
                wanted += 1
        skipped = loader.stats.skipped
    yield from (found[index] for index in sorted(found))
    if problems is not None:
        problems += [f"{key}: {reason}" for reason, keys in skipped.items() for key in keys]


def find_images(asked: Sequence[str]) -> list[Path]:
    """Return the image files meant by files, folders, globs and @lists, in order, each once.

    Raises:
        DataError: something names no image.
    """
    found: dict[Path, None] = {}
    for name in asked:
        for one in _lines(Path(name[1:])) if name.startswith("@") else [name]:
            found.update(dict.fromkeys(_images(one)))
    return list(found)


def _images(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    elif path.is_file():
        files = [path]
    else:
        files = _matches(path)
    if not files:
        raise DataError(f"{name}: no image there; expected a file, a folder of images, a glob, or @list.txt")
    return files


def _matches(pattern: Path) -> list[Path]:
    try:
        found = list(Path(pattern.anchor or ".").glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError:  # no pattern that pathlib knows
        return []
    return sorted(match for match in found if match.is_file())


def _lines(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"{path}: the list cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the list is not UTF-8: save it as UTF-8, one image a line") from error
    if not lines:
        raise DataError(f"{path}: the list is empty; expected one image a line")
    return lines
