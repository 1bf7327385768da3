"""A server under load, on this machine alone: what `inkmill serve` does below, at and beyond what it can.

    python benchmarks/serve_load.py pages/ [--detector det.onnx --reader rec.onnx] [--seconds 30] [--requests 2000]

Requests are pictures of the folder: every eighth whole, of the others a strip, as a ticket is. In this order:

    alone       one client, one request after the other: the texts that all later answers must equal
    capacity    eight clients, each at once again: requests a second that the server can do
    load        arrivals at random times, whatever became of those before (Poisson), at 0.5, 0.8, 1.2 and 2 x capacity
    memory      so many more requests by eight clients; the server's memory before and after
    stop        SIGTERM while requests run: each that was let in is answered, the process ends with 0

Client and server share the cores, so a client costs the server a little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table

from inkmill.machine import machine_stamp, stamp_line
from inkmill.pages.documents import SUFFIXES

LEVELS = (0.5, 0.8, 1.2, 2.0)
CLIENTS = 8
STRIP = 320
"""Pixels high."""


class Answer(NamedTuple):
    """How one request went; status 0: no answer."""

    document: int
    status: int
    seconds: float
    text: bytes


class Server:
    """`inkmill serve` in a process of its own, on a free port."""

    def __init__(self, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "inkmill", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        if "http://" not in said:
            sys.exit(said + self.process.stderr.read())
        self.port = int(said.partition("http://")[2].split()[0].rpartition(":")[2])
        # Its log is read, or its pipe would fill.
        self._log = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def memory_mib(self) -> float:
        """Return the memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """Return the processor time that it took so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def ask(self, documents: Sequence[bytes], number: int) -> Answer:
        """Send one document on a connection of its own."""
        content = documents[number]
        started = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            head = f"POST /v1/read?format=text HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + content)
            raw = await reader.read()
            writer.close()
            head_line, _, text = raw.partition(b"\r\n\r\n")
            status = int(head_line.split()[1])
        except (OSError, IndexError):
            return Answer(number, 0, time.perf_counter() - started, b"")
        return Answer(number, status, time.perf_counter() - started, text)


def documents_of(folder: Path, count: int) -> list[bytes]:
    """Return encoded pictures: every eighth a whole page, the others strips."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{folder}: no pictures in it")
    chance, found = random.Random(1), list[bytes]()
    for number in range(count):
        file = files[number * len(files) // count]
        pixels = cv2.imread(str(file))
        if pixels is None:  # a PDF
            continue
        if number % 8 and pixels.shape[0] > STRIP:
            top = chance.randrange(pixels.shape[0] - STRIP)
            pixels = pixels[top : top + STRIP]
        found.append(cv2.imencode(".jpg", pixels)[1].tobytes())
    return found


async def closed(
    server: Server, documents: Sequence[bytes], clients: int, enough: Callable[[int], bool]
) -> list[Answer]:
    """Return the answers to clients that each ask again as soon as they are answered."""
    answers, asked = list[Answer](), 0

    async def client() -> None:
        nonlocal asked
        while not enough(asked):
            number, asked = asked % len(documents), asked + 1
            answers.append(await server.ask(documents, number))
            if answers[-1].status in (0, 429, 503):
                await asyncio.sleep(0.2)

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def opened(server: Server, documents: Sequence[bytes], rate: float, seconds: float) -> list[Answer]:
    """Return the answers to requests that arrive at random times."""
    chance, tasks = random.Random(2), list[Awaitable[Answer]]()
    started = at = time.perf_counter()
    while at < started + seconds:
        tasks.append(asyncio.ensure_future(server.ask(documents, chance.randrange(len(documents)))))
        at += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
    return list(await asyncio.gather(*tasks))


def until(seconds: float) -> Callable[[int], bool]:
    """Return what ends a stage after a time."""
    end = time.perf_counter() + seconds
    return lambda asked: time.perf_counter() >= end


def wrong(answers: Sequence[Answer], truth: dict[int, bytes]) -> int:
    """Return how many texts are not those of one request at a time."""
    return sum(answer.status == 200 and answer.text != truth[answer.document] for answer in answers)


async def measure(server: Server, documents: Sequence[bytes], seconds: float, requests: int) -> list[dict[str, object]]:
    """Run every stage; return a row for each."""
    rows = list[dict[str, object]]()

    def note(name: str, answers: Sequence[Answer], took: float, cpu: float) -> float:
        good = [answer.seconds for answer in answers if answer.status == 200]
        refused = [answer.seconds for answer in answers if answer.status in (429, 503)]
        rate = len(good) / took
        rows.append(
            {
                "stage": name,
                "sent": len(answers),
                "answered": len(good),
                "per_s": round(rate, 2),
                "cpu_s_each": round(cpu / max(len(good), 1), 3),
                "p50_s": round(float(np.percentile(good, 50)), 3) if good else None,
                "p99_s": round(float(np.percentile(good, 99)), 3) if good else None,
                "refused": len(refused),
                "refusal_p99_ms": round(1000 * float(np.percentile(refused, 99)), 1) if refused else None,
                "other": dict(Counter(answer.status for answer in answers if answer.status not in (200, 429, 503))),
                "wrong": wrong(answers, truth),
                "memory_mib": round(server.memory_mib()),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        return rate

    async def stage(name: str, work: Awaitable[list[Answer]]) -> float:
        began, cpu = time.perf_counter(), server.cpu_seconds()
        answers = await work
        return note(name, answers, time.perf_counter() - began, server.cpu_seconds() - cpu)

    # 1. Alone, every document; the first time is the truth, the second is counted.
    first = await closed(server, documents, 1, lambda asked: asked >= len(documents))
    truth = {answer.document: answer.text for answer in first}
    await stage("alone", closed(server, documents, 1, until(seconds)))
    # 2. What it can do.
    capacity = await stage("capacity", closed(server, documents, CLIENTS, until(seconds)))
    # 3. Below and beyond.
    for level in LEVELS:
        await stage(f"{level:g} x", opened(server, documents, level * capacity, seconds))
    # 4. Memory.
    if requests:
        await stage(f"{requests} more", closed(server, documents, CLIENTS, lambda asked: asked >= requests))
    # 5. The end.
    ending = asyncio.ensure_future(closed(server, documents, CLIENTS, until(5)))
    await asyncio.sleep(2)
    server.process.send_signal(signal.SIGTERM)
    answers = await ending
    served = sum(answer.status == 200 for answer in answers)
    code = await asyncio.to_thread(server.process.wait)
    print(f"SIGTERM: {served} answered, wrong {wrong(answers, truth)}, exit {code}; not served after it: ", end="")
    print(dict(Counter(answer.status for answer in answers if answer.status != 200)))
    return rows


def main() -> None:
    """Start a server, load it, print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path)
    parser.add_argument("--detector")
    parser.add_argument("--reader")
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a stage")
    parser.add_argument("--requests", type=int, default=2000, help="of the stage `memory`")
    arguments = parser.parse_args()
    given = (("--detector", arguments.detector), ("--reader", arguments.reader))
    documents = documents_of(arguments.pages, arguments.documents)
    server = Server([part for name, value in given if value for part in (name, value)])
    try:
        rows = asyncio.run(measure(server, documents, arguments.seconds, arguments.requests))
    finally:
        server.process.kill()
    table = Table(title=stamp_line(machine_stamp()))
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
