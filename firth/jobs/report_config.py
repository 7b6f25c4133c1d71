"""The config of `report`: its keyword arguments and the options of its verb.

Importing this module is fast: it imports neither torch nor numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from firth.jobs.job_configs import OVERWRITE
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The arguments of `report`.

    >>> ReportConfig(runs="runs/encoder").paths
    (PosixPath('runs/encoder'),)
    """

    runs: str | Path | Sequence[str | Path]
    out: Annotated[
        str | Path | None,
        Doc("HTML file for the page. Default: print a summary.", "Output", Path),
    ] = None
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("Name a run directory, or several.")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The run directories, and folders of them."""
        return tuple(map(Path, [self.runs] if isinstance(self.runs, str | Path) else self.runs))
