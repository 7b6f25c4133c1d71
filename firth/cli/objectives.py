"""`firth objectives`: list the pre-training objectives, or show their inputs and targets."""

from pathlib import Path
from typing import Annotated

from firth.cli.options import DataOption
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth objectives",
    "firth objectives --data runs/shards --objective masked --objective span-corruption",
)


def objectives(
    data: Annotated[
        Path | None, DataOption(help="Shards of `firth prepare`, to show examples of their text.")
    ] = None,
    objective: Annotated[
        list[str] | None, DataOption(help="Show only this objective; repeatable. Default: all.")
    ] = None,
    length: Annotated[int, DataOption(min=1, help="Sequence length in tokens.")] = 32,
    seed: Annotated[int, DataOption(help="Random seed.")] = 0,
) -> Output:
    """List the pre-training objectives; with --data, show the inputs and targets of each."""
    from firth.cli.views import objectives as view
    from firth.data.shards import Shards
    from firth.objectives.preview import show_objectives
    from firth.objectives.registry import OBJECTIVES

    if data is None and objective:
        raise UsageError("--objective selects what to show of --data: give both.")
    if data is None:
        rows = [
            {"objective": name, "about": row.about, "source": row.source}
            | {"architectures": row.architectures}
            for name, row in OBJECTIVES.items()
        ]
        return Output({"objectives": rows}, [view.objective_table()])
    examples, reasons = show_objectives(Shards(data), objective or (), length=length, seed=seed)
    values = {"examples": [example.values() for example in examples], "missing": reasons}
    return Output(values, view.objectives(examples, reasons))
