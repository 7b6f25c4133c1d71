"""`firth objectives`: list the pre-training objectives, or show their inputs and targets."""

from dataclasses import asdict
from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth objectives",
    "firth objectives --data runs/shards --objective masked --objective span-corruption",
)


def objectives(
    data: Path | None = options.DataOption(
        None, help="Shards of `firth prepare`, to show examples of their text. Default: none."
    ),
    objective: list[str] | None = options.DataOption(
        None, metavar="NAME", help="Show only this objective; repeatable. Default: all."
    ),
    length: int = options.DataOption(32, min=1, help="Sequence length in tokens."),
    seed: int = options.DataOption(0, help="Random seed."),
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
    values = {"examples": [asdict(example) for example in examples], "missing": reasons}
    return Output(values, view.objectives(examples, reasons))
