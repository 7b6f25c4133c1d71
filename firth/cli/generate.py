"""`firth generate`: generate text from a prompt, or from each prompt of a file."""

import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.cli.options import (
    Argument,
    DataOption,
    DecodingOption,
    Device,
    Dtype,
    Format,
    ModelArgument,
    OutputOption,
    Weights,
    check_jsonl,
    load_model,
    terminal_text,
)
from firth.cli.verbs import BadRows, Output, json_lines
from firth.utils.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from firth.inference.generation.text_generation import PromptCompletions, TextGenerator

EXAMPLES = (
    'firth generate gpt2 "Once upon a time" --temperature 0.8 --top-p 0.95 --max-new-tokens 60',
    "firth generate runs/decoder --file prompts.txt --beams 4 --out completions.jsonl",
)
EARLY_STOPPING = {"yes": True, "no": False, "never": "never"}


def generate(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        Argument(metavar="PROMPT", help="Text to continue; - reads one prompt per line of stdin."),
    ] = None,
    file: Annotated[
        str | None,
        DataOption(
            help="File of prompts, one per line, or a table with a prompt column (.jsonl .csv "
            ".tsv .parquet), also .gz .bz2 .xz .zst; - for standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        OutputOption(
            help="With --file: JSON-lines file to write, one line per prompt; - for stdout. "
            "Default: print."
        ),
    ] = None,
    method: Annotated[
        str | None,
        DecodingOption(help="greedy, sample or beam. Default: as the other options imply."),
    ] = None,
    max_new_tokens: Annotated[
        int, DecodingOption(help="Maximum length of a completion in tokens.")
    ] = 40,
    temperature: Annotated[
        float | None,
        DecodingOption(help="Sampling temperature; lower is more deterministic. Default: 1."),
    ] = None,
    top_k: Annotated[
        int | None,
        DecodingOption("--top-k", help="Sample from the k most probable tokens. Default: all."),
    ] = None,
    top_p: Annotated[
        float | None,
        DecodingOption(
            "--top-p",
            help="Sample from the most probable tokens with total probability p. Default: 1.",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        DecodingOption(
            "--min-p",
            help="Sample from tokens at least min-p times as probable as the best. Default: 0.",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float, DecodingOption(help="Penalty on the logits of tokens seen before; 1: none.")
    ] = 1.0,
    no_repeat_ngram: Annotated[
        int, DecodingOption(help="Forbid n-grams of this many tokens to occur twice; 0: allow.")
    ] = 0,
    beams: Annotated[
        int | None, DecodingOption(help="Beam search with this many beams. Default: none.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        DecodingOption(
            help="Beam search: exponent of the length; above 1 favours long texts. Default: 1."
        ),
    ] = None,
    early_stopping: Annotated[
        str | None,
        DecodingOption(
            help="Beam search: yes, no, or never (until no beam can improve). Default: no."
        ),
    ] = None,
    n: Annotated[int, DecodingOption("--n", help="Completions per prompt.")] = 1,
    stop: Annotated[
        list[str] | None,
        DecodingOption(help=r"Stop before this text (\n: a line break); repeatable."),
    ] = None,
    seed: Annotated[int, DecodingOption(help="Random seed of sampling.")] = 0,
    explain: Annotated[
        bool,
        OutputOption("--explain", help="Show the probability of each token and its alternatives."),
    ] = False,
    show_strategies: Annotated[
        bool,
        OutputOption(
            "--show-strategies", help="Compare greedy, three temperatures and beam search."
        ),
    ] = False,
    stream: Annotated[
        bool | None,
        OutputOption(
            "--stream/--no-stream",
            help="Print tokens as they are generated. Default: in a terminal.",
        ),
    ] = None,
    column: Annotated[
        str | None, DataOption(help="Column of a table with the prompts. Default: text.")
    ] = None,
    format: Format = None,
    dtype: Dtype = None,
    weights: Weights = None,
    device: Device = None,
) -> Output:
    """Generate text from a prompt, or from each prompt of a file."""
    from dataclasses import replace

    from firth.cli.views import generation as view

    if prompt == "-":
        file, prompt = file or "-", None
    if (prompt is None) == (file is None):
        raise UsageError("Give either a PROMPT or --file.")
    if early_stopping is not None and early_stopping not in EARLY_STOPPING:
        raise UsageError(f"--early-stopping is yes, no or never, not {early_stopping!r}.")
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
        "early_stopping": None if early_stopping is None else EARLY_STOPPING[early_stopping],
        "n": n,
        "stop": tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stop or ()),
        "seed": seed,
    }
    from firth.inference.generation.generation_config import GenerationConfig

    config = GenerationConfig.of(settings)  # usage errors come before the model is loaded
    if show_strategies and (file or out or explain or n > 1 or config.method != "greedy"):
        raise UsageError(
            "--show-strategies compares methods on one PROMPT: omit other methods, --n, --explain, "
            "--file and --out."
        )
    if file is not None and explain and out is None:
        raise UsageError("--explain prints a table for one PROMPT; with --file, add --out.")
    if prompt is not None and out is not None:
        raise UsageError("--out is for --file; the completion of one PROMPT is printed.")
    check_jsonl(out)
    if stream and (file or explain or show_strategies or config.num_sequences > 1):
        raise UsageError("--stream needs one PROMPT, no beams and --n 1.")
    if file is not None:
        from firth.tasks.readers.columns import find_source

        live = find_source(file, format or "txt").is_stream
    loaded = load_model(model, dtype, device, weights)
    generator = replace(loaded.text_generator(**settings), explain=explain)
    if file is not None:
        return _generate_file(generator, file, out, column, format, live)
    assert prompt is not None
    prompt = terminal_text(prompt)
    if show_strategies:
        from firth.jobs.generating import strategies

        found = strategies(generator, prompt)
        rows = [{"strategy": name, **one.values()} for name, (_, one) in found.items()]
        return Output({"prompt": prompt, "strategies": rows}, [view.strategies(prompt, found)])
    if stream is None:
        stream = sys.stdout.isatty() and not explain and config.num_sequences == 1
    return _generate_one(generator, prompt, stream)


