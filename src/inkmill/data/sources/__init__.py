"""Sources: data sets as arrays of encoded images and targets, wherever they are stored."""

from __future__ import annotations

from inkmill.data.sources.base import Source
from inkmill.data.sources.combine import Concat, Mix, Subset, holdout
from inkmill.data.sources.crops import CropSource
from inkmill.data.sources.folder import FolderSource
from inkmill.data.sources.lmdb import LmdbSource
from inkmill.data.sources.open import fresh_name, open_source
from inkmill.data.sources.shards import ShardSource

__all__ = [
    "Concat",
    "CropSource",
    "FolderSource",
    "LmdbSource",
    "Mix",
    "ShardSource",
    "Source",
    "Subset",
    "fresh_name",
    "holdout",
    "open_source",
]
