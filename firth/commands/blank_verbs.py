"""The verb that fills the blanks of a text, or corrects its words."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.commands.verbs import AnyModel, Complaints, Output, json_lines, kept, lines_file, typed
from firth.errors import Misuse

if TYPE_CHECKING:
    from firth.filling import Answered
    from firth.model import Model

Option, Argument = typer.Option, typer.Argument

ALL = 5  # guesses, where nothing is asked


def fill(
    model: AnyModel,
    text: Annotated[
        str | None,
        Argument(metavar="[TEXT]", help="With blanks: [MASK], <mask>, <extra_id_0> or ___."),
    ] = None,
    file: Annotated[
        str | None,
        Option(help="Many texts: one on each line, or a table with a column; - for a pipe."),
    ] = None,
    top: Annotated[int | None, Option(min=1, help="How many guesses for each blank; 5.")] = None,
    targets: Annotated[
        str | None, Option(help="How likely just these words are: good,bad,ugly.")
    ] = None,
    correct: Annotated[
        bool, Option("--correct", help="Propose corrections for words that are unlikely there.")
    ] = False,
    out: Annotated[
        Path | None, Option(help="With --file: a .jsonl file, a line for each row; - for a pipe.")
    ] = None,
    column: Annotated[
        str | None, Option(help="The field of a table that holds the text, if not `text`.")
    ] = None,
    format: Annotated[
        str | None, Option(help="What standard input, or a file of unknown ending, holds: txt, …")
    ] = None,
    device: Annotated[str | None, Option(help="cpu or cuda; else the GPU, if any.")] = None,
    dtype: Annotated[
        str | None, Option(help="float32, bfloat16 or float16; else the file's own.")
    ] = None,
) -> Output:
    """Fill in the blanks of a text, with probabilities; or correct its words."""
    if (text is None) == (file is None):
        raise Misuse("Give a TEXT with blanks, or --file with one on each line.")
    if correct and (top is not None or targets is not None):
        raise Misuse("--correct proposes one correction for a word: leave --top and --targets out.")
    if targets is not None and top is not None:
        raise Misuse("--targets are all shown: leave --top out.")
    if out is not None and file is None:
        raise Misuse("--out is for the many texts of --file; add --json to have one as JSON.")
    lines_file(out)
    words = _words(targets) if targets is not None else []
    if file is not None:
        _there(file, format)
        opened = _load(model, dtype, device)
        options = {"top": top or ALL, "targets": words, "correct": correct}
        return _many(opened, file, out, column=column, format=format, **options)
    from firth.commands import blank_views

    assert text is not None
    text = typed(text)
    opened = _load(model, dtype, device)
    if correct:
        corrected = opened.correct(text)
        return Output(corrected.values(), blank_views.corrected(corrected))
    found = opened.fill_texts([text], top=top or ALL, targets=words)[0]
    return Output(found.values(), blank_views.filled(found))


def _many(opened: "Model", file: str, out: Path | None, **options: Any) -> Output:
    from firth.commands import blank_views, terminal
    from firth.filling import fill_file
    from firth.streams import write_lines

    complaints = Complaints()
    stream = fill_file(opened, file, bad=complaints, **options)
    rows: Iterator[Answered] = chain(list(islice(stream, 1)), stream)
    bad = {"bad": lambda: complaints.count}
    if out is None or str(out) == "-":
        values = (row.values() for row in rows)
        shown = json_lines(values) if out else blank_views.rows(rows)
        return Output({"results": values, **bad}, shown, complaints)
    with terminal.progress() as progress:
        count = write_lines((row.values() for row in rows), out, progress)
    made = {"out": str(out), "n": count, **bad}
    return Output(made, [kept(count, complaints, out)], complaints)


def _words(targets: str) -> list[str]:
    words = [word.strip() for word in targets.split(",") if word.strip()]
    if not words:
        raise Misuse("--targets takes words with commas between them, such as good,bad.")
    return list(dict.fromkeys(words))


def _there(file: str, format: str | None) -> None:
    """A misspelt file is told at once, before a model is opened."""
    from firth.tasks.reading.columns import find_source
    from firth.text.readers import FORMATS

    if format and format not in FORMATS:
        raise Misuse(f"--format {format} is not known; there are {', '.join(FORMATS)}.")
    find_source(file, format or "txt")


def _load(model: str, dtype: str | None, device: str | None) -> "Model":
    from firth.model import load
    from firth.training.machine import best_device

    return load(model, dtype=dtype, device=str(best_device(device)))
