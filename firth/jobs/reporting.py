"""`firth.report`: one page about any runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firth.jobs.report_config import ReportConfig
from firth.jobs.run_report.report import RunReport
from firth.jobs.run_report.run_record import read_records
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of
from firth.utils.outputs import check_output


@check_arguments
def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> RunReport:
    """Report on runs: lineage, settings side by side, loss curves, metrics, cost and samples.

    `runs` are run directories of `pretrain` and `finetune`, finished or not; of another folder,
    such as that of a sweep, all runs in it are reported. `out` is the page to write; the result
    has `save` and `values`.
    """
    config = config_of(ReportConfig, locals())
    if out is not None:
        check_output(out, overwrite)
    records, notes = read_records(config.paths)
    found = RunReport(records=tuple(records), notes=tuple(notes))
    if out is not None:
        found.save(out, overwrite=overwrite)
    return found
