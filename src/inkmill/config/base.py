"""The base of every section of a spec: unknown keys are refused, values are checked when set."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MAX_BATCH_SIZE = 65_536
"""Images a batch: far above what any GPU trains with."""
MAX_WORKERS = 1_024
"""Processes of a loader: above eight for each core of any machine there is."""


class Section(BaseModel):
    """A section of a spec."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
