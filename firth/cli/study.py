"""`firth study`: answer a question with a grid of runs."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.study.study_config import StudyConfig

EXAMPLES = (
    "firth study",
    "firth study labels --out studies/labels",
    "firth study labels --data reviews.tsv --model bert-base-uncased --budget large --out mine",
    "firth study strategies --set strategies=full,lora --seeds 3 --out studies/strategies",
)


@options.with_options(StudyConfig, panel="Training")
def study(
    name: str | None = options.Argument(
        None,
        metavar="[NAME]",
        help="Study; without one, the studies and their settings are listed.",
    ),
    **settings: Any,
) -> Output:
    """Answer a question with a grid of runs: a table, a figure and a verdict with its interval."""
    from firth.cli.views import studies as view

    if name is None:
        from firth.study.registry import all_studies

        found = all_studies()
        return Output({"studies": [view.study_values(one) for one in found]}, view.studies(found))
    from firth.study.running import run_study

    settings["overrides"] = options.overrides(settings["overrides"])
    settings["columns"] = options.column_names(settings["columns"])
    settings["models"] = settings["models"] or ()
    with view.live_cells() as show:
        result = run_study(name, on_result=show, **settings)
    return Output(result.values(), view.result(result))
