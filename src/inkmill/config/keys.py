"""What the schema knows about a key: its field, what may stand there in words, and the known key nearest to it.

Error messages, the commented YAML of `inkmill spec` and docs/spec.md all take their words from here.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from inkmill.config.base import Section
from inkmill.config.spec import Spec
from inkmill.config.yaml_file import KeyPath, dotted

_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def field_at(path: KeyPath) -> FieldInfo | None:
    """Return the schema's field at `path` (list positions are stepped over), or None."""
    section: type[Section] | None = Spec
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        if section is None or part not in section.model_fields:
            return None
        field = section.model_fields[part]
        section = section_of(field.annotation)
    return field


def section_of(annotation: Any) -> type[Section] | None:
    """Return the Section that an annotation is, lists or may be; None for values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for item in get_args(annotation) if (found := section_of(item))), None)


def all_keys(section: type[Section] = Spec, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of the schema, sections before what they hold; lists of sections are values."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from all_keys(field.annotation, f"{prefix}{name}.")


def expectation(field: FieldInfo) -> str:
    """Return what a field takes, in words: `whole number >= 1`, `one of CTC, Attn, Slots`, `text or null`."""
    words = _annotation(field.annotation)
    limits = _limits(field.metadata)
    return f"{words.removesuffix(' or null')}{limits}{' or null' if words.endswith(' or null') else ''}"


def _annotation(annotation: Any) -> str:
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _annotation(arguments[0])
    if kind is Literal:
        choices = [str(choice) for choice in arguments]
        return f"one of {', '.join(choices)}"
    if kind in (Union, types.UnionType):
        inner = " or ".join(_annotation(item) for item in arguments if item is not type(None))
        return f"{inner} or null" if type(None) in arguments else inner
    if kind is list:
        section = section_of(arguments[0])
        if section is not None:
            or_path = "paths or of " if "path" in section.model_fields else ""
            return f"list of {or_path}{{{', '.join(section.model_fields)}}}"
        return f"list of {_annotation(arguments[0]).replace('whole number', 'whole numbers')}"
    if section_of(annotation) is not None:
        return "section"
    return _WORDS.get(annotation, "mapping")


def _limits(metadata: list[Any]) -> str:
    signs = {annotated_types.Ge: ("ge", ">="), annotated_types.Gt: ("gt", ">"), annotated_types.Le: ("le", "<=")}
    signs[annotated_types.Lt] = ("lt", "<")
    limits = [
        f"{sign} {_number(getattr(item, name))}"
        for kind, (name, sign) in signs.items()
        for item in metadata
        if isinstance(item, kind)
    ]
    return f" {' and '.join(limits)}" if limits else ""


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) or abs(value) < 10_000 else f"{value:,}"


def nearest(path: KeyPath) -> str:
    """Return ` (did you mean 'x.y'?)` for the known key nearest to an unknown one, or the keys that its section knows.

    A sibling of similar spelling is nearest; then the same name in another section, as for `lr` outside `train.optim`.
    """
    name, parent = str(path[-1]), dotted(path[:-1])
    field = field_at(path[:-1])
    section = Spec if not parent else section_of(field.annotation) if field else None
    siblings = list(section.model_fields) if section else []
    found = _close(name, siblings, f"{parent}." if parent else "") or _elsewhere(name, list(all_keys()))
    if found:
        return f" (did you mean '{found}'?)"
    return (
        f"; known here: {', '.join(siblings)}" if 0 < len(siblings) <= 16 else "; `inkmill spec` lists the known keys"
    )


def _close(name: str, siblings: list[str], prefix: str) -> str:
    by_lower = {sibling.lower(): sibling for sibling in siblings}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return prefix + by_lower[close[0]] if close else ""


def _elsewhere(name: str, keys: list[str]) -> str:
    by_leaf: dict[str, str] = {}
    for key in keys:
        by_leaf.setdefault(key.rpartition(".")[2].lower(), key)
    close = get_close_matches(name.lower(), by_leaf, n=1, cutoff=0.8)
    return by_leaf[close[0]] if close else ""
