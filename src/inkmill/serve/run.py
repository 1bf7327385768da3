"""Starting and stopping the server: models, token, address, signals."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from inkmill.errors import ConfigError, MissingExtraError
from inkmill.machine import cores
from inkmill.pages.reader import PageReader
from inkmill.serve.app import make_app
from inkmill.serve.service import Limits, PageService

try:
    import uvicorn
except ImportError:
    raise MissingExtraError("uvicorn", "serve", "inkmill serve") from None

TOKEN = "INKMILL_TOKEN"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_SHORTEST_TOKEN = 16


def run_server(
    host: str,
    port: int,
    files: dict[str, Path | None],
    more: Sequence[str],
    limits: Limits,
    *,
    threads: int | None = None,
    no_auth: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; what was let in is finished first.

    Args:
        host: address or name to listen on.
        port: 0 for any free one.
        files: detector and reader of the model called "default"; None: those of the package.
        more: further models, NAME=DETECTOR,READER.
        limits: see Limits.
        threads: of the networks; by default one a core.
        no_auth: whether a server that others can reach may go without a token.
        say: prints one line, once the server listens.

    Raises:
        ConfigError: a model's name, the token, or an address that cannot be had.
        InkmillError: no such model.
    """
    # 1. Who may come in.
    local = _is_local(host)
    token = os.environ.get(TOKEN) or None
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise ConfigError(f"the token in {TOKEN} has {len(token)} characters; expected at least {_SHORTEST_TOKEN}")
    if token is None and not local and not no_auth:
        raise ConfigError(
            f"--host {host} lets others reach this server: set {TOKEN} to a token that clients must send, or allow "
            "everybody with --no-auth"
        )
    hosts = [*_LOCAL, host] if local and token is None else ["*"]
    # 2. The models.
    readers = {"default": PageReader(files["detector"], files["reader"], threads=threads)}
    for entry in more:
        name, detector, reader = _model(entry)
        if name in readers:
            raise ConfigError(f"--model {entry}: there is a model {name!r} already; give each a name of its own")
        readers[name] = PageReader(detector, reader, threads=threads)
    # 3. Listen, and serve.
    serve(readers, host, port, limits, token=token, hosts=hosts, say=say)


def serve(
    readers: Mapping[str, PageReader],
    host: str,
    port: int,
    limits: Limits,
    *,
    token: str | None = None,
    hosts: Sequence[str] = _LOCAL,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve readers by their names until SIGTERM or Ctrl-C; arguments as for `run_server` and `make_app`."""
    # 1. The address, before anything is promised.
    listening = _listen(host, port)
    address = listening.getsockname()
    service = PageService(readers, limits, threads=max(2, cores()))
    app = make_app(service, token, hosts)
    # 2. Serve.
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    ready = f"http://{shown}:{address[1]} reads pages (models: {', '.join(readers)}); Ctrl-C ends it"
    settings: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": round(limits.total_s) + 5,
        "limit_concurrency": 4 * (limits.active + limits.waiting) + 64,
    }
    _Server(uvicorn.Config(app, **settings), service, lambda: say(ready)).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Uvicorn's server; on a signal it tells the service, so that new requests on open connections are refused."""

    def __init__(self, config: uvicorn.Config, service: PageService, listens: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._listens = service, listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so: who reads it may ask at once."""
        await super().startup(sockets)
        if self.started:
            self._listens()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish what was let in, then stop."""
        # Not uvicorn's own: it raises the signal once more in the end, and a stop that went well is no failure.
        self._service.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _model(entry: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"([A-Za-z0-9._-]+)=([^,]+),([^,]+)", entry)
    if found is None:
        raise ConfigError(f"--model {entry!r}: expected NAME=DETECTOR,READER, two model files")
    return found[1], found[2], found[3]


def _listen(host: str, port: int) -> socket.socket:
    listening: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise ConfigError(f"{host}:{port} cannot be listened on ({error.strerror or error})") from error
    return listening
