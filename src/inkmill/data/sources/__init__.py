"""Sources: data sets as arrays of encoded images and targets, wherever they are stored."""

from __future__ import annotations

from inkmill.data.sources.combine import Concat, Mix, Subset, files_of, notes_of, release
from inkmill.data.sources.folder import FolderSource
from inkmill.data.sources.holdout import holdout
from inkmill.data.sources.lmdb import LmdbSource
from inkmill.data.sources.open import open_source
from inkmill.data.sources.shards import ShardSource

__all__ = [
    "Concat",
    "FolderSource",
    "LmdbSource",
    "Mix",
    "ShardSource",
    "Subset",
    "files_of",
    "holdout",
    "notes_of",
    "open_source",
    "release",
]