def _generate_one(generator: "TextGenerator", prompt: str, stream: bool) -> Output:
    """Complete one prompt, at once or token by token."""
    from firth.cli.views import generation as view

    encoded = generator.encode_prompt(prompt)  # errors come before any output

    @cache
    def completed() -> "PromptCompletions":
        return next(generator.complete_encoded([(0, encoded)]))

    def shown() -> Iterator["RenderableType"]:
        _print_notes(encoded.notes)
        if stream:
            yield from view.streamed(encoded.text, generator.stream(prompt))
        else:
            yield from view.completed(completed())

    values = {
        "prompt": encoded.text,
        "completions": lambda: [one.values() for one in completed().completions],
        "notes": list(encoded.notes),
    }
    return Output(values, shown())


def _generate_file(
    generator: "TextGenerator",
    file: str,
    out: Path | None,
    column: str | None,
    format: str | None,
    live: bool,
) -> Output:
    """Complete the prompts of a file in their order."""
    from firth.cli import terminal
    from firth.jobs.generating import as_values, complete_each, read_prompts
    from firth.utils.streams import write_lines

    bad_rows = BadRows()
    rows = read_prompts(file, column=column, format=format)
    found = complete_each(generator, rows, bad=bad_rows, live=live)
    bad = {"bad": lambda: bad_rows.count}
    if out is not None and str(out) != "-":
        with terminal.progress() as progress:
            count = write_lines(map(as_values, found), out, progress)
        good = count - bad_rows.count
        summary = (
            f"Wrote the completions of {good:,} {'prompt' if good == 1 else 'prompts'} to {out}."
        )
        return Output({"out": str(out), "n": good, **bad}, [summary], bad_rows)
    found = chain(list(islice(found, 1)), found)  # errors of all rows come before any output
    values = map(as_values, found)
    shown = json_lines(values) if out else _show_completions(found, generator.config.n)
    return Output({"results": values, **bad}, shown, bad_rows)


def _show_completions(
    found: Iterator["PromptCompletions | InputError"], lines: int
) -> Iterator["RenderableType"]:
    from firth.cli.views import generation as view

    for one in found:
        if not isinstance(one, InputError):
            _print_notes(one.notes)
        yield from view.prompted(one, lines)


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
