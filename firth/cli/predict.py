"""`firth predict`: predict labels, tags, answers or texts with a fine-tuned model."""

from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

from firth.cli.options import (
    MODEL_HELP,
    Argument,
    Columns,
    DataOption,
    Device,
    Format,
    OutputOption,
    check_jsonl,
    check_texts,
    column_names,
)
from firth.cli.verbs import BadRows, Output, json_lines, summarize_rows

EXAMPLES = (
    'firth predict runs/sentiment "What a delightful visit."',
    "firth predict runs/sentiment --data test.tsv --out predictions.jsonl",
)


def predict(
    models: Annotated[
        list[str],
        Argument(
            metavar="MODEL... [TEXT]...",
            help=f"{MODEL_HELP} With --data: one or more models. Without: one model, then texts.",
        ),
    ],
    data: Annotated[
        str | None, DataOption(help="File of examples; - for standard input. Default: the TEXTs.")
    ] = None,
    out: Annotated[
        Path | None,
        OutputOption(
            help="JSON-lines file to write, one line per example; - for stdout. Default: print."
        ),
    ] = None,
    task: Annotated[
        str | None, DataOption(help="Task. Default: the task the model was fine-tuned for.")
    ] = None,
    column: Columns = None,
    format: Format = None,
    device: Device = None,
) -> Output:
    """Predict labels, tags, answers or texts; the scores of several models are averaged.

    Errors of single rows are printed to stderr; the other rows are processed.
    """
    from firth.cli import terminal
    from firth.cli.views import predictions as view
    from firth.jobs.prediction import predicting
    from firth.utils.streams import write_lines

    texts: list[str] = []
    if data is None:
        models, texts = models[:1], check_texts(models[1:])
    check_jsonl(out)
    bad_rows = BadRows()
    stream = predicting(
        models,
        data=data,
        texts=texts,
        task=task,
        columns=column_names(column),
        format=format,
        device=device,
        bad=bad_rows,
    )
    values: dict[str, Any] = {"task": stream.task.name}
    rest = {"notes": lambda: stream.notes, "bad": lambda: bad_rows.count}
    if out is None or str(out) == "-":
        first = list(islice(stream, 1))  # errors that concern all rows come before any output
        rows = chain(first, stream)
        answers = (row.answer for row in rows)
        shown = json_lines(answers) if out else view.stream_predictions(stream, rows)
        return Output({**values, "predictions": answers, **rest}, shown, bad_rows)
    with terminal.progress() as progress:
        count = write_lines((row.answer for row in stream), out, progress)
    values |= {"out": str(out), "n": count, **rest}
    return Output(values, [summarize_rows(count, bad_rows, out), *stream.notes], bad_rows)
