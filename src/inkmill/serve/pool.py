"""The lines of all requests, read together: whenever the reader is free it takes what waits, whoever sent it.

No request waits for others to come. While one batch is read, lines of other requests gather, and the next batch is
larger: under load batches are full, without load nobody waits. Requests take turns, a batch's worth each, so that a
book does not hold up a ticket.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from inkmill.pages.crops import Crop
from inkmill.pages.models import LineText
from inkmill.pages.reader import BATCH_PIXELS

ROUND_PIXELS = 4 * BATCH_PIXELS
"""Read in one go: enough that lines of like width fill batches, little enough that a new request is soon served."""


class _Request:
    """The lines of one page."""

    def __init__(self, crops: Sequence[Crop]) -> None:
        self.crops = crops
        self.texts: list[LineText] = []
        self.taken = 0
        self.future: Future[list[LineText]] = Future()

    def take(self, pixels: int) -> list[Crop]:
        """Return the next lines, at least one, up to about so many pixels."""
        first = self.taken
        while self.taken < len(self.crops) and (pixels > 0 or self.taken == first):
            pixels -= self.crops[self.taken].cost
            self.taken += 1
        return list(self.crops[first : self.taken])


class LinePool:
    """A thread that reads the lines of many requests together; close it, or use it with `with`.

    Args:
        recognise: `PageReader.recognise`.
        observe: gets the number of lines of each round.
    """

    def __init__(
        self,
        recognise: Callable[[Sequence[Crop]], Sequence[LineText]],
        observe: Callable[[int], None] = lambda lines: None,
    ) -> None:
        self._recognise, self._observe = recognise, observe
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def submit(self, crops: Sequence[Crop]) -> Future[list[LineText]]:
        """Return the texts of lines, in their order, once they are read; a cancelled future's lines are dropped.

        Raises:
            RuntimeError: the pool is closed.
        """
        request = _Request(crops)
        if not crops:
            request.future.set_result([])
            return request.future
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool of lines is closed")
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Read what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> LinePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            # 1. Wait for lines, and take what a round holds, of each request in turn.
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                shares = self._take()
            crops = [crop for _, part in shares for crop in part]
            if not crops:
                continue
            # 2. Read them together.
            self._observe(len(crops))
            try:
                texts = list(self._recognise(crops))
            except Exception as error:
                self._fail([request for request, _ in shares], error)
                continue
            # 3. Give each its own.
            done = 0
            for request, part in shares:
                request.texts += texts[done : done + len(part)]
                done += len(part)
                if len(request.texts) == len(request.crops):
                    _settle(request.future, request.texts)

    def _take(self) -> list[tuple[_Request, list[Crop]]]:
        shares: list[tuple[_Request, list[Crop]]] = []
        left = ROUND_PIXELS
        for _ in range(len(self._waiting)):
            if left <= 0:
                break
            request = self._waiting.popleft()
            if request.future.cancelled():
                continue
            part = request.take(min(left, BATCH_PIXELS))
            left -= sum(crop.cost for crop in part)
            shares.append((request, part))
            if request.taken < len(request.crops):
                self._waiting.append(request)
        return shares

    def _fail(self, requests: Sequence[_Request], error: Exception) -> None:
        with self._changed:
            self._waiting = deque(one for one in self._waiting if one not in requests)
        for request in requests:
            if not request.future.done():
                request.future.set_exception(error)


def _settle(future: Future[list[LineText]], texts: list[LineText]) -> None:
    with suppress(InvalidStateError):  # cancelled meanwhile: whoever asked has left
        future.set_result(texts)
