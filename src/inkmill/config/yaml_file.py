"""Reading YAML as data: no tags, no duplicate keys, bounded size, and the line of every key.

PyYAML only parses here; the values are built below, from the node tree, so that a tag such as `!!python/object` has
nothing that could act on it and aliases cannot grow without bound. Scalars follow the YAML 1.2 core schema, where
`no` is a word, `2024-01-01` is text and `1e-3` is a number (in YAML 1.1 they are false, a date and text).
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from inkmill.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Where a value is: ("dataset", "train", 0, "path")."""

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML version would read as something else than text."""


class _Nodes(Reader, Scanner, Parser, Composer, BaseResolver):
    """YAML text to a tree of nodes, and no further."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INT.pattern, list("-+0123456789")),
    ("float", _FLOAT.pattern, list("-+0123456789.")),
):
    for _kind in (_Nodes, _Dumper):
        _kind.add_implicit_resolver(_TAG + _tag, re.compile(rf"(?:{_pattern})\Z"), _first)


def parse_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, int]]:
    """Return the data of a YAML text, and the line (from 1) of every key and list item.

    Args:
        text: one YAML document.
        name: what error messages call it, most often the file's path.

    Raises:
        ConfigError: not YAML, a duplicate key, a tag, or more than 100,000 values.
    """
    try:
        node = _Nodes(text).get_single_node()
        builder = _Builder(name)
        return (None if node is None else builder.build(node, ())), builder.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply to be a spec") from error


class _Builder:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[KeyPath, int] = {}
        self.values = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise ConfigError(f"{self.name}: more than {MAX_VALUES:,} values once its aliases are filled in")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, position)) for position, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise self._tag_refused(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.name}:{line}: a key must be a word, not a list or a mapping")
            key = str(key_node.value)
            if key in data:
                full, first = dotted((*path, key)), self.lines[(*path, key)]
                raise ConfigError(
                    f"{self.name}:{line}: the key '{full}' is given twice, first in line {first}; remove one"
                )
            self.lines[(*path, key)] = line
            data[key] = self.build(value_node, (*path, key))
        return data

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" if _INT.fullmatch(text):
                return self._integer(text, node)
            case "float" if _FLOAT.fullmatch(text):
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        raise self._tag_refused(node)

    def _integer(self, text: str, node: yaml.Node) -> int:
        if len(text) > 100:  # Python itself refuses thousands of digits, with a ValueError
            raise ConfigError(f"{self.name}:{node.start_mark.line + 1}: a number of {len(text)} digits")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def _tag_refused(self, node: yaml.Node) -> ConfigError:
        line = node.start_mark.line + 1
        tag = node.tag.replace(_TAG, "!!")
        return ConfigError(f"{self.name}:{line}: the tag {tag} is refused: a spec is plain data")


def dump_yaml(data: Any, flow: bool = False) -> str:
    """Return data as YAML that `parse_yaml` reads back unchanged, keys in their order; `flow` puts all on one line."""
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=2**31)
    return text.removesuffix("...\n")


def dotted(path: KeyPath) -> str:
    """Return a path as it is written: `dataset.train[0].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
