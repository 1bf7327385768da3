"""The HTTP interface, asked as clients ask it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import httpx2
import numpy as np
import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient
from tests.serve.conftest import BarDetector, BarReader, page_of, png

from inkmill.pages.reader import PageReader
from inkmill.serve.app import make_app
from inkmill.serve.service import Limits, PageService

LOCAL = "http://127.0.0.1:8000"
DEFAULT = Limits()
Client = Callable[..., TestClient]


@pytest.fixture
def open_client(reader: PageReader) -> Iterator[Client]:
    opened: list[TestClient] = []

    def make(limits: Limits = DEFAULT, base_url: str = LOCAL, **options: Any) -> TestClient:
        service = PageService({"default": reader, "second": reader}, limits)
        client = TestClient(make_app(service, **options), base_url, raise_server_exceptions=False)
        opened.append(client.__enter__())
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(open_client: Client) -> TestClient:
    return open_client()


def test_a_raw_body_is_read(client: TestClient) -> None:
    answer = client.post("/v1/read", content=png("HELLO", "WORLD"))
    assert answer.status_code == 200
    (page,) = answer.json()["pages"]
    assert [line["text"] for line in page["lines"]] == ["HELLO", "WORLD"]
    x, y = page["lines"][0]["polygon"][0]
    assert (x, y) == pytest.approx((40, 60), abs=2)


def test_files_of_a_form_are_read_in_their_order(client: TestClient) -> None:
    files = [("files", (f"{name}.png", png(name))) for name in ("ONE", "TWO", "THREE")]
    answer = client.post("/v1/read?model=second", files=files)
    found = {page["source"]: page["lines"][0]["text"] for page in answer.json()["pages"]}
    assert found == {"ONE.png": "ONE", "TWO.png": "TWO", "THREE.png": "THREE"}


def test_every_page_of_a_document_is_read(client: TestClient) -> None:
    names = [f"PAGE {number}" for number in range(5)]
    tiff = cv2.imencodemulti(".tif", [page_of(name) for name in names])[1].tobytes()
    assert client.post("/v1/read?format=text", content=tiff).text == "\n\f".join(names) + "\n"


def test_accept_chooses_the_format_where_the_address_does_not(client: TestClient) -> None:
    text = client.post("/v1/read?format=text", content=png("AB"), headers={"accept": "application/json"})
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert client.post("/v1/read", content=png("AB")).headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("content", "query", "status", "code", "said"),
    [
        (b"", "", 400, "empty", "send its bytes as the body"),
        (b"GIF89a", "", 422, "unreadable", "cut short"),
        (b"<svg onload=alert(1)>" + b" " * 99, "", 415, "unsupported", "not an image in a known format"),
        (png("A")[:-40], "", 422, "unreadable", "damaged or cut short"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\0\0\0\0" + bytes(40), "", 413, "too_large", "65536x65536"),
        (png("A"), "?format=jsn", 422, "no_such_format", "did you mean 'json'"),
        (png("A"), "?model=third", 404, "no_such_model", "the models are default, second"),
    ],
)
def test_what_cannot_be_read_is_a_problem_in_words(
    client: TestClient, content: bytes, query: str, status: int, code: str, said: str
) -> None:
    answer = client.post(f"/v1/read{query}", content=content)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert said in problem["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == answer.headers["x-request-id"]


def test_limits_on_body_and_pages_are_refusals_not_cuts(open_client: Client) -> None:
    client = open_client(Limits(body=100_000, pages=2))
    tiff = cv2.imencodemulti(".tif", [page_of("P")] * 3)[1].tobytes()
    for content, status in ((tiff, 413), (bytes(100_001), 413), (png("FITS"), 200)):
        assert client.post("/v1/read", content=content).status_code == status
    parts = (bytes(50_000) for _ in range(3))  # without a Content-Length
    answer = client.post("/v1/read", content=parts)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_form_with_other_fields_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/read", files=[("picture", ("a.png", png("A")))])
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field")


def test_a_token_is_asked_for_where_one_is_set(open_client: Client) -> None:
    client = open_client(token="correct horse battery")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = client.post("/v1/read", content=png("A"), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorised")
    right = {"Authorization": "Bearer correct horse battery"}
    assert client.post("/v1/read", content=png("A"), headers=right).status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/ready").status_code == 200


def test_another_name_that_points_here_is_no_way_in(open_client: Client) -> None:
    client = open_client(base_url="http://evil.example:8000", hosts=("127.0.0.1", "localhost"))
    answer = client.post("/v1/read", content=png("A"))
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")


def test_request_ids_are_taken_or_made(client: TestClient) -> None:
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = client.get("/health", headers={"X-Request-Id": "a b; c"}).headers["x-request-id"]
    assert len(made) == 16


def test_nothing_of_a_document_is_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.post("/v1/read?secret=query", files=[("files", ("passport of Jane.png", png("SECRET")))])
    client.get("/made/up/path")
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("inkmill"))
    assert "/v1/read 200" in ours
    assert not any(word in ours for word in ("passport", "Jane", "SECRET", "query", "made/up"))


def test_models_and_openapi_say_what_there_is(client: TestClient) -> None:
    offered = client.get("/v1/models").json()
    assert offered == {"models": ["default", "second"], "most": {"bytes": 20 << 20, "pixels": 40_000_000, "pages": 50}}
    operation = client.get("/openapi.json").json()["paths"]["/v1/read"]["post"]
    assert set(operation["requestBody"]["content"]) == {"multipart/form-data", "application/octet-stream"}
    assert {"200", "413", "429"} <= set(operation["responses"])


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/", "/page.js", "/page.css"):
        assert "http://" not in client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in client.get(path).text
    assert "innerHTML" not in client.get("/page.js").text


def test_metrics_count_requests_pages_and_lines(client: TestClient) -> None:
    client.post("/v1/read", content=png("ONE", "TWO"))
    client.post("/v1/read", content=b"no picture at all, but long enough")
    shown = client.get("/metrics").text
    assert 'inkmill_requests_total{status="200"} 1.0' in shown
    assert 'inkmill_requests_total{status="415"} 1.0' in shown
    assert "inkmill_pages_total 1.0" in shown
    assert 'inkmill_stage_seconds_count{stage="detect"}' in shown


def test_a_fault_is_an_answer_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(BarReader):
        armed = False  # only when the server has warmed up

        def read_lines(self, images: np.ndarray, valid: np.ndarray) -> list[Any]:
            if self.armed and images.shape[2] > 100:
                raise RuntimeError(" ".join(("inner", "detail")))
            return super().read_lines(images, valid)

    service = PageService({"default": PageReader(BarDetector(), Broken())})
    with TestClient(make_app(service), LOCAL, raise_server_exceptions=False) as client:
        Broken.armed = True
        answer = client.post("/v1/read", content=png("LONG ENOUGH"))
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "inner detail" not in answer.text
        assert answer.headers["x-request-id"] == answer.json()["request_id"] in caplog.text
        assert "RuntimeError" in caplog.text
        assert "read_lines" in caplog.text
        assert "inner detail" not in caplog.text  # it may hold what was read
        assert client.post("/v1/read", content=png("AB")).status_code == 200


def test_one_page_of_a_document_is_read_where_that_is_asked_for(client: TestClient) -> None:
    tiff = cv2.imencodemulti(".tif", [page_of(name) for name in ("ONE", "TWO")])[1].tobytes()
    assert client.post("/v1/read?format=text&page=2", content=tiff).text == "TWO\n"
    several = client.post("/v1/read?format=page", content=tiff)
    assert (several.status_code, several.json()["code"]) == (422, "one_page")
    assert client.post("/v1/read?format=page&page=1", content=tiff).status_code == 200
    for number, code in (("3", "unreadable"), ("0", "no_such_page"), ("x", "no_such_page")):
        answer = client.post(f"/v1/read?page={number}", content=tiff)
        assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_page_is_given_as_a_picture(client: TestClient) -> None:
    pages = [page_of("FIRST"), page_of("SECOND", "PAGE")]
    tiff = cv2.imencodemulti(".tif", pages)[1].tobytes()
    answer = client.post("/v1/picture?page=2", content=tiff)
    assert answer.headers["content-type"] == "image/jpeg"
    shown = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
    assert shown.shape == pages[1].shape
    assert np.abs(shown.astype(int) - pages[1]).mean() < 3
    large = cv2.imencode(".png", np.zeros((10, 4800), np.uint8))[1].tobytes()
    small = client.post("/v1/picture", content=large).content
    assert cv2.imdecode(np.frombuffer(small, np.uint8), cv2.IMREAD_COLOR).shape == (5, 2400, 3)


def test_a_files_name_does_not_change_what_an_error_is(client: TestClient) -> None:
    for name in ("pixels.png", "not a cat.png", "../../etc/passwd"):
        answer = client.post("/v1/read", files=[("files", (name, png("A")[:-40]))])
        assert (answer.status_code, answer.json()["code"]) == (422, "unreadable")


def test_damaged_forms_are_problems_in_words(client: TestClient) -> None:
    kind = "multipart/form-data; boundary=x"
    field = b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\ntext\r\n--x--\r\n'
    for given, content in ((kind, field), (kind, b"--y"), ("Multipart/Form-Data", field), (kind, b"")):
        answer = client.post("/v1/read", content=content, headers={"content-type": given})
        assert answer.status_code == 400
        assert answer.json()["code"] in ("bad_form", "empty")


def test_a_page_of_another_site_may_not_have_work_done(client: TestClient) -> None:
    answer = client.post("/v1/read", content=png("A"), headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, answer.json()["code"]) == (403, "other_site")
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_a_body_that_does_not_come_gives_its_place_back(reader: PageReader) -> None:
    service = PageService({"default": reader}, Limits(upload_s=0.1))
    app = make_app(service)
    scope = {"type": "http", "method": "POST", "path": "/v1/read", "query_string": b"", "headers": [], "app": app}
    parts = iter([{"type": "http.request", "body": b"\x89", "more_body": True}] * 2)
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        async with service:
            await app(scope, receive, send)
            assert service.admitted == 0

    asyncio.run(ask())
    assert sent[0]["status"] == 408
    assert b"slow_upload" in sent[1]["body"]


def test_who_leaves_while_the_body_comes_is_no_fault(reader: PageReader, caplog: pytest.LogCaptureFixture) -> None:
    service = PageService({"default": reader})
    app = make_app(service)
    scope = {"type": "http", "method": "POST", "path": "/v1/read", "query_string": b"", "headers": [], "app": app}

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    async def ask() -> None:
        async with service:
            await app(scope, receive, send)
            assert service.admitted == 0

    asyncio.run(ask())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
def test_who_is_refused_while_sending_gets_the_answer(server: tuple[Any, str]) -> None:
    _, address = server
    for _ in range(5):
        answer = httpx2.post(f"{address}/v1/read", content=bytes(24 << 20), timeout=30)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
