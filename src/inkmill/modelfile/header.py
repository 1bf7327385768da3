"""What a model file says about itself: enough to read with, and where it came from."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, ValidationError, field_validator

from inkmill.config.base import Section
from inkmill.config.model import ModelSpec
from inkmill.errors import InkmillError, ModelFileError
from inkmill.tasks import TASKS, find_task
from inkmill.tasks.base import Task

FORMAT = "inkmill-model-1"
MAX_HEADER = 16 << 20
"""Characters of a header; one with 20,000 characters has 0.2 MiB."""

_PROVENANCE = {"made": list, "parameters": int} | dict.fromkeys(
    ("scores", "data", "licence", "settings", "speeds"), dict
)


class ModelHeader(Section):
    """The header of every model file: task, network and input, what the task needs to decode, provenance."""

    format: str = FORMAT
    """Version of this header."""
    task: str
    """Name of the task, as in `inkmill.tasks.TASKS`."""
    model: ModelSpec
    """Network and input."""
    task_header: dict[str, Any] = Field(default_factory=dict)
    """The task's own part (see `Task.header`): for recognition its characters."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Version of inkmill, training sets, best scores; for people, nothing depends on it."""

    @field_validator("provenance")
    @classmethod
    def _of_known_kinds(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, kind in _PROVENANCE.items():
            if value.get(name) is not None and not isinstance(value[name], kind):
                raise ValueError(f"{name} is no {kind.__name__}")
        return value

    @classmethod
    def of(cls, task: Task, provenance: dict[str, Any] | None = None) -> ModelHeader:
        """Return the header of a model for a settled task."""
        return cls(task=task.name, model=task.model, task_header=task.header(), provenance=provenance or {})

    def open_task(self) -> Task:
        """Return the task that this header describes.

        Raises:
            ConfigError: no such task.
            ValueError, InkmillError: the task's part is damaged.
        """
        return find_task(self.task).from_header(self.model, self.task_header)

    @property
    def label_pattern(self) -> str:
        """By which pattern training took labels from names of files (dataset.label_pattern); empty where it did not."""
        pattern = (self.provenance.get("settings") or {}).get("label_pattern")
        return pattern if isinstance(pattern, str) else ""

    def history(self) -> list[dict[str, Any]]:
        """Return the steps in which the file was made, oldest first (see `inkmill.modelfile.model_card.step`)."""
        made = self.provenance.get("made")
        return [entry for entry in made if isinstance(entry, dict)] if isinstance(made, list) else []

    def to_json(self) -> str:
        """Return the header as one line of JSON."""
        text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
        # Names of files may hold what UTF-8 cannot carry: it is spelled out (\\udce9), as JSON understands.
        return text.encode("utf-8", "backslashreplace").decode()

    @classmethod
    def from_json(cls, text: str, where: str) -> ModelHeader:
        """Parse a header.

        Args:
            text: what `to_json` wrote.
            where: the file it came from, for the error.

        Raises:
            ModelFileError: not a header, or one of a newer inkmill.
        """
        try:
            if len(text) > MAX_HEADER:
                raise ModelFileError(f"{where}: its header is not a model's header (it has {len(text):,} characters)")
            values = json.loads(text)
            if values.get("format") != FORMAT:
                raise ModelFileError(
                    f"{where}: written in format {values.get('format')!r}, this inkmill reads {FORMAT!r}"
                )
            header = cls.model_validate(values)
            if header.task not in TASKS:
                known = ", ".join(TASKS)
                raise ModelFileError(f"{where}: its task is {header.task!r}, and this inkmill knows only {known}")
            header.open_task()
            return header
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"]))
            raise ModelFileError(
                f"{where}: its header is not a model's header ({key}: {problem['msg']}); "
                "it is damaged, or written by another version of inkmill"
            ) from error
        except ModelFileError:
            raise
        except (ValueError, TypeError, AttributeError, RecursionError, InkmillError) as error:
            raise ModelFileError(f"{where}: its header is not a model's header ({error})") from error
