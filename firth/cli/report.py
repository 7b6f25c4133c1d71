"""`firth report`: one page about any runs."""

from pathlib import Path
from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.jobs.report_config import ReportConfig

EXAMPLES = (
    "firth report runs/encoder runs/sentiment",
    "firth report runs --out runs/report.html",
)


@options.with_options(ReportConfig)
def report(
    runs: list[Path] = options.Argument(
        ...,
        metavar="RUN...",
        help="Run directories, finished or not; a folder of several runs, such as a sweep's: all "
        "of them.",
    ),
    **settings: Any,
) -> Output:
    """Compare runs: lineage, settings side by side, loss curves, metrics, cost and samples."""
    from firth.cli.views.run_report import reported
    from firth.jobs.reporting import report

    found = report(runs, **settings)
    return Output(found.values(), reported(found, settings["out"]))
