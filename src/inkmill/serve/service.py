"""Documents to pages for many clients at once: who is let in, how far the work of each has come, when it is too much.

    admitted     a place is taken before the body is read; without a free one the answer is 429, at once
    active       so many documents are worked on at a time, the others wait with their bodies on the disk
    find, lines, finish   the stages of `PageReader`; the lines of all documents are read together (pool.py)

What a client sends is kept in no file of ours and in no log; what is over a limit is refused, never cut.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from inkmill.pages.documents import Document
from inkmill.pages.reader import PageReader
from inkmill.pages.types import Page, PageImage
from inkmill.serve.pool import LinePool

T = TypeVar("T")

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
        queue_s: seconds that one may wait for its turn.
        total_s: seconds for all of it.
    """

    body: int = 20 << 20
    pixels: int = 40_000_000
    pages: int = 50
    active: int = 4
    waiting: int = 32
    queue_s: float = 10.0
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
        self._seconds = 1.0  # of a document, a moving mean
        self._lock = threading.Lock()

    @property
    def models(self) -> list[str]:
        """Their names, the default first."""
        return list(self._readers)

    async def __aenter__(self) -> PageService:
        self._turns = asyncio.Semaphore(self.limits.active)
        self._executor = ThreadPoolExecutor(self._threads, "pages")
        self._models = {
            name: _Model(reader, LinePool(reader.recognise, self.seen.lines)) for name, reader in self._readers.items()
        }
        # A first page takes longer than any other; "ready" is said after it.
        for model in self._models.values():
            await self._page(model, PageImage("warm-up", 1, np.full((64, 256, 3), 255, np.uint8)))
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        for model in self._models.values():
            model.pool.close()
        self._executor.shutdown()

    @asynccontextmanager
    async def admission(self) -> AsyncIterator[None]:
        """Take a place for a request, before its body is read.

        Raises:
            RefusedError: all are taken, or the server is going down.
        """
        if self.draining:
            raise RefusedError(503, "draining", "the server is being stopped; send it to another one", 1)
        places = self.limits.active + self.limits.waiting
        if self.admitted >= places:
            wait = max(1, round(self._seconds * self.admitted / self.limits.active))
            raise RefusedError(
                429, "busy", f"{places} requests are being served or wait; try again later", min(wait, 60)
            )
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1

    async def read(self, upload: Upload, model: str | None, write: Callable[[Sequence[Page], Document], T]) -> T:
        """Return what `write` makes of a document's pages.

        Args:
            upload: the document.
            model: a name of `models`; None: the first.
            write: gets the pages and the open document, in a thread.

        Raises:
            RefusedError: no such model; the turn did not come, or the work did not end, in time.
            InkmillError: the document cannot be read.
        """
        chosen = self._models.get(model or self.models[0])
        if chosen is None:
            known = ", ".join(self.models)
            raise RefusedError(404, "no_such_model", f"no model {model!r}; the models are {known}")
        try:
            async with asyncio.timeout(self.limits.queue_s):
                await self._turns.acquire()
        except TimeoutError:
            wait = max(1, round(self._seconds))
            raise RefusedError(429, "busy", f"its turn did not come within {self.limits.queue_s:g} s", wait) from None
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.limits.total_s):
                return await self._document(chosen, upload, write)
        except TimeoutError:
            raise RefusedError(504, "too_slow", f"reading took longer than {self.limits.total_s:g} s") from None
        finally:
            self._turns.release()
            self._seconds += 0.1 * (time.perf_counter() - started - self._seconds)

    async def _document(self, model: _Model, upload: Upload, write: Callable[[Sequence[Page], Document], T]) -> T:
        limits = self.limits
        document = await self._run(
            lambda: Document(upload.content, upload.name, max_pages=limits.pages, max_pixels=limits.pixels)
        )
        decoding = asyncio.Lock()  # a document gives one page at a time
        places = asyncio.Semaphore(_PAGES_AT_ONCE)

        async def one(number: int) -> Page:
            async with places:
                async with decoding:
                    image = await self._run(document.page, number)
                return await self._page(model, image)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(number)) for number in range(1, document.count + 1)]
            pages = [task.result() for task in tasks]
            self.seen.pages(len(pages))
            return await self._run(write, pages, document)
        except* Exception as errors:
            raise _first(errors) from None
        finally:
            await asyncio.shield(self._run(document.close))

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


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group, however deep."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
