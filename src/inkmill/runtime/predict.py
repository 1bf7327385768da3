"""`infer`: the text in image files, with any model file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inkmill.api import load
from inkmill.config.load import require
from inkmill.config.spec import Spec
from inkmill.config.tasks import GpuSection
from inkmill.data.sources.open import find_images
from inkmill.errors import ConfigError
from inkmill.runtime.files import read_files
from inkmill.runtime.reader import Reading
from inkmill.tasks.recognition.decoder import read_words


def infer(
    spec: Spec,
    images: Sequence[str] = (),
    *,
    problems: list[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Reading]:
    """Yield the reading of every image, in order.

    Args:
        spec: `inference.checkpoint` is needed; `inference.inference_dataset_dir` is read too.
        images: files, folders (searched recursively), globs, and lists of them (`@list.txt`, one a line).
        problems: gets one sentence for each image that could not be read; without it the first is raised.
        say: gets one line, what reads and where.

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
    reader = load(checkpoint, encryption_key=spec.encryption_key, **decoding(spec.inference))
    say(f"{checkpoint}: {reader.described()}")
    yield from read_files(reader, paths, batch_size=batch_size, workers=workers, problems=problems)


def decoding(section: GpuSection) -> dict[str, Any]:
    """Return how a verb's section wants texts to be chosen, as arguments of `load`."""
    words = read_words(section.lexicon) if section.lexicon else None
    return {"beam_width": section.beam_width, "words": words}
