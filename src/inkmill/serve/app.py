"""The HTTP interface: POST /v1/read, and beside it models, health, metrics, and a page for people.

Every error is `application/problem+json` (RFC 9457) with a stable `code`. No URL is ever fetched, no name of a client
becomes a path, nothing of a document is logged.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from inkmill.errors import DataError, ImageError, InkmillError, MissingExtraError, PageLimitError
from inkmill.pages.documents import Document
from inkmill.pages.outputs import FORMATS
from inkmill.pages.types import Page
from inkmill.registry import suggest
from inkmill.serve.metrics import Metrics
from inkmill.serve.service import PageService, RefusedError, Upload
from inkmill.version import __version__

try:
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.formparsers import MultiPartException
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingExtraError((error.name or "fastapi").partition(".")[0], "serve", "inkmill serve") from None

LOG = logging.getLogger("inkmill.serve")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OPEN = {"/", "/health", "/ready"}
"""Paths that need no token: the page asks for one itself."""
_STATUS = {"unsupported": 415, "too_large": 413, "unreadable": 422}
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STATIC = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}

Progress = Callable[[], Awaitable[Any]]


def make_app(
    service: PageService, token: str | None = None, hosts: Sequence[str] = ("*",), metrics: Metrics | None = None
) -> FastAPI:
    """Return the application.

    Args:
        service: reads; it is started and ended with the application.
        token: clients must send it as `Authorization: Bearer`; None: nobody needs one.
        hosts: names by which clients may call this server, "*" for any: without a token a page of another site must
            not come in by a name that it made point here.
        metrics: counts; by default nothing is counted that /metrics does not show.
    """
    metrics = metrics or Metrics(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    # Swagger's page comes from another origin, so there is none; /openapi.json describes the interface.
    app = FastAPI(
        title="inkmill",
        version=__version__,
        summary="Pages to text",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        max_body_size=service.limits.body,
    )
    _add_reading(app, service)
    _add_the_rest(app, service, metrics)
    _add_errors(app, service.limits.body)
    app.add_middleware(_Manners, token=token, hosts=tuple(hosts), metrics=metrics)
    return app


def _add_reading(app: FastAPI, service: PageService) -> None:
    binary = {"type": "string", "contentMediaType": "application/octet-stream"}
    many = {"type": "object", "properties": {"files": {"type": "array", "items": binary}}, "required": ["files"]}
    body = {
        "required": True,
        "description": "A picture, a TIFF of several pages or a PDF; or several as form fields called `files`.",
        "content": {"multipart/form-data": {"schema": many}, "application/octet-stream": {"schema": binary}},
    }
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "What stands on the pages.",
            "content": {form.media_type.partition(";")[0]: {} for form in FORMATS.values()},
        }
    }
    problem = {"content": {"application/problem+json": {"schema": _PROBLEM}}}
    for status in (400, 401, 404, 413, 415, 422, 429, 503, 504):
        answers[status] = {"description": HTTPStatus(status).phrase, **problem}

    @app.post(
        "/v1/read",
        summary="Read documents",
        responses=answers,
        response_class=Response,
        openapi_extra={"requestBody": body, "parameters": [_parameter("format", list(FORMATS)), _parameter("model")]},
    )
    async def read(request: Request) -> Response:
        if int(request.headers.get("content-length", "0")) > service.limits.body:
            raise HTTPException(413)
        name, model = _chosen_format(request), request.query_params.get("model")
        form = FORMATS[name]
        async with service.admission():
            uploads = await _uploads(request, service)
            if len(uploads) > 1 and name not in ("json", "text"):
                raise RefusedError(
                    422, "one_file", f"format={name} takes one file a request; json and text take several"
                )

            async def all_of_it() -> bytes:
                if len(uploads) == 1:
                    return await service.read(uploads[0], model, form.write)
                pages = [page for upload in uploads for page in await service.read(upload, model, _keep)]
                return await asyncio.to_thread(form.write, pages, None)

            content = await _unless_gone(request, all_of_it())
        return Response(content, media_type=form.media_type)


def _add_the_rest(app: FastAPI, service: PageService, metrics: Metrics) -> None:
    @app.get("/v1/models", summary="The models that `model=` chooses from, the default first")
    async def models() -> dict[str, list[str]]:
        return {"models": service.models}

    @app.get("/health", summary="Whether the server runs")
    async def health() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @app.get("/ready", summary="Whether it takes requests", responses={503: {"description": "It does not"}})
    async def ready() -> JSONResponse:
        limits = service.limits
        free = service.ready and not service.draining and service.admitted < limits.active + limits.waiting
        return JSONResponse({"status": "ready" if free else "not ready"}, 200 if free else 503)

    @app.get("/metrics", summary="Counters, in the text format of Prometheus", response_class=Response)
    async def counters() -> Response:
        return Response(metrics.render(), media_type=metrics.media_type)

    for path, (file, media_type) in _STATIC.items():
        content = (files("inkmill.serve") / "static" / file).read_bytes()

        def static(content: bytes = content, media_type: str = media_type) -> Response:
            return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

        app.add_api_route(f"/{path}", static, include_in_schema=False)


def _add_errors(app: FastAPI, body: int) -> None:
    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        if error.code == "draining":
            headers["Connection"] = "close"
        return _problem(request, error.status, error.code, error.detail, headers)

    @app.exception_handler(InkmillError)
    async def unreadable(request: Request, error: InkmillError) -> Response:
        code = "unreadable"
        if isinstance(error, PageLimitError) or "pixels" in str(error):
            code = "too_large"
        elif isinstance(error, ImageError) and "not a" in str(error):
            code = "unsupported"
        if not isinstance(error, DataError | MissingExtraError):
            LOG.error("%s", error, extra={"request": _id_of(request)})
            return _problem(request, 500, "internal", "the server has a fault; its log has the request's id")
        return _problem(request, _STATUS[code], code, str(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413:
            return _problem(request, 413, "too_large", f"the request is larger than {body / 2**20:g} MiB")
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return _problem(request, error.status_code, code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        LOG.error("a fault", exc_info=error, extra={"request": _id_of(request)})
        return _problem(request, 500, "internal", "the server has a fault; its log has the request's id")


# What comes in


def _chosen_format(request: Request) -> str:
    name = request.query_params.get("format")
    if name is None:
        accepted = request.headers.get("accept", "")
        kinds = {form.media_type.partition(";")[0]: key for key, form in FORMATS.items() if key != "text"}
        name = next((key for kind, key in kinds.items() if kind in accepted), "json")
    if name not in FORMATS:
        hint = suggest(name, list(FORMATS))
        raise RefusedError(422, "no_such_format", f"no format {name!r}{hint}; the formats are {', '.join(FORMATS)}")
    return name


async def _uploads(request: Request, service: PageService) -> list[Upload]:
    """Return the documents of a request; large ones lie on the disk until their last byte has come."""
    try:
        async with asyncio.timeout(service.limits.total_s):
            if request.headers.get("content-type", "").startswith("multipart/form-data"):
                found = await _form_files(request)
            else:
                found = [Upload("document", await request.body())]
    except TimeoutError:
        raise RefusedError(408, "slow_upload", f"the body did not come within {service.limits.total_s:g} s") from None
    if not found or not all(upload.content for upload in found):
        raise RefusedError(400, "empty", "no document: send its bytes as the body, or as form fields called files")
    return found


async def _form_files(request: Request) -> list[Upload]:
    try:
        async with request.form(max_files=100, max_fields=0) as form:
            fields = form.getlist("files")
            if len(fields) != len(form.multi_items()) or not all(isinstance(field, UploadFile) for field in fields):
                raise RefusedError(400, "unknown_field", "the form's fields must all be files, called files")
            return [
                Upload(field.filename or "document", await field.read())
                for field in fields
                if isinstance(field, UploadFile)
            ]
    except MultiPartException as error:
        raise RefusedError(400, "bad_form", f"not a multipart form: {error.message}") from error


async def _unless_gone(request: Request, work: Any) -> bytes:
    """Return what the work gives; where the client leaves, the work ends too."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise RefusedError(499, "gone", "the client has left")
        content: bytes = doing.result()
        return content
    finally:
        for task in (doing, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _keep(pages: Sequence[Page], document: Document) -> Sequence[Page]:
    return pages


# What goes out

_PROBLEM = {
    "type": "object",
    "required": ["title", "status", "code", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "for programs; it does not change"},
        "detail": {"type": "string", "description": "one sentence for people"},
        "request_id": {"type": "string"},
    },
}


