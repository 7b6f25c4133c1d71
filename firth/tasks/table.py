"""Every task by its name."""

from __future__ import annotations

from firth.errors import Misuse, meant
from firth.tasks.choice import Choose
from firth.tasks.classify import Classify, Pair, Regress
from firth.tasks.last_word import LAST_WORD
from firth.tasks.lm import Continue
from firth.tasks.minimal_pairs import MINIMAL_PAIRS
from firth.tasks.perplexity import LM
from firth.tasks.scoring import Measure
from firth.tasks.seq2seq import Rewrite
from firth.tasks.span import Ask
from firth.tasks.tag import Tag
from firth.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (Classify(), Pair(), Regress(), Choose(), Tag(), Ask(), Rewrite(), Continue())
}
# What is only measured; `lm` is taught as well.
MEASURES: dict[str, Measure] = {
    "lm": LM,
    "last-word": LAST_WORD,
    "minimal-pairs": MINIMAL_PAIRS,
}


def task_named(name: str) -> Task:
    """A task by its name.

    >>> task_named("classify").metric
    'accuracy'
    """
    if name in MEASURES and name not in TASKS:
        raise Misuse(
            f"{name} is only measured, there is nothing to teach or to predict: "
            f"`firth evaluate MODEL --task {name} --data PATH`."
        )
    if name not in TASKS:
        known = dict.fromkeys([*TASKS, *MEASURES])
        raise Misuse(f"There is no task {name!r}; {meant(name, known)}")
    return TASKS[name]
