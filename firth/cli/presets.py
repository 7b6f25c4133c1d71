"""`firth presets`: list the model architectures that can be pre-trained, and embedded models."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.errors import UsageError, storage_errors
from firth.utils.outputs import check_output

if TYPE_CHECKING:
    from firth.models.presets import Preset

EXAMPLES = (
    "firth presets",
    "firth presets bert-base",
    'firth presets gpt2 --masks --text "The cat sat on the mat"',
    "firth presets modernbert-base --masks --window 1 --png masks.png",
)
TEXT = "The cat sat on the mat"
MAX_WORDS = 40  # that fit in a terminal


def presets(
    name: str | None = options.Argument(
        None, help="Show all config fields of this preset. Default: list all."
    ),
    masks: bool = options.ModelOption(
        False,
        "--masks",
        help="Draw the attention masks of the preset: which token may attend to which.",
    ),
    text: str | None = options.DataOption(
        None, metavar="TEXT", help=f"Text of --masks; every word is a token. Default: {TEXT}."
    ),
    prefix: int | None = options.ModelOption(
        None,
        min=0,
        help="With --masks: the first N words attend in both directions (a prefix language model; "
        "decoders only). Default: 0.",
        metavar="N",
    ),
    window: int | None = options.ModelOption(
        None,
        min=1,
        help="With --masks: words visible on each side in sliding-window layers. Default: the "
        "window of the preset.",
        metavar="N",
    ),
    png: Path | None = options.OutputOption(
        None, metavar="FILE", help="With --masks: also write the drawing to a PNG file."
    ),
    overwrite: bool = options.OVERWRITE,
) -> Output:
    """List the model architectures that can be pre-trained, and the embedded models."""
    from firth.cli.views import presets as view
    from firth.embedded import EMBEDDED_MODELS
    from firth.models.presets import list_presets, preset

    if masks and name is None:
        raise UsageError("--masks needs the name of a preset: firth presets bert-base --masks.")
    drawing = {"--text": text, "--prefix": prefix, "--window": window, "--png": png}
    if not masks and (given := [name for name, value in drawing.items() if value is not None]):
        raise UsageError(f"{given[0]} is for the drawing of attention masks: add --masks.")
    if name is None:
        rows = list_presets()
        values = {"presets": [row.values() for row in rows], "embedded_models": EMBEDDED_MODELS}
        return Output(values, [view.presets(rows), *view.embedded(EMBEDDED_MODELS)])
    row = preset(name)
    if not masks and row.is_fitted:
        settings = _fit_settings(row)
        return Output(row.values() | {"settings": settings}, view.fitted_preset(row, settings))
    if not masks:
        return Output(row.values() | {"config": row.config.to_dict()}, view.preset(row))
    if png is not None:
        if png.suffix.lower() != ".png":
            raise UsageError(f"--png writes a PNG file: name it {png.with_suffix('.png')}.")
        check_output(png, overwrite)
    words = options.terminal_text(TEXT if text is None else text).split()
    return _masks(row, words, prefix or 0, window or 0, png)


def _fit_settings(row: "Preset") -> dict[str, Any]:
    """Return what `--set` changes in a preset that is fitted without the training loop."""
    from firth.training.fitted_objectives import FITTED

    config = row.config.to_dict()
    names = ["hidden_size", *(["min_n", "max_n", "buckets"] if config.get("buckets") else [])]
    sizes = {f"model.{name}": config[name] for name in names if config[name]}
    return {**sizes, **FITTED[row.objective].options}


def _masks(row: "Preset", words: list[str], prefix: int, window: int, png: Path | None) -> Output:
    """Draw and count the attention masks of a preset."""
    from firth.cli.views import attention_masks as view
    from firth.models.attention_patterns import attention_patterns
    from firth.models.transformer_config import require_transformer_config

    if not 1 <= len(words) <= MAX_WORDS:
        raise UsageError(f"--text has {len(words)} words; a drawing has from 1 to {MAX_WORDS}.")
    config = require_transformer_config(row.config)
    patterns = attention_patterns(config, len(words), prefix=prefix, window=window)
    if png is not None:
        from firth.utils.plotting import plot_attention_masks

        with storage_errors(png):
            plot_attention_masks(png, words, {view.short_title(p): p.visible for p in patterns})
    values = {
        "preset": row.name,
        "tokens": words,
        "masks": [view.values(p) for p in patterns],
        **({} if png is None else {"png": str(png)}),
    }
    saved = [] if png is None else [f"The drawing is in {png}."]
    return Output(values, [*view.masks(row, words, patterns), *saved])
