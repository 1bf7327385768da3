"""inkmill trains, shrinks and ships text readers. Its training never waits for data.

The public names load on first use, so `import inkmill` is quick and pulls in no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from inkmill.version import __version__

if TYPE_CHECKING:
    from inkmill.api import Reading, evaluate, load, read, train
    from inkmill.errors import InkmillError

__all__ = ["InkmillError", "Reading", "__version__", "evaluate", "load", "read", "train"]

_HOME = {
    "InkmillError": "inkmill.errors",
    "Reading": "inkmill.api",
    "evaluate": "inkmill.api",
    "load": "inkmill.api",
    "read": "inkmill.api",
    "train": "inkmill.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'inkmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
