"""`firth presets`: list the model architectures that can be pre-trained, and embedded models."""

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth presets", "firth presets bert-base")


def presets(
    name: str | None = options.Argument(
        None, help="Show all config fields of this preset. Default: list all."
    ),
) -> Output:
    """List the model architectures that can be pre-trained, and the embedded models."""
    from firth.cli.views import presets as view
    from firth.embedded import EMBEDDED_MODELS
    from firth.models.presets import list_presets, preset

    if name is not None:
        row = preset(name)
        return Output(row.values() | {"config": row.config.to_dict()}, view.preset(row))
    rows = list_presets()
    values = {"presets": [row.values() for row in rows], "embedded_models": EMBEDDED_MODELS}
    return Output(values, [view.presets(rows), *view.embedded(EMBEDDED_MODELS)])
