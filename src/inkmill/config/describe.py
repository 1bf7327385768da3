"""The whole spec in words, made from the schema: as commented YAML to start from, and as docs/spec.md.

`inkmill spec > mine.yaml` prints the first, `inkmill spec --markdown > docs/spec.md` the second.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from inkmill.config.base import Section
from inkmill.config.keys import expectation, section_of
from inkmill.config.spec import Spec
from inkmill.config.yaml_file import dump_yaml

_WIDTH = 110


def as_yaml(spec: Spec | None = None) -> str:
    """Return a spec (by default the defaults) as YAML, each key under a comment that says what it takes and means."""
    return "\n".join(_yaml_lines(spec or Spec(), "")) + "\n"


def as_markdown() -> str:
    """Return every key with what it takes, its default and its meaning, as the Markdown of docs/spec.md."""
    head = (
        "# The spec, key by key",
        "",
        "Made by `inkmill spec --markdown > docs/spec.md`; a test checks that it is up to date.",
        "Keys that are marked TAO are read so that the spec files of TAO OCRNet work unchanged.",
        "`inkmill spec` prints all of this as a commented YAML file to start from.",
    )
    return "\n".join([*head, *_tables(Spec, "", "Top level")]) + "\n"


def _yaml_lines(section: Section, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from ("", *_comment(field.description or "", indent), f"{indent}{name}:")
            yield from _yaml_lines(value, indent + "  ")
        else:
            yield from _comment(f"{expectation(field)}. {field.description}", indent)
            yield f"{indent}{name}: {_value(section.model_dump(include={name})[name])}"


def _comment(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False
    )


def _value(value: Any) -> str:
    return dump_yaml(value, flow=True).strip()


def _tables(section: type[Section], prefix: str, title: str) -> Iterator[str]:
    values = {name: field for name, field in section.model_fields.items() if not _is_section(field)}
    yield from ("", f"## {title}", "", (section.__doc__ or "").strip())
    yield from ("", "| key | takes | default | meaning |", "|---|---|---|---|")
    for name, field in values.items():
        cells = (f"`{prefix}{name}`", expectation(field), _default(field), " ".join((field.description or "").split()))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None and _is_section(field):
            yield from _tables(inner, f"{prefix}{name}.", f"`{prefix}{name}`")


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    return f"`{_value(field.get_default(call_default_factory=True))}`"
