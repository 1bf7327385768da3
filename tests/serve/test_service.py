"""Many clients at once: admission, fairness, time limits, leaving, stopping."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from tests.serve.conftest import BarDetector, BarReader, page_of, png

from inkmill.pages.documents import Document
from inkmill.pages.outputs.data import write_text
from inkmill.pages.outputs.pdf_writer import write_pdf
from inkmill.pages.reader import PageReader
from inkmill.pages.types import PageImage
from inkmill.serve.service import Limits, PageService, RefusedError, Upload


class Gated(BarDetector):
    """Finds nothing until it is let go; the first page, with which a service warms up, is let through."""

    def __init__(self) -> None:
        self.go, self.warm = threading.Event(), False

    def detect(self, images: Sequence[np.ndarray]) -> list[Any]:
        if self.warm:
            assert self.go.wait(20)
        self.warm = True
        return super().detect(images)


def text_of(service: PageService, *lines: str) -> Any:
    return service.read(Upload("page", png(*lines)), None, write_text)


def test_texts_of_many_clients_are_those_of_one_after_the_other(reader: PageReader) -> None:
    documents = [[f"D{n} L{line}" for line in range(n % 7)] for n in range(40)]

    async def ask() -> tuple[list[bytes], list[bytes]]:
        async with PageService({"default": reader}, Limits(active=8)) as service:
            alone = [await text_of(service, *lines) for lines in documents]
            together = await asyncio.gather(*(text_of(service, *lines) for lines in documents))
        return alone, together

    alone, together = asyncio.run(ask())
    assert alone == together
    assert alone[3].split() == b"D3 L0 D3 L1 D3 L2".split()


def test_beyond_its_places_a_service_refuses_at_once_and_says_when_to_come_back() -> None:
    detector = Gated()

    async def ask() -> None:
        service = PageService({"default": PageReader(detector, BarReader())}, Limits(active=1, waiting=1))
        async with service:

            async def one() -> bytes:
                async with service.admission():
                    return await text_of(service, "HELLO")

            two = [asyncio.create_task(one()) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(RefusedError) as refused:
                await one()
            assert (refused.value.status, refused.value.code) == (429, "busy")
            assert (refused.value.retry_after or 0) >= 1
            detector.go.set()
            assert await asyncio.gather(*two) == [b"HELLO\n"] * 2
            assert service.admitted == 0
            assert await one() == b"HELLO\n"

    asyncio.run(ask())


def test_a_turn_that_does_not_come_and_work_that_does_not_end_are_answers() -> None:
    detector = Gated()

    async def ask() -> list[Any]:
        limits = Limits(active=1, queue_s=0.2, total_s=0.6)
        async with PageService({"default": PageReader(detector, BarReader())}, limits, threads=1) as service:

            async def one() -> bytes:
                async with service.admission():
                    return await text_of(service, "HELLO")

            tasks = [asyncio.create_task(one()) for _ in range(2)]
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            detector.go.set()
            return answers

    slow, waiting = asyncio.run(ask())
    assert (slow.status, slow.code) == (504, "too_slow")
    assert (waiting.status, waiting.code) == (429, "busy")


def test_a_service_that_is_being_stopped_lets_nobody_in_and_finishes_what_it_has() -> None:
    detector = Gated()

    async def ask() -> None:
        async with PageService({"default": PageReader(detector, BarReader())}) as service:
            running = asyncio.create_task(text_of(service, "LAST"))
            await asyncio.sleep(0.05)
            service.draining = True
            with pytest.raises(RefusedError) as refused:
                async with service.admission():
                    pass
            assert refused.value.status == 503
            detector.go.set()
            assert await running == b"LAST\n"

    asyncio.run(ask())


def test_where_a_turn_would_come_too_late_a_request_is_refused_before_its_body() -> None:
    detector = Gated()

    async def ask() -> None:
        limits = Limits(active=1, waiting=100, expected_s=1.5)
        async with PageService({"default": PageReader(detector, BarReader())}, limits) as service:

            async def one() -> bytes:
                async with service.admission():
                    return await text_of(service, "HELLO")

            # A document is thought to take half a second.
            tasks = [asyncio.create_task(one()) for _ in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(RefusedError, match="4 requests are served or wait"):
                await one()
            detector.go.set()
            assert await asyncio.gather(*tasks) == [b"HELLO\n"] * 4

    asyncio.run(ask())


def test_who_leaves_leaves_no_process_behind() -> None:
    pytest.importorskip("pypdfium2")
    detector = Gated()
    sheet = PageReader(BarDetector(), BarReader()).read_page(PageImage("one", 1, page_of("HELLO")))
    pdf = write_pdf([sheet], Document(png("HELLO")))

    async def ask() -> list[int]:
        async with PageService({"default": PageReader(detector, BarReader())}) as service:
            counts = []
            for delay in (0.0, 0.002, 0.1, 1.0):
                task = asyncio.create_task(service.read(Upload("a", pdf), None, write_text))
                await asyncio.sleep(delay)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            detector.go.set()
            assert await text_of(service, "STILL HERE") == b"STILL HERE\n"
        counts.append(len(children()))
        return counts

    before = len(children())
    assert asyncio.run(ask()) == [before]


def children() -> list[str]:
    """Return the processes that this one started and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.append(stat.parent.name)
    return found
