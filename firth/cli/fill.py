"""`firth fill`: predict the words in the blanks of a text, or correct misspelt words."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.cli.options import (
    Argument,
    DataOption,
    Device,
    Dtype,
    Format,
    ModelArgument,
    OutputOption,
    check_format,
    check_jsonl,
    load_model,
    terminal_text,
)
from firth.cli.verbs import BadRows, Output, json_lines, summarize_rows
from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.jobs.filling import FilledRow
    from firth.model import Model

EXAMPLES = (
    'firth fill bert-base-uncased "The [MASK] barked loudly." --top 3',
    'firth fill runs/encoder --correct "The dgo barked loudly."',
)
DEFAULT_TOP = 5


def fill(
    model: ModelArgument,
    text: Annotated[
        str | None,
        Argument(metavar="[TEXT]", help="Text with blanks: [MASK], <mask>, <extra_id_0> or ___."),
    ] = None,
    file: Annotated[
        str | None,
        DataOption(
            help="File of texts, one per line, or a table with a text column; - for standard input."
        ),
    ] = None,
    top: Annotated[
        int | None, OutputOption(min=1, help="Number of candidates per blank. Default: 5.")
    ] = None,
    targets: Annotated[
        str | None,
        OutputOption(help="Score only these words: good,bad,ugly. Default: the whole vocabulary."),
    ] = None,
    correct: Annotated[
        bool, OutputOption("--correct", help="Suggest corrections for unlikely words.")
    ] = False,
    out: Annotated[
        Path | None,
        OutputOption(
            help="With --file: JSON-lines file to write, one line per row; - for stdout. Default: "
            "print."
        ),
    ] = None,
    column: Annotated[
        str | None, DataOption(help="Column of a table with the text. Default: text.")
    ] = None,
    format: Format = None,
    device: Device = None,
    dtype: Dtype = None,
) -> Output:
    """Predict the words in the blanks of a text, with probabilities; or correct misspelt words."""
    if (text is None) == (file is None):
        raise UsageError("Give a TEXT with blanks, or --file with one on each line.")
    if correct and (top is not None or targets is not None):
        raise UsageError("--correct suggests one correction per word: omit --top and --targets.")
    if targets is not None and top is not None:
        raise UsageError("All --targets are shown: omit --top.")
    if out is not None and file is None:
        raise UsageError("--out is for --file; for one TEXT use --json.")
    check_jsonl(out)
    words = _parse_words(targets) if targets is not None else []
    if file is not None:
        _check_source(file, format)
        loaded = load_model(model, dtype, device)
        options = {"top": top or DEFAULT_TOP, "targets": words, "correct": correct}
        return _fill_file(loaded, file, out, column=column, format=format, **options)
    from firth.cli.views import filling as view

    assert text is not None
    text = terminal_text(text)
    loaded = load_model(model, dtype, device)
    if correct:
        corrected = loaded.correct(text)
        return Output(corrected.values(), view.corrected(corrected))
    filled = loaded.fill_texts([text], top=top or DEFAULT_TOP, targets=words)[0]
    return Output(filled.values(), view.filled(filled))


def _fill_file(loaded: "Model", file: str, out: Path | None, **options: Any) -> Output:
    from firth.cli import terminal
    from firth.cli.views import filling as view
    from firth.jobs.filling import fill_file
    from firth.utils.streams import write_lines

    bad_rows = BadRows()
    stream = fill_file(loaded, file, bad=bad_rows, **options)
    # The first row now: errors that concern all rows come before any output.
    rows: Iterator[FilledRow] = chain(list(islice(stream, 1)), stream)
    bad = {"bad": lambda: bad_rows.count}
    if out is None or str(out) == "-":
        values = (row.values() for row in rows)
        shown = json_lines(values) if out else view.rows(rows)
        return Output({"results": values, **bad}, shown, bad_rows)
    with terminal.progress() as progress:
        count = write_lines((row.values() for row in rows), out, progress)
    summary = {"out": str(out), "n": count, **bad}
    return Output(summary, [summarize_rows(count, bad_rows, out)], bad_rows)


def _parse_words(targets: str) -> list[str]:
    words = [word.strip() for word in targets.split(",") if word.strip()]
    if not words:
        raise UsageError("--targets takes words separated by commas, such as good,bad.")
    return list(dict.fromkeys(words))


def _check_source(file: str, format: str | None) -> None:
    """Raise an error if a file does not exist, before a model is loaded."""
    from firth.tasks.readers.columns import find_source

    check_format(format)
    find_source(file, format or "txt")
