"""The verb that writes texts: `generate`."""

import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firth.commands.verbs import (
    AnyModel,
    Complaints,
    Output,
    Weights,
    json_lines,
    lines_file,
    typed,
)
from firth.errors import InputError, Misuse

if TYPE_CHECKING:
    from rich.console import RenderableType

    from firth.inference.completions import Completed, Teller

Option, Argument = typer.Option, typer.Argument

EARLY = {"yes": True, "no": False, "never": "never"}


def generate(
    model: AnyModel,
    prompt: Annotated[
        str | None,
        Argument(metavar="PROMPT", help="The text to go on from; - reads many, one on each line."),
    ] = None,
    file: Annotated[
        str | None,
        Option(
            help="Many prompts: one on each line, or a table with a column of them (.jsonl .csv "
            ".tsv .parquet), also .gz .bz2 .xz .zst; - for standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="A .jsonl file to write to, a line for each prompt; - for a pipe."),
    ] = None,
    method: Annotated[
        str | None, Option(help="greedy, sample or beam; else what the other options say.")
    ] = None,
    max_new_tokens: Annotated[int, Option(help="Tokens that are written, at most.")] = 40,
    temperature: Annotated[
        float | None, Option(help="Draw: below 1 rather likely tokens, above 1 also unlikely ones.")
    ] = None,
    top_k: Annotated[
        int | None, Option("--top-k", help="Draw from so many of the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        Option("--top-p", help="Draw from the likeliest tokens of this probability together."),
    ] = None,
    min_p: Annotated[
        float | None,
        Option("--min-p", help="Draw from tokens this likely, compared with the likeliest."),
    ] = None,
    repetition_penalty: Annotated[
        float, Option(help="Above 1, what is there already becomes less likely.")
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int, Option(help="No run of so many tokens comes twice; 0: it may.")
    ] = 0,
    beams: Annotated[
        int | None, Option(help="Search for the likeliest text, so many at a time.")
    ] = None,
    length_penalty: Annotated[
        float | None, Option(help="Of beams: above 1 longer ones win, below 1 shorter ones.")
    ] = None,
    early_stopping: Annotated[
        str | None,
        Option(help="Of beams: yes, no or never (search until nothing better can come)."),
    ] = None,
    n: Annotated[int, Option("--n", help="Completions of each prompt.")] = 1,
    stop: Annotated[
        list[str] | None,
        Option(help=r"Stop before this text (\n: a new line); may be given several times."),
    ] = None,
    seed: Annotated[int, Option(help="Another seed, other samples.")] = 0,
    explain: Annotated[
        bool, Option("--explain", help="Show how likely each token was, and what else was likely.")
    ] = False,
    show_strategies: Annotated[
        bool,
        Option("--show-strategies", help="Greedy, three temperatures and beams side by side."),
    ] = False,
    stream: Annotated[
        bool | None, Option("--stream/--no-stream", help="Show the text while it is written.")
    ] = None,
    column: Annotated[
        str | None, Option(help="The column of a table that holds the prompts, if not `text`.")
    ] = None,
    format: Annotated[
        str | None, Option(help="What standard input, or a file of unknown ending, holds.")
    ] = None,
    dtype: Annotated[
        str | None, Option(help="float32, bfloat16 or float16; else the file's own.")
    ] = None,
    weights: Weights = None,
    device: Annotated[
        str | None, Option(help="cpu or cuda; else the GPU where there is one.")
    ] = None,
) -> Output:
    """Write on from a prompt, or from each of many."""
    from dataclasses import replace

    from firth.commands import text_views

    if prompt == "-":
        file, prompt = file or "-", None
    if (prompt is None) == (file is None):
        raise Misuse("Give a PROMPT, or --file with many of them: one of the two.")
    if early_stopping is not None and early_stopping not in EARLY:
        raise Misuse(f"--early-stopping is yes, no or never, not {early_stopping!r}.")
    settings: dict[str, Any] = {
        "method": method,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "beams": beams,
        "length_penalty": length_penalty,
        "early_stopping": None if early_stopping is None else EARLY[early_stopping],
        "n": n,
        "stop": tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or ()),
        "seed": seed,
    }
    from firth.inference.settings import Generation

    chosen = Generation.of(settings)  # what cannot be is told before a model is opened
    if show_strategies and (file or out or explain or n > 1 or chosen.method != "greedy"):
        raise Misuse(
            "--show-strategies tries several methods on one PROMPT: leave out the others, --n, "
            "--explain, --file and --out."
        )
    if file is not None and explain and out is None:
        raise Misuse("--explain shows a table for one PROMPT; for many, name an --out file.")
    if prompt is not None and out is not None:
        raise Misuse("--out is for many prompts (--file); one prints its completion.")
    lines_file(out)
    if stream and (file or explain or show_strategies or chosen.ways > 1):
        raise Misuse("--stream shows one text while it is written: one PROMPT, no beams, one --n.")
    if file is not None:
        from firth.tasks.reading.columns import find_source

        live = find_source(file, format or "txt").is_stream  # a misspelt file is told at once
    from firth.model import load
    from firth.training.machine import best_device

    opened = load(model, dtype=dtype, device=str(best_device(device)), weights=weights)
    teller = replace(opened.teller(**settings), explains=explain)
    if file is not None:
        return _many(teller, file, out, column, format, live)
    assert prompt is not None
    prompt = typed(prompt)
    if show_strategies:
        from firth.generating import strategies

        found = strategies(teller, prompt)
        rows = [{"strategy": name, **one.values()} for name, (_, one) in found.items()]
        return Output(
            {"prompt": prompt, "strategies": rows}, [text_views.strategies(prompt, found)]
        )
    if stream is None:
        stream = sys.stdout.isatty() and not explain and chosen.ways == 1
    return _one(teller, prompt, stream)


def _one(teller: "Teller", prompt: str, stream: bool) -> Output:
    """One prompt: all at once, or, for a person, as it comes."""
    from firth.commands import text_views

    asked = teller.ask(prompt)  # what is wrong is told before anything is shown

    @cache
    def done() -> "Completed":
        return next(teller.write([(0, asked)]))

    def view() -> Iterator["RenderableType"]:
        _tell(asked.notes)
        if stream:
            yield from text_views.streamed(asked.text, teller.stream(prompt))
        else:
            yield from text_views.completed(done())

    values = {
        "prompt": asked.text,
        "completions": lambda: [one.values() for one in done().completions],
        "notes": list(asked.notes),
    }
    return Output(values, view())


def _many(
    teller: "Teller",
    file: str,
    out: Path | None,
    column: str | None,
    format: str | None,
    live: bool,
) -> Output:
    """Many prompts, as they come."""
    from firth.commands import terminal
    from firth.generating import as_values, complete_each, read_prompts
    from firth.streams import write_lines

    complaints = Complaints()
    prompts = read_prompts(file, column=column, format=format)
    found = complete_each(teller, prompts, bad=complaints, live=live)
    bad = {"bad": lambda: complaints.count}
    if out is not None and str(out) != "-":
        with terminal.progress() as progress:
            count = write_lines(map(as_values, found), out, progress)
        good = count - complaints.count
        said = f"{good:,} {'prompt is' if good == 1 else 'prompts are'} continued in {out}."
        return Output({"out": str(out), "n": good, **bad}, [said], complaints)
    found = chain(list(islice(found, 1)), found)  # what is wrong with all is told first
    values = map(as_values, found)
    shown = json_lines(values) if out else _shown(found, teller.settings.n)
    return Output({"results": values, **bad}, shown, complaints)


def _shown(found: Iterator["Completed | InputError"], lines: int) -> Iterator["RenderableType"]:
    from firth.commands import text_views

    for one in found:
        if not isinstance(one, InputError):
            _tell(one.notes)
        yield from text_views.prompted(one, lines)


def _tell(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
