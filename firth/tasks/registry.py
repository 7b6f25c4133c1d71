"""The registry of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from firth.models.presets.task_models import models_of_task
from firth.objectives.registry import OBJECTIVES
from firth.tasks.analogies import ANALOGIES
from firth.tasks.choice import ChoiceTask
from firth.tasks.classify import ClassifyTask, PairTask, RegressTask
from firth.tasks.finetune_recipes import recipes_for
from firth.tasks.last_word import LAST_WORD
from firth.tasks.lm import LanguageModelTask
from firth.tasks.minimal_pairs import MINIMAL_PAIRS
from firth.tasks.perplexity import LM
from firth.tasks.pretraining_heads import NextSentenceTask, ReplacedTask, SentenceOrderTask
from firth.tasks.scoring_task import ScoringTask
from firth.tasks.seq2seq import Seq2SeqTask
from firth.tasks.similarity import SIMILARITY
from firth.tasks.span import SpanTask
from firth.tasks.tag import TagTask
from firth.tasks.task import Task
from firth.tasks.zero_shot_choice import CHOICE
from firth.utils.errors import UsageError, suggest

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        ClassifyTask(),
        PairTask(),
        RegressTask(),
        ChoiceTask(),
        TagTask(),
        SpanTask(),
        Seq2SeqTask(),
        LanguageModelTask(),
    )
}
# Tasks of heads that were trained in pre-training, for prediction and evaluation.
HEAD_TASKS: dict[str, NextSentenceTask | ReplacedTask] = {
    task.name: task for task in (NextSentenceTask(), SentenceOrderTask(), ReplacedTask())
}
# Tasks for evaluation without training; `lm` and `choice` are also in TASKS.
SCORING_TASKS: dict[str, ScoringTask] = {
    "lm": LM,
    "last-word": LAST_WORD,
    "minimal-pairs": MINIMAL_PAIRS,
    "choice": CHOICE,
    "similarity": SIMILARITY,
    "analogies": ANALOGIES,
}


def head_tasks(heads: Iterable[str], objective: str | None) -> list[str]:
    """Name the tasks of these heads that need no fine-tuning; the objective may tell which.

    >>> heads = ["language", "pooler", "pair"]
    >>> head_tasks(heads, objective=None), head_tasks(heads, objective="masked-sop")
    (['next-sentence', 'sentence-order'], ['sentence-order'])
    """
    able = [task for task in HEAD_TASKS.values() if task.head in set(heads)]
    trained = OBJECTIVES[objective].predicts if objective in OBJECTIVES else ()
    return [task.name for task in able if task.prediction in trained or not trained]


def list_tasks() -> list[dict[str, Any]]:
    """Return what each task is, its columns, metric, recipes and untrained models.

    Those for fine-tuning come first.

    >>> [task["task"] for task in list_tasks() if not task["trainable"]]
    ['last-word', 'minimal-pairs', 'similarity', 'analogies', 'next-sentence', 'sentence-order', \
'replaced']
    """
    tasks: dict[str, Task | ScoringTask] = {**TASKS, **SCORING_TASKS, **HEAD_TASKS, **TASKS}
    return [
        {
            "task": name,
            "about": task.about,
            "files": task.columns,
            "metric": task.metric,
            "architectures": list(task.architectures),
            "recipes": list(recipes_for(name)) if name in TASKS else [],
            "models": models_of_task(name),
            "trainable": name in TASKS,
        }
        for name, task in tasks.items()
    ]


def task_named(name: str) -> Task:
    """Look up a task by its name.

    >>> task_named("classify").metric
    'accuracy'
    """
    if name in SCORING_TASKS and name not in TASKS:
        raise UsageError(
            f"{name} is for evaluation only: `firth evaluate MODEL --task {name} --data PATH`."
        )
    if name in HEAD_TASKS:
        raise UsageError(
            f"{name} is predicted by a head of pre-training, for `firth predict` and `evaluate`: "
            "fine-tune on pair or tag instead."
        )
    if name not in TASKS:
        known = dict.fromkeys([*TASKS, *SCORING_TASKS, *HEAD_TASKS])
        raise UsageError(f"There is no task {name!r}; {suggest(name, known)}")
    return TASKS[name]
