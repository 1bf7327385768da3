"""`inkmill diagnose`."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inkmill.cli.options import SpecFile, arguments, load, make_console, split

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec
    from inkmill.diagnose.run import Diagnosis


def diagnose(
    given: Annotated[list[str] | None, arguments("PATH | ", "Training sets, in any format `check` knows.")] = None,
    spec: SpecFile = None,
    apply: Annotated[
        str | None, typer.Option("--apply", metavar="FILE", help="Write the spec with the better settings there.")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write what was found as JSON.")
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Also write it as one HTML page with charts.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Budget of the whole diagnosis; what it leaves no time for is named.")
    ] = 105.0,
) -> None:
    """Find out why training is slow: the limit, the one change to make, and the proof that it helps.

    Measures on this machine, this data and this model, for two minutes at most; nothing is trained or changed. What it
    finds best is also what dataset.loader=auto takes from then on.
    """
    began = monotonic()  # loading torch takes a tenth of the time
    from inkmill.diagnose.harness import open_whole
    from inkmill.diagnose.report import show, write_page
    from inkmill.diagnose.run import diagnose as run
    from inkmill.files import write_json_atomic

    paths, overrides = split(given)
    loaded = load(spec, overrides, dataset__train=paths)
    console = make_console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    whole = open_whole(loaded, say)
    found = run(loaded, say, source=whole, seconds=seconds, began=began)
    show(console, found)
    if json is not None:
        write_json_atomic(json, found.to_json())
    if html is not None:
        write_page(html, found)
    if apply is not None:
        _apply(loaded, found, apply, console)
    _remember(loaded, found, whole, console)


def _apply(spec: Spec, found: Diagnosis, path: str, console: Console) -> None:
    """Write the spec as it was given with the keys of the plan changed; comments are lost."""
    from inkmill.config.yaml_file import dump_yaml
    from inkmill.files import write_text_atomic

    data: dict[str, Any] = spec.model_dump(exclude_unset=True)
    for key, value in found.overrides.items():
        section, name = key.split(".")
        data.setdefault(section, {})[name] = value
    write_text_atomic(path, dump_yaml(data))
    changes = ", ".join(found.overrides) or "nothing, for nothing better was found"
    console.print(f"{path}: the spec with the plan; changed: {changes}", markup=False, highlight=False, soft_wrap=True)


def _remember(spec: Spec, found: Diagnosis, whole: Any, console: Console) -> None:
    """Save the plan for `loader=auto`: the best settings that leave the step as the spec has it."""
    from inkmill.perf.plan import remember

    path = remember(spec, whole, found.device, found.auto.best.settings, found.auto.why)
    console.print(f"dataset.loader=auto takes this plan from now on ({path})", markup=False, highlight=False)
