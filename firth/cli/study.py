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
        help="Study to run. Without NAME: list all studies; without --out: list its settings.",
    ),
    **settings: Any,
) -> Output:
    """Answer a question with a grid of runs: a table, a figure and a verdict with its interval."""
    from firth.cli.views import studies as view
    from firth.study.registry import all_studies, study_named

    if name is None or settings["out"] is None:
        found = all_studies() if name is None else [study_named(name)]
        return Output({"studies": [view.study_values(one) for one in found]}, view.studies(found))
    from firth.study.running import run_study

    settings["overrides"] = options.overrides(settings["overrides"])
    settings["columns"] = options.column_names(settings["columns"])
    settings["models"] = settings["models"] or ()
    with view.live_cells() as show:
        result = run_study(name, on_result=show, **settings)
    return Output(result.values(), view.result(result))
