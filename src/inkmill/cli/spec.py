"""`inkmill spec`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, split
from inkmill.errors import ConfigError


def spec(
    given: Annotated[list[str] | None, arguments("", "")] = None,
    spec: SpecFile = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/spec.md instead.")] = False,
) -> None:
    """Print the whole spec as YAML, each key with its meaning; checks a spec file too.

    `inkmill spec > mine.yaml` makes a file to start from; with -e its values stand in place of the defaults.
    """
    from inkmill.config.describe import as_markdown, as_yaml

    stray, overrides = split(given)
    if stray:
        raise ConfigError(f"spec takes no {stray[0]!r}; give a spec file as -e FILE and changes as KEY=VALUE")
    loaded = load(spec, overrides)
    sys.stdout.write(as_markdown() if markdown else as_yaml(loaded))
