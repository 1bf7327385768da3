"""The model card beside a model file: what it reads, what it was made from and how good it is, as JSON and as a page.

After Mitchell et al. 2019 ("Model Cards for Model Reporting"), as far as a program can know it. Everything comes from
the file's header; what nobody gave or measured is called unknown there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inkmill.files import write_json_atomic, write_text_atomic
from inkmill.modelfile.header import ModelHeader
from inkmill.tasks.base import Task
from inkmill.version import __version__

UNKNOWN = "unknown"


def step(verb: str, **facts: Any) -> dict[str, Any]:
    """Return an entry of `provenance["made"]`: which verb, when, by which version, and what it says of itself."""
    return {"verb": verb, "date": datetime.now(UTC).isoformat(timespec="seconds"), "inkmill": __version__, **facts}


def with_speeds(header: ModelHeader, runs_on: str, speeds: Mapping[str, float]) -> ModelHeader:
    """Return the header with images a second by what was read, as `batch_1`."""
    told = {f"images/s, {what.replace('_', ' ')}, {runs_on}": round(speed, 1) for what, speed in speeds.items()}
    return header.model_copy(update={"provenance": {**header.provenance, "speeds": told}})


def write_model_card(path: Path, header: ModelHeader, parameters: int | None = None) -> None:
    """Write `NAME.card.json` and `NAME.card.md` beside the model file NAME, atomically.

    Args:
        path: the model file, which is there already.
        header: its header. Of `provenance` are shown: made (see `step`), scores, data, licence, settings and speeds
            (images a second by name).
        parameters: trained numbers; by default those that the header names.

    Raises:
        OutputError: the folder cannot be written.
    """
    facts = model_card(path, header, parameters)
    write_json_atomic(path.with_name(f"{path.name}.card.json"), facts)
    write_text_atomic(path.with_name(f"{path.name}.card.md"), _page(facts, header.open_task()))


def model_card(path: Path, header: ModelHeader, parameters: int | None = None) -> dict[str, Any]:
    """Return what NAME.card.json holds."""
    known = header.provenance
    licence = known.get("licence") or {}
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "parameters": parameters if parameters is not None else known.get("parameters"),
        "made": header.history(),
        "model": header.model.model_dump(mode="json", exclude_defaults=True),
        "input": {
            "height": header.model.input_height,
            "width": header.model.input_width,
            "channels": header.model.input_channel,
            "resize": header.model.input_resize,
        },
        "task": header.task,
        **header.task_header,
        "metrics": _plain(known.get("scores") or {}),
        "data": known.get("data") or {},
        "speeds": known.get("speeds") or {},
        "licence": {name: licence.get(name) or UNKNOWN for name in ("weights", "data")},
        "settings": known.get("settings") or {},
    }


def _plain(scores: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    if isinstance(scores, dict):
        return {name: _plain(value) for name, value in scores.items()}
    return None if isinstance(scores, float) and not abs(scores) < float("inf") else scores


def _page(facts: dict[str, Any], task: Task) -> str:
    return "\n".join([f"# {facts['file']}", "", *_lines(facts, task)]) + "\n"


def _lines(facts: dict[str, Any], task: Task) -> Iterator[str]:
    model, size = facts["model"], facts["input"]
    parameters = f"{facts['parameters']:,}" if facts["parameters"] is not None else UNKNOWN
    fixed = "up to " if size["resize"] in ("height", "aspect") else ""
    yield f"A {task.noun} made with inkmill."
    yield ""
    yield from _table(
        {
            "architecture": " ".join(f"{name}={value}" for name, value in model.items()) or "the default one",
            "input": f"{size['channels']} x {size['height']} x {fixed}{size['width']} ({size['resize']})",
            "parameters": parameters,
            "file": f"{facts['bytes']:,} bytes",
            **task.card_rows(),
            "licence of the weights": facts["licence"]["weights"],
            "licence of the data": facts["licence"]["data"],
        }
    )
    for heading, lines in task.card_sections().items():
        yield from ("", f"## {heading}", "", *lines)
    for heading, values in (("Scores", facts["metrics"]), ("Speeds", facts["speeds"])):
        yield from ("", f"## {heading}", "", *(_table(values) if values else (f"{UNKNOWN.capitalize()}.",)))
    yield from ("", "## Data", "", *(_table(facts["data"]) if facts["data"] else (f"{UNKNOWN.capitalize()}.",)))
    yield from ("", "## How it was made", "")
    for entry in facts["made"]:
        rest = ", ".join(f"{name} {value}" for name, value in entry.items() if name not in ("verb", "date", "inkmill"))
        yield f"- {entry.get('date')}: {entry.get('verb')} of inkmill {entry.get('inkmill')}{rest and ', ' + rest}"
    if facts["settings"]:
        yield from ("", *_table(facts["settings"]))


def _table(values: dict[str, Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, value in values.items():
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        yield "| {} | {} |".format(*(text.replace("|", "\\|").replace("\n", " ") for text in (str(name), shown)))
