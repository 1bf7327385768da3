"""The page reader: pages in, text with places out.

Its work falls into three stages, so that a server can batch the lines of all requests that wait:

    find        the detector, the page's rotation, and the crops that are to be read
    recognise   the text of crops, of any number of pages; batches are cut by size and by padded pixels
    finish      the best of several readings of a line, words and their places, reading order

`read` does all three for a stream of pages. Every stage may be called from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import ConfigError
from inkmill.pages.crops import Crop, Halves, cut, join
from inkmill.pages.documents import is_one, open_pages
from inkmill.pages.geometry import Points, apply, facing, sides, turn_pixels, turned
from inkmill.pages.models import LineText, open_detector, open_line_reader
from inkmill.pages.order import Place, reading_order, skew_of
from inkmill.pages.tiles import Quad, detect
from inkmill.pages.types import Line, Page, PageImage, Rotation, Word
from inkmill.pages.words import words_of

BATCH_PIXELS = 48 * 1024
"""Pixels of a batch of lines; a longer line is one alone. On a CPU larger ones leave its caches and are slower."""
WAITING_PIXELS = 1 << 20
"""Pages wait for others until their lines have so many pixels: one page of text has, tickets and labels have not."""
WAITING_BYTES = 128 << 20
MIN_CONFIDENCE = 0.5
"""Lines that are read less surely are left out, and counted: most are no text."""

_TALL, _VERY_TALL = 1.5, 3.0
"""Height over width: from the first on a line is read upright and turned, from the second on only turned."""
_SAMPLE, _SURE, _CLEARLY = 5, 0.85, 0.05
"""Lines that are read to find the page's rotation; how sure a reading ends the search; how much surer another is."""


