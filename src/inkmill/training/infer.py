"""`infer`: the text in image files, with any model file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inkmill.api import load
from inkmill.config.load import require
from inkmill.config.spec import Spec
from inkmill.data.find import find_images
from inkmill.errors import ConfigError
from inkmill.runtime.infer import read_files
from inkmill.runtime.reader import Reading


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
    paths = find_images(asked)
    batch_size = spec.inference.batch_size
    workers = (
        spec.inference.workers if len(paths) > 4 * batch_size else 0
    )  # a few files are read before processes start
    yield from read_files(load(checkpoint), paths, batch_size=batch_size, workers=workers, problems=problems)
