"""Every task by its name."""

from __future__ import annotations

from difflib import get_close_matches

from firth.errors import Misuse
from firth.tasks.choice import Choose
from firth.tasks.classify import Classify, Pair, Regress
from firth.tasks.lm import Continue
from firth.tasks.seq2seq import Rewrite
from firth.tasks.span import Ask
from firth.tasks.tag import Tag
from firth.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (Classify(), Pair(), Regress(), Choose(), Tag(), Ask(), Rewrite(), Continue())
}


def task_named(name: str) -> Task:
    """A task by its name.

    >>> task_named("classify").metric
    'accuracy'
    """
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(TASKS)}."
        raise Misuse(f"There is no task {name!r}; {hint}")
    return TASKS[name]
