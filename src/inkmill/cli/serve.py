"""`inkmill serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; one for others needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    detector: Annotated[
        Path | None, typer.Option(help="ONNX file that finds text; default: inkmill's own.", show_default=False)
    ] = None,
    reader: Annotated[
        Path | None, typer.Option(help="ONNX file that reads lines; default: inkmill's own.", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DETECTOR,READER", help="A further model, chosen by ?model=NAME.", show_default=False
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the networks; default: one a core.")] = None,
    max_body_mib: Annotated[int, typer.Option(min=1, max=4096, help="Largest request.")] = 20,
    max_pages: Annotated[int, typer.Option(min=1, help="Of a document.")] = 50,
    max_megapixels: Annotated[float, typer.Option(min=1, max=250, help="Of a page.")] = 40,
    waiting: Annotated[int, typer.Option(min=0, max=10_000, help="Requests that may wait for their turn.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Longest that a request may take.")] = 60,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let anyone who reaches this address use it.")] = False,
) -> None:
    """Read pages for others over HTTP, and show a page to do it in a browser.

    POST /v1/read takes a picture or a PDF and answers with JSON, or with ?format= one of the formats of `inkmill read`.
    The environment variable INKMILL_TOKEN holds the token that clients must send.
    """
    from inkmill.serve.run import run_server
    from inkmill.serve.service import Limits

    limits = Limits(
        body=max_body_mib << 20,
        pixels=round(max_megapixels * 1_000_000),
        pages=max_pages,
        waiting=waiting,
        total_s=seconds,
    )
    run_server(
        host,
        port,
        {"detector": detector, "reader": reader},
        model or [],
        limits,
        threads=threads,
        no_auth=no_auth,
        say=lambda line: typer.echo(f"inkmill: {line}", err=True),
    )
