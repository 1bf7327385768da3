"""One small registry: things built by name, and an error that names the closest one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from inkmill.errors import ConfigError

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest known name, or an empty string."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def load_attribute(place: str) -> Any:
    """Return what MODULE:ATTRIBUTE names; the module is imported now."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


def names_in(place: str) -> tuple[str, ...]:
    """Return the names of a registry that lies in a room above, so that the spec takes its words from there.

    Args:
        place: MODULE:ATTRIBUTE; the module is imported, so it must be quick and need no torch.
    """
    return tuple(load_attribute(place))


class Registry(Generic[T]):
    """Maps a name to a thing, most often a class or a factory.

    Args:
        kind: what the entries are, in a word or two; used in error messages ("backbone", "label format").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds its argument under `name`; a name taken twice is a programming error."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """Return the entry called `name`.

        Raises:
            ConfigError: no such entry; the message lists the known ones and suggests the closest.
        """
        try:
            return self._entries[name]
        except KeyError:
            hint = suggest(name, self._entries)
            raise ConfigError(f"unknown {self.kind} {name!r}{hint}; known: {', '.join(self.names())}") from None

    def names(self) -> list[str]:
        """Return the known names, sorted."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def counted(number: int, thing: str) -> str:
    """Return "1 shard", "2 shards": a count with its noun, whose plural takes an s."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
