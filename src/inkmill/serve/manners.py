"""Around every request: who may come in, its id, headers that keep browsers safe, its line in the log, faults.

What a client sends is no part of a log: not its name, not its path, and of a fault the place alone, for an exception's
message may hold what was read.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from http import HTTPStatus

from inkmill.errors import MissingExtraError
from inkmill.serve.metrics import Metrics

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise MissingExtraError("fastapi", "serve", "inkmill serve") from None

LOG = logging.getLogger("inkmill.serve")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LINGER_S = 2.0
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PROBLEM = {
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


def problem(request: Request, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as RFC 9457 has it."""
    title = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
    content = {"title": title, "status": status, "code": code, "detail": detail, "request_id": _id_of(request)}
    return JSONResponse(content, status, headers, media_type="application/problem+json")


def _id_of(request: Request) -> str:
    return str(request.scope.get("inkmill.id", ""))


def log_fault(request: Request, error: Exception) -> Response:
    """Log where a fault happened, and return an answer that tells nothing of it."""
    place = "".join(traceback.format_tb(error.__traceback__))
    LOG.error("%s a fault: %s\n%s", _id_of(request), type(error).__name__, place)
    return problem(request, 500, "internal", "the server has a fault; its log has the request's id")


class Manners:
    """The middleware that does all that.

    Args:
        app: what it stands around.
        token: that clients must send; None: nobody needs one.
        hosts: names by which clients may call this server; "*" for any.
        open_paths: need no token.
        metrics: count answers.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, hosts: Collection[str], open_paths: Collection[str], metrics: Metrics
    ) -> None:
        self._app, self._hosts, self._open, self._metrics = app, hosts, open_paths, metrics
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        scope["inkmill.id"] = number = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        started, status, begun = time.perf_counter(), 500, False
        unread = scope["method"] == "POST" and b"expect" not in headers

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                begun = True
                status = message["status"]
                message["headers"] = [*message["headers"], *_SAFE, (b"x-request-id", number.encode())]
            elif status >= 400 and status not in (408, 499) and unread and not message.get("more_body"):
                # Closing while the client still sends would cost it the answer: it goes out first, then the body comes.
                await send({**message, "more_body": True})
                await _let_in(receiving)
                message = {"type": "http.response.body"}
            await send(message)

        request = Request(scope, receiving)
        try:
            if refused := self._refused(scope["path"], headers):
                await problem(request, *refused)(scope, receiving, sending)
            else:
                await self._app(scope, receiving, sending)
        except Exception as error:
            if begun:  # half an answer is out; the connection is cut
                raise
            await log_fault(request, error)(scope, receiving, sending)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.answered(scope["path"], status, seconds)
            LOG.info("%s %s %s %d %.3f s", number, scope["method"], _known(scope["path"]), status, seconds)

    def _refused(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = (host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host).lower()
        if "*" not in self._hosts and name not in self._hosts:
            return 421, "wrong_host", f"this server is not called {name!r}; start it with --host, or ask for localhost"
        if headers.get(b"sec-fetch-site") == b"cross-site" and path not in self._open:
            return 403, "other_site", "pages of other sites may not use this server"
        if self._token is not None and path not in self._open:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._token):
                return 401, "unauthorised", "send the server's token: Authorization: Bearer TOKEN"
        return None


_SAFE = [
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


async def _let_in(receive: Receive) -> None:
    """Drop the rest of a body, as far as it comes in a short time."""
    with suppress(Exception):  # too long, too slow, gone: the answer is out
        async with asyncio.timeout(_LINGER_S):
            while (await receive()).get("more_body"):
                pass


_KNOWN = {"/", "/health", "/ready", "/v1/read", "/v1/picture", "/v1/models", "/metrics", "/openapi.json"}


def _known(path: str) -> str:
    """Return a path for the log; what a client made up is not repeated there."""
    return path if path in _KNOWN else "(another path)"
