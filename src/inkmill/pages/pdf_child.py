"""The process that opens a PDF, started by `inkmill.pages.pdf.PdfProcess`; it needs pypdfium2 and nothing of inkmill.

PDFium is not thread-safe, and hostile files make it crash, hang or fill the memory; here that costs one page. Questions
come in and answers go out as a line of JSON, with so many bytes behind it as its "bytes" says:

    {"open": length, "password": null, "memory": bytes}  + the file   -->  {"pages": count}
    {"size": number}                      -->  {"width": points, "height": points}
    {"render": number, "dpi": dpi}        -->  {"width": pixels, "height": pixels, "bytes": 3 x width x height}  + RGB
    what goes wrong                       -->  {"error": sentence}
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

POINTS = 72
"""PDF's unit: so many make an inch."""


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the questions end."""
    document: Any = None
    for line in questions:
        question = json.loads(line)
        content, answer = b"", dict[str, Any]()
        try:
            if "open" in question:
                document = _open(question, questions.read(question["open"]))
                answer = {"pages": len(document)}
            elif "size" in question:
                width, height = document[question["size"] - 1].get_size()
                answer = {"width": width, "height": height}
            else:
                answer, content = _render(document, question["render"], question["dpi"])
        except Exception as error:  # whatever PDFium finds wrong with a file is an answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "bytes": len(content)}).encode() + b"\n")
        answers.write(content)
        answers.flush()


def _open(question: dict[str, Any], data: bytes) -> Any:
    import pypdfium2

    if question.get("memory"):
        _limit_memory(question["memory"])
    document = pypdfium2.PdfDocument(data, password=question.get("password"))
    if document.get_formtype():  # what was filled in is drawn too
        document.init_forms()
    return document


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _render(document: Any, number: int, dpi: float) -> tuple[dict[str, Any], bytes]:
    page = document[number - 1]
    bitmap = page.render(scale=dpi / POINTS, rev_byteorder=True, force_bitmap_format=_bgr())
    rows = bytes(bitmap.buffer)
    used = 3 * bitmap.width
    if bitmap.stride != used:
        rows = b"".join(rows[start : start + used] for start in range(0, bitmap.stride * bitmap.height, bitmap.stride))
    answer = {"width": bitmap.width, "height": bitmap.height}
    bitmap.close()
    page.close()
    return answer, rows


def _bgr() -> int:
    import pypdfium2.raw

    return int(pypdfium2.raw.FPDFBitmap_BGR)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
