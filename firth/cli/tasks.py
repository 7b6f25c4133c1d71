"""`firth tasks`: list the tasks a model can be fine-tuned for or evaluated on."""

from firth.cli.verbs import Output

EXAMPLES = ("firth tasks", "firth tasks --json")


def tasks() -> Output:
    """List the tasks for fine-tuning and evaluation, with their file formats and recipes."""
    from firth.cli.views import tasks as view
    from firth.tasks.registry import list_tasks

    rows = list_tasks()
    return Output({"tasks": rows}, [view.tasks(rows)])
