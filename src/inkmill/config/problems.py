"""From pydantic's report to one sentence: where it was written, the key, what was expected, what stands there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from inkmill.config.interpolate import origin
from inkmill.config.keys import expectation, field_at, nearest
from inkmill.config.yaml_file import KeyPath, dotted
from inkmill.crypt import SETTING
from inkmill.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def translate(
    error: ValidationError,
    data: Mapping[str, Any],
    origins: Mapping[KeyPath, str],
    to_be_given: Collection[KeyPath] = (),
) -> ConfigError:
    """Return the first problem of a report as a ConfigError of one sentence, with the count of the others.

    Args:
        error: pydantic's report.
        data: what was validated.
        origins: where each value was written.
        to_be_given: keys that stand as `??` in the file.
    """
    problems = error.errors(include_url=False)
    # Unknown keys first: a misspelt key is often the cause of what else is wrong.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    path: KeyPath = tuple(problems[0]["loc"])
    more = len(problems) - 1
    also = f" (and {more} more {'problem' if more == 1 else 'problems'})" if more else ""
    return ConfigError(f"{origin(origins, path)}{_sentence(problems[0], path, data, to_be_given)}{also}")


def _sentence(problem: ErrorDetails, path: KeyPath, data: Mapping[str, Any], to_be_given: Collection[KeyPath]) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{dotted(path)}'{nearest(path)}"
    if path in to_be_given:
        return f"{dotted(path)} stands as '??', which means that it must be given: write a value, or remove the line"
    if problem["type"] == "value_error":  # raised by a validator of ours, whose sentence is better than any made here
        said = str(problem["ctx"]["error"])
        return f"{dotted(path)}{'' if said.startswith('must') else ':'} {said}" if path else said
    while path and isinstance(path[-1], int):  # an item of a list: the field, and all that stands there
        path = path[:-1]
    field = field_at(path)
    wanted = expectation(field) if field else problem["msg"].lower()
    if problem["type"] == "missing":
        return f"{dotted(path)} is missing: expected {wanted}"
    shown = "what is given" if path[:1] == (SETTING,) else _shown(_value_at(data, path, problem["input"]))
    return f"{dotted(path)} must be {_article(wanted)}, not {shown}"


def _article(wanted: str) -> str:
    return f"a {wanted}" if wanted.startswith(("whole", "number", "list", "section", "mapping")) else wanted


def _value_at(data: Any, path: KeyPath, otherwise: Any) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return otherwise
    return data


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