def _problem(request: Request, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    title = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
    content = {"title": title, "status": status, "code": code, "detail": detail, "request_id": _id_of(request)}
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def _parameter(name: str, values: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} | ({"enum": values, "default": "json"} if values else {})
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _id_of(request: Request) -> str:
    return str(request.scope.get("inkmill.id", ""))


class _Manners:
    """Around every request: its id, who may come in, headers that keep browsers safe, and a line in the log."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: tuple[str, ...], metrics: Metrics) -> None:
        self._app, self._hosts, self._metrics = app, hosts, metrics
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["inkmill.id"] = number = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        started, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_SAFE, (b"x-request-id", number.encode())]
            await send(message)

        request = Request(scope, receive)
        try:
            if refused := self._refused(scope["path"], headers):
                await _problem(request, *refused)(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.answered(scope["path"], status, seconds)
            LOG.info("%s %s %s %d %.3f s", number, scope["method"], _known(scope["path"]), status, seconds)

    def _refused(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if "*" not in self._hosts and name not in self._hosts:
            return 421, "wrong_host", f"this server is not called {name!r}; start it with --host, or ask for localhost"
        if self._token is not None and path not in _OPEN and path.lstrip("/") not in _STATIC:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._token):
                return 401, "unauthorised", "send the server's token: Authorization: Bearer TOKEN"
        return None


_SAFE = [
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


def _known(path: str) -> str:
    """Return a path for the log; what a client made up is not repeated there."""
    return path if path in {*_OPEN, "/v1/read", "/v1/models", "/metrics", "/openapi.json"} else "(another path)"
