"""The command `inkmill`: the list of verbs, and the one place where errors become a sentence and an exit code.

Exit codes: 0 done; 1 done, and the answer is no (`check` found too much to lose, `infer` could not read an image);
2 an error that the user can fix; 3 a fault of inkmill, with its traceback; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from importlib import import_module
from types import FrameType
from typing import NoReturn

import typer

from inkmill.cli.options import visible
from inkmill.errors import InkmillError, MissingExtraError
from inkmill.files import explain
from inkmill.registry import suggest

ALIASES: dict[str, tuple[str, ...]] = {
    "convert": ("dataset_convert",),
    "synth": (),
    "check": (),
    "train": (),
    "evaluate": ("val", "eval"),
    "infer": ("inference", "predict"),
    "read": (),
    "serve": (),
    "prune": (),
    "quantize": (),
    "export": (),
    "engine": ("gen_trt_engine",),
    "diagnose": (),
    "bench": (),
    "spec": (),
}
"""The verbs in the order of their use, each with its TAO and everyday names. Each is one file of this package."""

_HELP = """inkmill trains, shrinks and ships text readers.

A spec is optional: [bold]inkmill train captchas/[/bold] works. Its keys are set as KEY=VALUE; [bold]inkmill spec[/bold]
lists them. After any verb, [bold]--help[/bold] says more and [bold]--debug[/bold] shows the traceback of an error.
"""
_PACKAGE_OF = {"cv2": "opencv-python-headless", "yaml": "PyYAML"}
# typer took click's errors in earlier versions and has its own in later ones; BadParameter is public in both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_MENDED_BY_THE_USER = (InkmillError, OSError, ModuleNotFoundError, _UsageError)


def build() -> typer.Typer:
    """Return the command with all its verbs."""
    app = typer.Typer(name="inkmill", help=_HELP, add_completion=True, rich_markup_mode="rich")
    app.callback()(_version)
    for name, aliases in ALIASES.items():
        verb = getattr(import_module(f"inkmill.cli.{name}"), name)
        app.command(name)(verb)
        for alias in aliases:
            app.command(alias, hidden=True)(verb)
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line (by default that of the process) and leave with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    _prepare_process()
    try:
        code = run([argument for argument in given if argument != "--debug"] or ["--help"], debug)
    except Exception as error:  # of its own code, so that no script takes a fault for an answer
        traceback.print_exc()
        code = 2 if debug and isinstance(error, _MENDED_BY_THE_USER) else 3
    try:
        sys.stdout.flush()
    except OSError:  # reported already; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(given: list[str], debug: bool = False) -> int:
    """Run a command line and return its exit code; with `debug` an error that the user can fix is raised as it is."""
    try:
        code = build()(given, standalone_mode=False, prog_name="inkmill") or 0
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        return _say("interrupted; what was finished is kept", 130)
    except BrokenPipeError:  # whoever read our output has left: `inkmill infer ... | head`
        return 1
    except _MENDED_BY_THE_USER as error:
        sentence = _sentence(error, given[0])
        if debug or sentence is None:
            raise
        return _say(sentence, 2)


def _sentence(error: Exception, verb: str) -> str | None:
    """Return what to say about an error that the user can fix, None for a bug."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in ("", "inkmill"):
            return None
        return str(MissingExtraError(_PACKAGE_OF.get(package, package), "train", f"inkmill {verb}"))
    if isinstance(error, _UsageError):
        known = [*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)]
        if verb in known or verb.startswith("-"):
            said = str(getattr(error, "message", error)).rstrip(".")
            return f"{said}; `inkmill{f' {verb}' if verb in known else ''} --help` shows what there is"
        return f"unknown verb {verb!r}{suggest(verb, known)}; the verbs are {', '.join(ALIASES)}"
    return explain(error) if isinstance(error, OSError) else str(error)


def _say(sentence: str, code: int) -> int:
    print(f"inkmill: {visible(sentence)}", file=sys.stderr)
    return code


def _prepare_process() -> None:
    # A scheduler that ends a job sends SIGTERM: leave through the `with` blocks, so that status.json says FAILURE.
    signal.signal(signal.SIGTERM, _stop)
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # what is wrong with a picture is said here, once
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows \u0111 for đ instead of ending the run with an encoding error.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _print_version(asked: bool) -> None:
    if asked:
        from inkmill import __version__

        print(__version__)
        raise typer.Exit


def _version(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    """Stand for the command itself, whose only option is --version."""


if __name__ == "__main__":
    main()
