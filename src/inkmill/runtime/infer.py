"""`infer`: what image files show, with any model file; loaded ahead, read in batches, given back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from inkmill import weights
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.pipeline.decode import image_size
from inkmill.data.sources.folder import FileSource
from inkmill.data.sources.open import find_images
from inkmill.errors import ConfigError, ImageError
from inkmill.files import open_data
from inkmill.runtime.draw import drawn
from inkmill.runtime.reader import BaseReader, load_reader, with_key
from inkmill.runtime.vertical import BothWays
from inkmill.tasks.base import Prediction, Task

_HEAD_BYTES = 1 << 18  # of an image file, in which its size stands


def infer(
    spec: Spec,
    images: Sequence[str] = (),
    *,
    problems: list[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
    draw: Path | None = None,
) -> tuple[tuple[str, ...], Iterator[Prediction]]:
    """Read images.

    Args:
        spec: without `inference.checkpoint` the reader that the package carries reads;
            `inference.inference_dataset_dir` is read too.
        images: files, folders (searched recursively), globs, and lists of them (`@list.txt`, one a line).
        problems: gets one sentence for each image that could not be read; without it the first is raised.
        say: gets a line: what reads and where; and how many pictures look like nothing that the model reads.
        draw: a folder for the pictures with their regions drawn in, of a detector.

    Returns:
        The fields of a prediction, and the predictions in order, read while they are taken.

    Raises:
        InkmillError: no model, and none in the package; or nothing to read.
    """
    settings = spec.inference
    asked = [*images, *([settings.inference_dataset_dir] if settings.inference_dataset_dir else [])]
    if not asked:
        raise ConfigError(
            "infer needs images: give `inkmill infer MODEL IMAGE...` (files, folders, globs, @list.txt), or "
            "inference.inference_dataset_dir"
        )
    checkpoint = settings.checkpoint or str(weights.path("reader"))
    paths = find_images(asked)
    reader = load_reader(checkpoint, encryption_key=spec.encryption_key)
    reader.use(reader.task.decoder_of(settings))
    say(f"{checkpoint}: {reader.described()}")
    # A few files are read before processes start.
    workers = settings.workers if len(paths) > 4 * settings.batch_size else 0
    found = read_files(reader, paths, batch_size=settings.batch_size, workers=workers, problems=problems)
    if draw is not None:
        found = drawn(found, reader.task, draw)
    return reader.task.prediction_fields, _with_misfits(found, reader.task, say)


def _with_misfits(predictions: Iterable[Prediction], task: Task, say: Callable[[str], None]) -> Iterator[Prediction]:
    """Pass predictions on, then say how many of their pictures look like something that the model does not read."""
    count, first = 0, ""
    for prediction in predictions:
        if why := _misfit(prediction.key, task):
            count += 1
            first = first or f"{prediction.key}: {why}"
        yield prediction
    if count:
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        say(f"{first}{more}; `inkmill convert --crop` cuts the lines out of a labelled set of pages")


def _misfit(path: str, task: Task) -> str:
    try:
        with open_data(path) as file:
            return task.misfit(*image_size(file.read(_HEAD_BYTES)))
    except (OSError, ImageError):
        return ""  # its size lies further behind, or it has changed: nothing is known


def read_files(
    reader: BaseReader, paths: list[Path], *, batch_size: int = 64, workers: int = 0, problems: list[str] | None = None
) -> Iterator[Prediction]:
    """Yield the prediction for every image, in order.

    Args:
        reader: what reads.
        paths: image files.
        batch_size: images a batch; the predictions do not depend on it.
        workers: loader processes.
        problems: gets one sentence for each image that could not be read; without it the first is raised.

    Raises:
        DataError: an image cannot be read, and there is no `problems`.
    """
    bad: Literal["raise", "skip"] = "raise" if problems is None else "skip"
    ways = BothWays(FileSource(paths), reader.task, reader.resize.channels, reader.both_ways)
    plan = LoadPlan(ways.source, reader.resize, batch_size=batch_size, shuffle=False, on_bad_sample=bad, max_bad=1.0)
    found: dict[int, Prediction] = {}
    wanted = 0
    with make_loader(plan, workers=workers) as loader:
        for batch, predictions, *_ in reader.read_batches(loader):
            for index, key, prediction in zip(batch.index.tolist(), batch.keys, predictions, strict=True):
                if (taken := ways.take(index, prediction)) is not None:
                    found[taken[0]] = with_key(taken[1], key)
            while wanted in found:  # batches of one width each come out of order; what is in order goes out at once
                yield found.pop(wanted)
                wanted += 1
        skipped = loader.stats.skipped
    yield from (found[index] for index in sorted(found))
    if problems is not None:
        # A tall picture that is damaged is met several times.
        problems += dict.fromkeys(f"{key}: {reason}" for reason, keys in skipped.items() for key in keys)
