"""`firth tasks`: list the tasks a model can be fine-tuned for or evaluated on."""

from typing import Any

from firth.cli.verbs import Output

EXAMPLES = ("firth tasks", "firth tasks --json")


def tasks() -> Output:
    """List the tasks for fine-tuning and evaluation, with their file formats and recipes."""
    from firth.cli.views import tasks as view
    from firth.tasks.finetune_recipes import recipes_for
    from firth.tasks.registry import HEAD_TASKS, SCORING_TASKS, TASKS

    all_tasks: dict[str, Any] = {
        **TASKS,
        **SCORING_TASKS,
        **HEAD_TASKS,
        **TASKS,
    }  # fine-tuning tasks first
    rows = [
        {
            "task": name,
            "about": task.about,
            "files": task.columns,
            "metric": task.metric,
            "architectures": list(task.architectures),
            "recipes": list(recipes_for(name)) if name in TASKS else [],
            "trainable": name in TASKS,
        }
        for name, task in all_tasks.items()
    ]
    return Output({"tasks": rows}, [view.tasks(rows)])