@dataclass(frozen=True, slots=True, eq=False)
class PageJob:
    """A page between `find` and `finish`.

    Attributes:
        image: the page.
        rotation: see `Page.rotation`.
        quads: the lines, in pixels of the page turned back.
        crops: what is to be read.
        known: crops that were read to find the rotation, with their texts.
        seconds: how long each stage took so far.
    """

    image: PageImage
    rotation: Rotation
    quads: tuple[Points, ...]
    crops: tuple[Crop, ...]
    known: tuple[tuple[Crop, LineText], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


class PageReader:
    """Reads pages; several threads may use one.

    Args:
        detector: a file, an object of `inkmill.pages.models.LineDetector`, or None for the weights of the package.
        reader: a file, an object of `inkmill.pages.models.LineReader`, or None likewise.
        threads: of one network on the CPU; by default one a core.
        min_confidence: lines that are read less surely are left out.
        find_rotation: whether pages may be turned by 90, 180 or 270 degrees.

    Raises:
        InkmillError: no such file, or no model of that kind.
    """

    def __init__(
        self,
        detector: Any = None,
        reader: Any = None,
        *,
        threads: int | None = None,
        min_confidence: float = MIN_CONFIDENCE,
        find_rotation: bool = True,
    ) -> None:
        if not 0 <= min_confidence <= 1:
            raise ConfigError(f"min_confidence={min_confidence}: expected a number from 0 to 1")
        self.detector = open_detector(detector, threads)
        self.reader = open_line_reader(reader, threads)
        self.min_confidence, self.find_rotation = min_confidence, find_rotation

    # All three stages

    def read(self, sources: Any) -> Iterator[Page]:
        """Yield the pages of files, bytes or arrays, in order, a few at a time as they are read.

        Args:
            sources: one or several of: a path, encoded bytes, a uint8 array (HW, HWC), a PIL image, a PageImage.

        Raises:
            DataError: one cannot be read; names it.
        """
        for _, page in self.read_images(_images(sources)):
            yield page

    def read_images(self, images: Iterable[PageImage]) -> Iterator[tuple[PageImage, Page]]:
        """Yield pages with what was read on them, in order; the lines of pages that wait are batched together."""
        waiting: list[PageJob] = []
        for image in images:
            waiting.append(self.find(image))
            full = sum(crop.cost for job in waiting for crop in job.crops) >= WAITING_PIXELS
            if full or sum(job.image.pixels.size for job in waiting) >= WAITING_BYTES:
                yield from self._finish_all(waiting)
                waiting = []
        yield from self._finish_all(waiting)

    def _finish_all(self, jobs: Sequence[PageJob]) -> Iterator[tuple[PageImage, Page]]:
        started = time.perf_counter()
        texts = iter(self.recognise([crop for job in jobs for crop in job.crops]))
        seconds = (time.perf_counter() - started) / max(sum(len(job.crops) for job in jobs), 1)
        for job in jobs:
            job.seconds["recognise"] = seconds * len(job.crops)
            yield job.image, self.finish(job, list(islice(texts, len(job.crops))))

    def read_page(self, image: PageImage) -> Page:
        """Return one page, read."""
        return next(page for _, page in self.read_images([image]))

    # 1. Where text is

    def find(self, image: PageImage) -> PageJob:
        """Return a page's lines as crops to read; runs the detector, and the reader on a few lines."""
        started = time.perf_counter()
        quads = detect(self.detector, image.pixels)
        seconds = {"detect": time.perf_counter() - started}
        halves = Halves(image.pixels, self.reader.channels)
        rotation: Rotation = 0
        known: list[tuple[Crop, LineText]] = []
        if self.find_rotation and quads:
            rotation, known = self._rotation(quads, halves)
            seconds["rotation"] = time.perf_counter() - started - seconds["detect"]
        to_work = turned(image.pixels.shape[1], image.pixels.shape[0], rotation)
        if rotation:
            # Detectors find upright text best: look once more.
            pixels = turn_pixels(image.pixels, rotation)
            quads, halves, known = detect(self.detector, pixels), Halves(pixels, self.reader.channels), []
        corners = tuple(facing(quad.corners, 0) for quad in quads)
        seen = {crop.line for crop, _ in known}
        unread = [line for line in range(len(corners)) if line not in seen]
        crops = [crop for line in unread for crop in self._crops(corners, halves, line)]
        on_page = [replace(crop, matrix=crop.matrix @ to_work) for crop in crops]
        return PageJob(image, rotation, corners, tuple(on_page), tuple(known), seconds)

    def _crops(self, corners: Sequence[Points], halves: Halves, line: int) -> list[Crop]:
        """Return the crops of every way in which a line may have to be read: upright, or turned either way."""
        quad = corners[line]
        width, height = sides(quad)
        if height < _TALL * width:
            return cut(halves, quad, self.reader, line)
        ways = [1, 3] if height >= _VERY_TALL * width else [0, 1, 3]
        return [crop for way in ways for crop in cut(halves, np.roll(quad, -way, axis=0), self.reader, line, way)]

    def _rotation(self, quads: Sequence[Quad], halves: Halves) -> tuple[Rotation, list[tuple[Crop, LineText]]]:
        """Return how the page is turned, and what was read to find out, where that holds for the upright page."""
        # 1. Do lines lie or stand? Long ones vote, each by its length.
        upright = [facing(quad.corners, 0) for quad in quads]
        size = np.array([sides(quad) for quad in upright])
        long = size.max(axis=1) >= 2 * size.min(axis=1)
        if not long.any():
            return 0, []
        stands = size[:, 1] > size[:, 0]
        length = size.max(axis=1) * long
        standing = bool(length[stands].sum() > length[~stands].sum())
        # 2. A sample of lines that are neither very short nor costly, read the likelier way.
        score = np.array([quad.score for quad in quads])
        ratio = size.max(axis=1) / np.maximum(size.min(axis=1), 1)
        fit = long & (stands == standing)
        order = np.lexsort((-score, np.abs(np.log(np.maximum(ratio, 1) / 8)).round(1), ~fit))
        sample = order[: min(_SAMPLE, int(fit.sum()))].tolist()
        ways: tuple[Rotation, Rotation] = (90, 270) if standing else (0, 180)
        first = self._sample(upright, halves, sample, ways[0])
        sure = _mean_confidence(first)
        if sure >= _SURE:
            return ways[0], first if ways[0] == 0 else []
        # 3. Not sure: the other way too.
        second = self._sample(upright, halves, sample, ways[1])
        if _mean_confidence(second) > sure + _CLEARLY:
            return ways[1], []
        return ways[0], first if ways[0] == 0 else []

    def _sample(
        self, quads: Sequence[Points], halves: Halves, lines: Sequence[int], rotation: Rotation
    ) -> list[tuple[Crop, LineText]]:
        crops = [crop for line in lines for crop in cut(halves, facing(quads[line], rotation), self.reader, line)]
        return list(zip(crops, self.recognise(crops), strict=True))

    # 2. What it says

    def recognise(self, crops: Sequence[Crop]) -> list[LineText]:
        """Return the text of each crop; crops of several pages may be read together."""
        found: list[LineText | None] = [None] * len(crops)
        for batch in batches(crops):
            images = np.stack([crops[index].pixels for index in batch])
            valid = np.array([crops[index].valid for index in batch], np.int32)
            for index, text in zip(batch, self.reader.read_lines(images, valid), strict=True):
                found[index] = text
        return cast("list[LineText]", found)

    # 3. Words, places and order

    def finish(self, job: PageJob, texts: Sequence[LineText]) -> Page:
        """Return the page.

        Args:
            job: what `find` returned.
            texts: the texts of `job.crops`, in that order.
        """
        started = time.perf_counter()
        image = job.image
        height, width = image.pixels.shape[:2]
        # 1. Of every line the surest reading, its parts joined.
        best = _best(job, texts)
        # 2. What is hardly read is left out, and counted.
        sure = {line: one for line, one in best.items() if one.text.confidence >= self.min_confidence and one.words}
        notes = list(image.notes)
        if doubtful := sum(bool(one.text.text.strip()) for line, one in best.items() if line not in sure):
            were = "region was" if doubtful == 1 else "regions were"
            notes.append(f"{doubtful} {were} left out: read with a confidence below {self.min_confidence:g}")
        # 3. In reading order.
        order = sorted(sure)
        quads = [job.quads[line] for line in order]
        lines = [_line(sure[order[place.line]], place) for place in reading_order(quads)]
        seconds = {**job.seconds, "finish": time.perf_counter() - started}
        return Page(
            image.source,
            image.number,
            width,
            height,
            image.dpi,
            job.rotation,
            tuple(lines),
            tuple(notes),
            skew_of(quads),
            seconds,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """One line as it was read."""

    text: LineText
    polygon: Points
    words: list[Word]


def batches(crops: Sequence[Crop]) -> list[list[int]]:
    """Return which crops are read together: those of one size, of bounded pixels."""
    found: list[list[int]] = []
    for index in sorted(range(len(crops)), key=lambda index: crops[index].size):
        last = crops[found[-1][0]] if found else None
        if last is not None and last.size == crops[index].size and (len(found[-1]) + 1) * last.cost <= BATCH_PIXELS:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def _best(job: PageJob, texts: Sequence[LineText]) -> dict[int, _Reading]:
    ways: dict[tuple[int, int], list[tuple[Crop, LineText]]] = {}
    for crop, text in (*job.known, *zip(job.crops, texts, strict=True)):
        ways.setdefault((crop.line, crop.way), []).append((crop, text))
    found: dict[int, tuple[float, list[tuple[Crop, LineText]], LineText]] = {}
    for (line, _), parts in ways.items():
        parts.sort(key=lambda part: part[0].part)
        text = join([crop for crop, _ in parts], [one for _, one in parts])
        confidence = text.confidence if text.text.strip() else -1.0
        if line not in found or confidence > found[line][0]:
            found[line] = confidence, parts, text
    return {line: _placed(parts, text) for line, (_, parts, text) in found.items()}


def _placed(parts: Sequence[tuple[Crop, LineText]], text: LineText) -> _Reading:
    first, last = parts[0][0], parts[-1][0]
    width, height = last.offset + last.valid, first.size[1]
    to_page = np.linalg.inv(first.matrix).astype(np.float64)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    return _Reading(text, apply(to_page, corners), words_of(text, width, height, to_page))


def _line(reading: _Reading, place: Place) -> Line:
    words = tuple(reading.words)
    text = " ".join(word.text for word in words)
    return Line(text, reading.text.confidence, reading.polygon, words, place.block, place.row)


def _mean_confidence(read: Iterable[tuple[Crop, LineText]]) -> float:
    """Return the mean probability of all characters, each line counted by its length; 0 without any."""
    values: list[NDArray[np.float32]] = [text.probabilities for _, text in read]
    together = np.concatenate([np.empty(0, np.float32), *values])
    return float(together.mean()) if len(together) else 0.0


def _images(sources: Any) -> Iterator[PageImage]:
    for source in [sources] if is_one(sources) else sources:
        if isinstance(source, PageImage):
            yield source
        else:
            yield from open_pages(source)
