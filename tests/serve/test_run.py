"""The server as a process: its address, its refusals before it starts, and how it stops."""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

pytest.importorskip("uvicorn")

from tests.serve.conftest import png

from inkmill.errors import ConfigError
from inkmill.serve.run import _is_local, _listen, _model, run_server
from inkmill.serve.service import Limits

NONE = {"detector": None, "reader": None}


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_what_reaches_beyond_this_machine(host: str, local: bool) -> None:
    assert _is_local(host) is local


def test_an_open_address_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INKMILL_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="set INKMILL_TOKEN to a token"):
        run_server("0.0.0.0", 0, NONE, [], Limits())
    monkeypatch.setenv("INKMILL_TOKEN", "short")
    with pytest.raises(ConfigError, match="has 5 characters; expected at least 16"):
        run_server("127.0.0.1", 0, NONE, [], Limits())


def test_further_models_have_a_name_and_two_files() -> None:
    assert _model("receipts=det.onnx,read.onnx") == ("receipts", "det.onnx", "read.onnx")
    with pytest.raises(ConfigError, match="expected NAME=DETECTOR,READER"):
        _model("receipts=det.onnx")


def test_a_port_that_is_taken_is_said_so() -> None:
    with _listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} cannot be listened on"):
            _listen("127.0.0.1", port).listen()


@pytest.mark.slow
def test_on_sigterm_what_was_let_in_is_finished(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    enough = threading.Semaphore(0)

    def ask(number: int) -> int:
        text, answered = f"CLIENT {number}", 0
        try:
            with httpx2.Client(base_url=address, timeout=30) as client:
                for _ in range(10_000):
                    answer = client.post("/v1/read?format=text", content=png(*[text] * 8))
                    enough.release()
                    if answer.status_code in (429, 503):
                        continue
                    assert (answer.status_code, answer.text) == (200, f"{text}\n" * 8)
                    answered += 1
        except httpx2.TransportError:  # it no longer listens, or closes the connection
            return answered
        raise AssertionError("never stopped")

    with ThreadPoolExecutor(12) as clients:
        asked = [clients.submit(ask, number) for number in range(12)]
        for _ in range(40):
            assert enough.acquire(timeout=30)
        process.send_signal(signal.SIGTERM)
        answered = sum(one.result(60) for one in asked)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in log
    # What was worked on for a client reached it.
    assert answered == log.count("/v1/read 200") >= 20
