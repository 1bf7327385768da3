"""Documents to pages for many clients at once: who is let in, how far the work of each has come, when it is too much.

    admitted     a place is taken before the body is read; without a free one the answer is 429, at once
    active       so many documents are worked on at a time, the others wait for their turn
    find, lines, finish   the stages of `PageReader`; the lines of all documents are read together (pool.py)

What a client sends is kept in no file of ours and in no log; what is over a limit is refused, never cut.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import cv2
import numpy as np

from inkmill.pages.documents import Document
from inkmill.pages.reader import PageReader
from inkmill.pages.types import Page, PageImage
from inkmill.serve.pool import LinePool

T = TypeVar("T")

PICTURE_SIDE = 2400
"""Of the picture of a page for people: an A4 page at 200 dpi as it is."""

_PAGES_AT_ONCE = 2
"""Of one document: while the lines of a page are read, the next is looked at."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request and all together may take.

    Attributes:
        body: bytes of a request.
        pixels: of a page, read from its header before it is decoded.
        pages: of a document.
        active: documents that are worked on at a time.
        waiting: further requests that are let in.
        expected_s: refuse a request at once where its turn is expected later.
        queue_s: seconds that one may wait for its turn.
        upload_s: seconds for a body, and one more for every 32 KiB of it.
        total_s: seconds for a request, from its first byte to its answer.
    """

    body: int = 20 << 20
    pixels: int = 40_000_000
    pages: int = 50
    active: int = 4
    waiting: int = 8
    expected_s: float = 5.0
    queue_s: float = 30.0
    upload_s: float = 10.0
    total_s: float = 60.0


class RefusedError(Exception):
    """A request that is not served.

    Args:
        status: of HTTP.
        code: for programs; stable.
        detail: one sentence for people.
        retry_after: seconds, where trying again helps.
    """

    def __init__(self, status: int, code: str, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.retry_after = status, code, detail, retry_after


@dataclass(frozen=True, slots=True)
class Upload:
    """A document as it came.

    Attributes:
        name: what the client calls it; it is shown in the answer and becomes no path.
        content: its bytes.
    """

    name: str
    content: bytes


@dataclass
class _Model:
    reader: PageReader
    pool: LinePool


@dataclass
class Seen:
    """What happened so far, for metrics; each gets a number.

    Attributes:
        lines: of a round of the pool.
        stage: its name, and its seconds on a page.
        pages: pages that were read.
    """

    lines: Callable[[int], None] = field(default=lambda count: None)
    stage: Callable[[str, float], None] = field(default=lambda name, seconds: None)
    pages: Callable[[int], None] = field(default=lambda count: None)


class PageService:
    """Reads the documents of many clients; use it with `async with`.

    Args:
        readers: by the name that clients choose them by; the first is the default.
        limits: see Limits.
        threads: that look for text at a time.
        seen: what metrics are made of.
    """

    def __init__(
        self, readers: Mapping[str, PageReader], limits: Limits = Limits(), threads: int = 2, seen: Seen | None = None
    ) -> None:
        self.limits, self.seen = limits, seen or Seen()
        self.draining = False
        self.ready = False
        self.admitted = 0
        self._readers = dict(readers)
        self._threads = threads
        self._models: dict[str, _Model] = {}
        self._seconds = 0.5  # of a document, a moving mean
        self._lock = threading.Lock()

    @property
    def models(self) -> list[str]:
        """Their names, the default first."""
        return list(self._readers)

    async def __aenter__(self) -> PageService:
        self._turns = asyncio.Semaphore(self.limits.active)
        self._memory = asyncio.Semaphore(self._threads + 2)  # pages of all documents that are held as pixels
        self._executor = ThreadPoolExecutor(self._threads, "pages")
        self._models = {
            name: _Model(reader, LinePool(reader.recognise, self.seen.lines)) for name, reader in self._readers.items()
        }
        # A first page takes longer than any other; "ready" is said after it.
        for model in self._models.values():
            await self._page(model, _first_page())
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        for model in self._models.values():
            model.pool.close()
        self._executor.shutdown()

    @asynccontextmanager
    async def admission(self) -> AsyncIterator[None]:
        """Take a place for a request, before its body is read; inside, time runs.

        Raises:
            RefusedError: all are taken, the server is going down, or the time is over.
        """
        if self.draining:
            raise RefusedError(503, "draining", "the server is being stopped; send it to another one", 1)
        limits = self.limits
        places = limits.active + limits.waiting
        turn_in = self._seconds * max(0, self.admitted - limits.active + 1) / limits.active
        if self.admitted >= places or turn_in > limits.expected_s:
            wait = min(max(1, round(turn_in)), 60)
            raise RefusedError(429, "busy", f"{self.admitted} requests are served or wait; try again later", wait)
        self.admitted += 1
        try:
            async with asyncio.timeout(limits.total_s):
                yield
        except TimeoutError:
            raise RefusedError(504, "too_slow", f"it took longer than {limits.total_s:g} s") from None
        finally:
            self.admitted -= 1

    def check_model(self, name: str | None) -> None:
        """Raise RefusedError where there is no such model."""
        if name is not None and name not in self._readers:
            known = ", ".join(self.models)
            raise RefusedError(404, "no_such_model", f"no model {name!r}; the models are {known}")

    async def read(
        self,
        upload: Upload,
        model: str | None,
        write: Callable[[Sequence[Page], Document], T],
        page: int | None = None,
        one_page: bool = False,
    ) -> T:
        """Return what `write` makes of a document's pages.

        Args:
            upload: the document.
            model: a name of `models`; None: the first.
            write: gets the pages and the open document, in a thread.
            page: read this one alone, from 1.
            one_page: whether more than one is refused.

        Raises:
            RefusedError: no such model; the turn did not come in time; several pages where one is expected.
            InkmillError: the document cannot be read.
        """
        self.check_model(model)
        chosen = self._models[model or self.models[0]]
        async with self._turn(), self._open(upload) as document:
            if one_page and page is None and document.count > 1:
                raise RefusedError(
                    422, "one_page", f"this format holds one page, the document has {document.count}: add page=1"
                )
            numbers = range(1, document.count + 1) if page is None else [page]
            pages = await self._pages(chosen, document, numbers)
            return await self._run(write, pages, document)

    async def picture(self, upload: Upload, page: int) -> bytes:
        """Return a page of a document as it is read, as JPEG; at most `PICTURE_SIDE` pixels wide or high.

        Raises:
            RefusedError: the turn did not come in time.
            InkmillError: the page cannot be read.
        """
        async with self._turn(), self._open(upload) as document, self._memory:
            return await self._run(lambda: _jpeg(document.page(page)))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        asked = time.perf_counter()
        try:
            async with asyncio.timeout(self.limits.queue_s):
                await self._turns.acquire()
        except TimeoutError:
            wait = max(1, round(self._seconds))
            raise RefusedError(429, "busy", f"its turn did not come within {self.limits.queue_s:g} s", wait) from None
        started = time.perf_counter()
        self.seen.stage("queue", started - asked)
        try:
            yield
            self._seconds += 0.1 * (time.perf_counter() - started - self._seconds)
        finally:
            self._turns.release()

    @asynccontextmanager
    async def _open(self, upload: Upload) -> AsyncIterator[Document]:
        limits = self.limits
        opening = self._executor.submit(
            lambda: Document(upload.content, upload.name, max_pages=limits.pages, max_pixels=limits.pixels)
        )
        try:
            document = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)  # a thread cannot be stopped; what it opens is closed
            raise
        try:
            yield document
        finally:
            # Not in the pool of threads, one of which may still draw a page of it: this ends that.
            await asyncio.shield(asyncio.to_thread(document.close))

    async def _pages(self, model: _Model, document: Document, numbers: Sequence[int]) -> list[Page]:
        decoding = asyncio.Lock()  # a document gives one page at a time
        places = asyncio.Semaphore(_PAGES_AT_ONCE)

        async def one(number: int) -> Page:
            async with places, self._memory:
                async with decoding:
                    image = await self._run(document.page, number)
                return await self._page(model, image)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(number)) for number in numbers]
        except* Exception as errors:
            raise _first(errors) from None
        self.seen.pages(len(tasks))
        return [task.result() for task in tasks]

    async def _page(self, model: _Model, image: PageImage) -> Page:
        # 1. Where text is; 2. what it says, with the lines of everybody; 3. words, places and order.
        job = await self._run(model.reader.find, image)
        started = time.perf_counter()
        texts = await asyncio.wrap_future(model.pool.submit(job.crops))
        job.seconds["recognise"] = time.perf_counter() - started
        page = await self._run(model.reader.finish, job, texts)
        for stage, seconds in page.seconds.items():
            self.seen.stage(stage, seconds)
        return page

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _first_page() -> PageImage:
    pixels = np.full((96, 320, 3), 255, np.uint8)
    cv2.putText(pixels, "inkmill 2026", (20, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 2)
    return PageImage("warm-up", 1, pixels)


def _jpeg(image: PageImage) -> bytes:
    pixels = image.pixels
    scale = PICTURE_SIDE / max(pixels.shape[:2])
    if scale < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA).astype(np.uint8)
    encoded = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])[1]
    return encoded.tobytes()


def _close_late(opening: Future[Document]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
