"""`firth predict`: predict labels, tags, answers or texts with a fine-tuned model."""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.cli import options
from firth.cli.verbs import Output, null_rows, row_output
from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.jobs.prediction import PredictionStream

EXAMPLES = (
    'firth predict runs/sentiment "What a delightful visit."',
    "firth predict runs/sentiment --data test.tsv --out predictions.jsonl",
)


def predict(
    models: list[str] = options.Argument(
        ...,
        metavar="MODEL... [TEXT]...",
        help=options.MODEL_HELP
        + " With --data: one or more models. Without: one model, then texts.",
    ),
    data: str | None = options.DataOption(
        None, help="File of examples; - for standard input. Default: the TEXTs."
    ),
    task: str | None = options.DataOption(
        None, help="Task. Default: the task the model was trained for."
    ),
    columns: list[str] | None = options.COLUMNS,
    format: str | None = options.FORMAT,
    strict: bool = options.STRICT,
    device: str | None = options.DEVICE,
    out: Path | None = options.OutputOption(
        None, help="JSON-lines file to write, one line per example; - for stdout. Default: print."
    ),
    overwrite: bool = options.OVERWRITE,
) -> Output:
    """Predict labels, tags, answers or texts; the scores of several models are averaged.

    Bad rows are reported and written as null.
    """
    from firth.cli.views import predictions as view
    from firth.jobs.prediction import predicting

    texts: list[str] = []
    if data is None:
        if not models[1:]:
            raise UsageError("Give texts after MODEL, or a file of examples with --data.")
        hint = ", which also allows several models"
        models, texts = models[:1], options.text_arguments(models[1:], "--data", hint)
    options.check_jsonl(out, overwrite)
    bad_rows = null_rows(strict)
    stream = predicting(
        models,
        data=data,
        texts=texts,
        task=task,
        columns=options.column_names(columns),
        format=format,
        device=device,
        bad=bad_rows,
    )
    show = partial(view.stream_predictions, stream)
    output = row_output(stream, lambda row: row.answer, show, out, bad_rows, key="predictions")
    notes = {"notes": lambda: [*stream.notes, *bad_rows.notes]}
    values = {"task": stream.task.name, **output.values, **notes}
    lines = _then_notes(output.view, stream) if out else output.view
    return Output(values, lines, bad_rows)


def _then_notes(lines: Iterable[Any], stream: "PredictionStream") -> Iterator[Any]:
    """Yield lines, then print the notes on all predictions to stderr."""
    yield from lines
    for note in stream.notes:
        print(note, file=sys.stderr)
