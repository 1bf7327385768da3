"""The HTTP interface: POST /v1/read, and beside it models, health, metrics, and a page for people.

Every error is `application/problem+json` (RFC 9457) with a stable `code`. No URL is ever fetched, no name of a client
becomes a path, nothing of a document is logged.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from inkmill.errors import DataError, ImageFormatError, ImageSizeError, MissingExtraError, PageLimitError
from inkmill.pages.documents import Document
from inkmill.pages.outputs import FORMATS
from inkmill.pages.types import Page
from inkmill.registry import suggest
from inkmill.serve.manners import PROBLEM, Manners, problem
from inkmill.serve.metrics import Metrics
from inkmill.serve.service import Limits, PageService, RefusedError, Upload
from inkmill.version import __version__

try:
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import Message, Receive
except ImportError as error:
    raise MissingExtraError((error.name or "fastapi").partition(".")[0], "serve", "inkmill serve") from None

_UPLOAD_RATE = 32 * 1024
"""Bytes a second that every honest client reaches: a body that only trickles keeps no place."""
_STATIC = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}


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
    )
    _add_reading(app, service)
    _add_the_rest(app, service, metrics)
    _add_errors(app, service.limits.body)
    # The page needs no token: it asks for one itself.
    free = {"/health", "/ready", *(f"/{path}" for path in _STATIC)}
    app.add_middleware(Manners, token=token, hosts=tuple(hosts), open_paths=free, metrics=metrics)
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
    problem = {"content": {"application/problem+json": {"schema": PROBLEM}}}
    for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504):
        answers[status] = {"description": HTTPStatus(status).phrase, **problem}

    @app.post(
        "/v1/read",
        summary="Read documents",
        responses=answers,
        response_class=Response,
        openapi_extra={
            "requestBody": body,
            "parameters": [_parameter("format", list(FORMATS)), _parameter("model"), _PAGE],
        },
    )
    async def read(request: Request) -> Response:
        # 1. What is asked for, and whether there is a place, before any of the body.
        _check_length(request, service.limits.body)
        name, model, number = _chosen_format(request), request.query_params.get("model"), _page_number(request)
        service.check_model(model)
        form = FORMATS[name]
        async with service.admission():
            # 2. The body; 3. the work, while the client waits for it.
            uploads = await _uploads(request, service.limits)
            if len(uploads) > 1 and name not in ("json", "text"):
                raise RefusedError(
                    422, "one_file", f"format={name} takes one file a request; json and text take several"
                )

            async def all_of_it() -> bytes:
                if len(uploads) == 1:
                    return await service.read(uploads[0], model, form.write, number, form.each_page)
                pages = [page for upload in uploads for page in await service.read(upload, model, _keep, number)]
                return await asyncio.to_thread(form.write, pages, None)

            content = await _unless_gone(request, all_of_it())
        return Response(content, media_type=form.media_type)

    picture_answers = {**answers, 200: {"description": "A picture of the page.", "content": {"image/jpeg": {}}}}

    @app.post(
        "/v1/picture",
        summary="A page of a document as a picture, for those that show boxes over it",
        responses=picture_answers,
        response_class=Response,
        openapi_extra={"requestBody": body, "parameters": [_PAGE]},
    )
    async def picture(request: Request) -> Response:
        _check_length(request, service.limits.body)
        number = _page_number(request) or 1
        async with service.admission():
            uploads = await _uploads(request, service.limits)
            if len(uploads) > 1:
                raise RefusedError(422, "one_file", "a picture is of one file")
            content = await _unless_gone(request, service.picture(uploads[0], number))
        return Response(content, media_type="image/jpeg")


def _add_the_rest(app: FastAPI, service: PageService, metrics: Metrics) -> None:
    @app.get("/v1/models", summary="The models that `model=` chooses from, the default first, and what is too large")
    async def models() -> dict[str, Any]:
        limits = service.limits
        return {
            "models": service.models,
            "most": {"bytes": limits.body, "pixels": limits.pixels, "pages": limits.pages},
        }

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
        return problem(request, error.status, error.code, error.detail, headers)

    @app.exception_handler(DataError)
    async def unreadable(request: Request, error: DataError) -> Response:
        if isinstance(error, PageLimitError | ImageSizeError):
            return problem(request, 413, "too_large", str(error))
        if isinstance(error, ImageFormatError):
            return problem(request, 415, "unsupported", str(error))
        return problem(request, 422, "unreadable", str(error))

    @app.exception_handler(MissingExtraError)
    async def missing(request: Request, error: MissingExtraError) -> Response:
        return problem(request, 415, "unsupported", str(error))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return problem(request, 499, "gone", "the client has left")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 413:
            return problem(request, 413, "too_large", f"the request is larger than {body / 2**20:g} MiB")
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return problem(request, error.status_code, code, str(error.detail), dict(error.headers or {}))


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


def _page_number(request: Request) -> int | None:
    given = request.query_params.get("page")
    if given is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", given):
        raise RefusedError(422, "no_such_page", f"page={given[:20]}: expected a whole number from 1")
    return int(given)


def _check_length(request: Request, most: int) -> None:
    if int(request.headers.get("content-length", "0")) > most:
        raise HTTPException(413)


async def _uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the documents of a request."""
    timed = Request(request.scope, _limited(request.receive, limits))
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        found = await _form_files(timed)
    else:
        found = [Upload("document", await timed.body())]
    if not found or not all(upload.content for upload in found):
        raise RefusedError(400, "empty", "no document: send its bytes as the body, or as form fields called files")
    return found


def _limited(receive: Receive, limits: Limits) -> Receive:
    """Return the source of a body's parts, of which there may be so many bytes, in so much time."""
    # Not the framework's own limit: its answer is bare text.
    until, came = asyncio.get_running_loop().time() + limits.upload_s, 0

    async def next_part() -> Message:
        nonlocal came
        try:
            async with asyncio.timeout_at(until + came / _UPLOAD_RATE):
                message = await receive()
        except TimeoutError:
            raise RefusedError(408, "slow_upload", "the body comes too slowly") from None
        came += len(message.get("body", b""))
        if came > limits.body:
            raise HTTPException(413)
        return message

    return next_part


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
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise RefusedError(400, "bad_form", f"not a form of files: {error.detail}") from error


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
        for task in [task for task in (doing, leaving) if not task.done()]:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _keep(pages: Sequence[Page], document: Document) -> Sequence[Page]:
    return pages


# What goes out


def _parameter(name: str, values: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} | ({"enum": values, "default": "json"} if values else {})
    return {"name": name, "in": "query", "required": False, "schema": schema}


_PAGE = {
    "name": "page",
    "in": "query",
    "required": False,
    "description": "One page alone, from 1.",
    "schema": {"type": "integer", "minimum": 1},
}
