"""Filling in `${key.path}`: a value that refers to another key of the spec, as TAO's files do with `${results_dir}`.

Plain references only. OmegaConf's resolvers (`${oc.env:HOME}`) read the machine or run code, and a spec that someone
sends you should do neither. References that double (a: ${b}${b}, b: ${c}${c} ...) could fill the memory, so what they
expand to is bounded. A passphrase stands for itself, and is copied nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inkmill.config.yaml_file import KeyPath, dotted
from inkmill.crypt import SETTING
from inkmill.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_MAX_SIZE = 1 << 20
_MAX_CHAIN = 32


def interpolate(data: dict[str, Any], defaults: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> dict[str, Any]:
    """Return `data` with every `${key.path}` replaced by what it refers to.

    A string that is one reference takes the value with its type; inside a longer string the value must be text or a
    number.

    Args:
        data: a spec as nested dicts and lists.
        defaults: the schema's defaults, for references to keys that `data` does not set.
        origins: where each value was written, for error messages.

    Raises:
        ConfigError: a reference to an unknown key, to itself, or anything but a plain reference between `${` and `}`.
    """
    filler = _Filler(data, defaults, origins)
    return {key: value if key == SETTING else filler.fill(value, (key,), ()) for key, value in data.items()}


class _Filler:
    def __init__(self, data: Mapping[str, Any], defaults: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> None:
        self.data, self.defaults, self.origins = data, defaults, origins
        self.size = 0

    def fill(self, value: Any, path: KeyPath, chain: tuple[str, ...]) -> Any:
        """Return `value` filled in; `chain` are the references that led here."""
        self.size += 1 + (len(value) if isinstance(value, str) else 0)
        if self.size > _MAX_SIZE:
            raise self._error(path, "the references expand to more than a million characters")
        if isinstance(value, dict):
            return {key: self.fill(item, (*path, key), chain) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item, (*path, position), chain) for position, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self._fill_text(value, path, chain)
        return value

    def _fill_text(self, text: str, path: KeyPath, chain: tuple[str, ...]) -> Any:
        if "${" in _REFERENCE.sub("", text):
            known = "a spec is plain data, and only a reference to a key such as ${results_dir} is filled in"
            raise self._error(path, f"{text!r} is refused: {known}")
        whole = _REFERENCE.fullmatch(text)
        if whole:
            return self._look_up(whole[1], path, chain)
        return _REFERENCE.sub(lambda match: self._look_up_text(match[1], path, chain), text)

    def _look_up_text(self, name: str, path: KeyPath, chain: tuple[str, ...]) -> str:
        value = self._look_up(name, path, chain)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            kind = "not given" if value is None else "neither text nor a number"
            raise self._error(path, f"it refers to '{name}', which is {kind}")
        return str(value)

    def _look_up(self, name: str, path: KeyPath, chain: tuple[str, ...]) -> Any:
        if name in chain:
            raise self._error(path, f"the references go round in a circle: {' -> '.join((*chain, name))}")
        if len(chain) == _MAX_CHAIN:
            raise self._error(path, f"it refers to a key by way of more than {_MAX_CHAIN} others")
        if name == SETTING:
            raise self._error(path, f"it refers to '{name}', which is not copied, for it may be a passphrase")
        for tree in (self.data, self.defaults):
            found, value = _descend(tree, name)
            if found:
                return self.fill(value, path, (*chain, name))
        raise self._error(path, f"it refers to '{name}', and there is no such key")

    def _error(self, path: KeyPath, message: str) -> ConfigError:
        return ConfigError(f"{origin(self.origins, path)}{dotted(path)}: {message}")


def _descend(tree: Any, name: str) -> tuple[bool, Any]:
    for part in name.split("."):
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return False, None
    return True, tree


def origin(origins: Mapping[KeyPath, str], path: KeyPath) -> str:
    """Return `file:line: ` for a path or its nearest known parent; empty for an override, whose key says it all."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            place = origins[path[:length]]
            return f"{place}: " if place else ""
    return ""
