"""The tasks that there are."""

from __future__ import annotations

from typing import Any

from elmo.errors import ElmoError
from elmo.tasks.coref import Coreference
from elmo.tasks.inference import Inference
from elmo.tasks.questions import Questions
from elmo.tasks.roles import SemanticRoles
from elmo.tasks.sentiment import Sentiment
from elmo.tasks.tagging import Entities, PartsOfSpeech
from elmo.tasks.task import Task

_ALL = (Coreference(), Entities(), Inference(), PartsOfSpeech(), Questions(), SemanticRoles(), Sentiment())
TASKS: dict[str, Task[Any, Any]] = {task.name: task for task in _ALL}


def task_named(name: str) -> Task[Any, Any]:
    """A task by its name."""
    if name not in TASKS:
        raise ElmoError(f"there is no task {name!r}: give one of {', '.join(sorted(TASKS))}")
    return TASKS[name]
