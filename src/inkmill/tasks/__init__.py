"""What is learned and read: one folder a task, the protocol that all of them follow (base.py), and this list.

Nothing is imported before a task is asked for, so naming one costs no time and no package.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inkmill.errors import ConfigError
from inkmill.registry import suggest

if TYPE_CHECKING:
    from inkmill.tasks.base import Task

__all__ = ["TASKS", "TaskEntry", "find_task"]


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """Where a task is found.

    Attributes:
        task: "module:Class" of its `Task`.
        section: "module:Class" of its own section of the spec, an `inkmill.config.base.Section` in which every key has
            a default; the section has the task's name. Its module imports nothing but `inkmill.config` and pydantic.
    """

    task: str
    section: str | None = None


TASKS = {
    "recognition": TaskEntry("inkmill.tasks.recognition.task:Recognition"),
    "classification": TaskEntry(
        "inkmill.tasks.classification.task:Classification", "inkmill.tasks.classification.spec:ClassificationSection"
    ),
    "multilabel": TaskEntry(
        "inkmill.tasks.classification.task:Multilabel", "inkmill.tasks.classification.spec:MultilabelSection"
    ),
    "detection": TaskEntry("inkmill.tasks.detection.task:Detection", "inkmill.tasks.detection.spec:DetectionSection"),
}
"""All tasks by name: one line each."""


def find_task(name: str) -> type[Task]:
    """Return the class of a task.

    Raises:
        ConfigError: no such task; the message suggests the closest.
    """
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}{suggest(name, TASKS)}; known: {', '.join(TASKS)}")
    task: type[Task] = load_object(TASKS[name].task)
    return task


def load_object(place: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
