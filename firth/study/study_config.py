"""The config of `run_study`: its keyword arguments and the options of `firth study`.

Importing this module is fast: it imports neither torch nor numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.jobs.job_configs import COLUMNS, DEVICE
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.utils.devices import Device

BUDGETS = ("small", "medium", "large")


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """The arguments of `run_study`."""

    out: Annotated[
        str | Path | None,
        Doc(
            "Folder to write: index.html, results.jsonl, figure.png, cells; the list of studies "
            "needs none. Default: none.",
            "Output",
            Path,
        ),
    ] = None
    data: Annotated[
        str | Path | None,
        Doc(
            "File of labelled examples. Default: those of the stories.",
            "Data",
            Path,
            flags="--data --train",
        ),
    ] = None
    test: Annotated[
        str | Path | None,
        Doc(
            "File of test examples. Default: examples of --data are held out, the same for all "
            "runs.",
            "Data",
            Path,
        ),
    ] = None
    task: Annotated[
        str | None, Doc("Task of --data; `firth tasks` lists them. Default: classify.", "Data")
    ] = None
    text: Annotated[
        str | Path | None,
        Doc("Text to pre-train on: a file or folder. Default: the stories.", "Data", Path),
    ] = None
    columns: Annotated[Mapping[str, str] | None, COLUMNS] = None
    models: Annotated[
        Sequence[str] | str,
        Doc(
            "Model to study; repeatable where several are compared. Default: an embedded one.",
            "Model",
            list[str],
            "MODEL",
            flags="--model",
        ),
    ] = ()
    budget: Annotated[
        str,
        Doc("Size of the grid: small (minutes on two CPU cores), medium, or large (for a GPU)."),
    ] = "small"
    seeds: Annotated[int, Doc("Number of random seeds that each run is repeated with.", min=1)] = 5
    seed: Annotated[int, Doc("First random seed.", min=0)] = 0
    overrides: Annotated[
        Mapping[str, Any] | None,
        Doc(
            "Override a setting of the study, such as labels=10,100; repeatable. `firth study "
            "NAME` lists them. Default: none.",
            kind=list[str],
            metavar="KEY=VALUE",
        ),
    ] = None
    cells: Annotated[
        str | Path | None,
        Doc(
            "Folder of finished cells, which several studies may share. Default: OUT/cells.",
            "Output",
            Path,
        ),
    ] = None
    workers: Annotated[
        int, Doc("Cells that run at once; 0: one per CPU core, or one on a GPU.", min=0)
    ] = 0
    device: Annotated["Device", DEVICE] = None

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise UsageError(f"--budget is one of {', '.join(BUDGETS)}, not {self.budget!r}.")
        if self.seeds < 1:
            raise UsageError("--seeds is at least 1.")
        if self.test is not None and self.data is None:
            raise UsageError("--test belongs to --data FILE.")

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models as a tuple."""
        return (self.models,) if isinstance(self.models, str) else tuple(self.models)
