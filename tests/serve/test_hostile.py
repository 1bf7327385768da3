"""Hostile uploads: each is an answer that blames the client, and the next client is served."""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from pathlib import Path

import cv2
import httpx2
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("pypdfium2")

from tests.serve.conftest import page_of, png

from inkmill.pages.documents import Document
from inkmill.pages.outputs.pdf_writer import write_pdf
from inkmill.pages.types import Page

pytestmark = pytest.mark.slow


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(side: int) -> bytes:
    """A PNG of white, some kilobytes that unfold to gigabytes."""
    rows = zlib.compressobj(9)
    row = bytes(1 + side * 3)
    packed = b"".join(rows.compress(row) for _ in range(min(side, 3000))) + rows.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def pdf(pages: int, size: float = 100) -> bytes:
    kids = " ".join("3 0 R" for _ in range(pages))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {pages}/Kids[{kids}]>>",
        f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 {size} {size}]>>",
    ]
    body = "".join(f"{number} 0 obj {content} endobj\n" for number, content in enumerate(objects, 1))
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R/Size 4>>\n%%EOF".encode()


def seeds() -> list[bytes]:
    page = page_of("MUTATE", "THIS")
    files = [cv2.imencode(suffix, page)[1].tobytes() for suffix in (".png", ".jpg", ".webp", ".bmp", ".tif", ".gif")]
    width, height = page.shape[1], page.shape[0]
    written = write_pdf([Page("a", 1, width, height, None, 0, ())], Document(png("MUTATE", "THIS")))
    return [*files, cv2.imencodemulti(".tif", [page] * 3)[1].tobytes(), written]


def mutated(file: bytes, chance: random.Random) -> bytes:
    content = bytearray(file)
    for _ in range(chance.choice((1, 3, 10))):
        at = chance.randrange(min(len(content), chance.choice((64, 512, 1 << 20))))
        content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del content[chance.randrange(8, len(content)) :]
    return bytes(content)


def peak_mib(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_made_up_files_are_refused(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    small = png("SMALL")
    cases = {
        "a bomb of pixels": (bomb(30_000), 413),
        "a bomb below the limit, cut short": (bomb(6_000), 422),
        "a PDF of a thousand pages": (pdf(1000), 413),
        "a PDF of a giant page": (pdf(1, 14_400 * 4), 413),
        "a PDF that counts itself": (pdf(1).replace(b"/Count 1/Kids[3 0 R]", b"/Count 9999999/Kids[2 0 R]"), 4),
        "a script": (b"<script>alert(1)</script>" * 10, 415),
        "a script that begins as a GIF": (b"GIF89a/*" + b"*/=1;alert(1)//" * 50, 4),
        "a ZIP behind a cut picture": (small[:60] + b"PK\x03\x04" * 100, 422),
        "a PDF behind a cut picture": (small[:60] + pdf(60), 413),
        "nothing": (b"", 400),
    }
    with httpx2.Client(base_url=address, timeout=60) as client:
        for name, (content, status) in cases.items():
            answer = client.post("/v1/read", content=content)
            assert answer.status_code // (100 if status == 4 else 1) == status, (name, answer.text)
            assert answer.json()["detail"], name
        assert client.post("/v1/read?format=text", content=small).text == "SMALL\n"
    assert peak_mib(process) < 2048


def test_a_few_hundred_mutated_files_are_answers(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    chance, files = random.Random(20261123), seeds()
    statuses: dict[int, int] = {}
    with httpx2.Client(base_url=address, timeout=60) as client:
        for number in range(320):
            # A PDF takes a process, so there are fewer of them.
            file = files[-1] if number % 16 == 0 else files[number % (len(files) - 1)]
            answer = client.post("/v1/read", content=mutated(file, chance))
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert client.post("/v1/read?format=text", content=png("ALIVE")).text == "ALIVE\n"
    assert set(statuses) <= {200, 413, 415, 422}
    assert statuses[422] > 20
    assert peak_mib(process) < 2048
