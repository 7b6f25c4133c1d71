"""`firth presets`: list the model architectures that can be pre-trained."""

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth presets", "firth presets bert-base")


def presets(
    name: str | None = options.Argument(
        None, help="Show all config fields of this preset. Default: list all."
    ),
) -> Output:
    """List the model architectures that can be pre-trained, with their sizes and papers."""
    from firth.cli.views import presets as view
    from firth.models.presets import list_presets, preset

    if name is not None:
        row = preset(name)
        return Output(row.values() | {"config": row.config.to_dict()}, view.preset(row))
    rows = list_presets()
    return Output({"presets": [row.values() for row in rows]}, [view.presets(rows)])
