"""`firth generate`: generate text from a prompt, or from each prompt of a file."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.cli import options
from firth.cli.verbs import Output, null_rows, row_output
from firth.inference.generation.generation_config import GenerationConfig
from firth.utils.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from firth.inference.generation.text_generation import PromptCompletions, TextGenerator
    from firth.model import Model

EXAMPLES = (
    'firth generate gpt2 "Once upon a time" --temperature 0.8 --top-p 0.95 --max-new-tokens 60',
    'firth generate org/chat-model --chat "What is a prefix?" --system "Answer in one sentence."',
    "firth generate runs/decoder --file prompts.txt --beams 4 --out completions.jsonl",
)
EARLY_STOPPING = {"yes": True, "no": False, "never": "never"}


@options.with_options(GenerationConfig, panel="Decoding", unset=True)
def generate(
    model: str = options.MODEL,
    prompt: str | None = options.Argument(
        None, metavar="PROMPT", help="Text to continue; - reads one prompt per line of stdin."
    ),
    file: str | None = options.DataOption(
        None,
        help="File of prompts, one per line, or a table with a prompt column (.jsonl .csv .tsv "
        ".parquet), also .gz .bz2 .xz .zst; - for standard input. Default: the PROMPT.",
    ),
    column: str | None = options.DataOption(
        None, help="Column of a table with the prompts. Default: text."
    ),
    format: str | None = options.FORMAT,
    chat: bool = options.PromptOption(
        False, "--chat", help="The PROMPT is a message to a chat model, in its chat template."
    ),
    system: str | None = options.PromptOption(
        None, metavar="TEXT", help="System message of a chat. Default: none."
    ),
    strict: bool = options.STRICT,
    dtype: str | None = options.DTYPE,
    weights: str | None = options.WEIGHTS,
    device: str | None = options.DEVICE,
    out: Path | None = options.OutputOption(
        None,
        help="With --file: JSON-lines file to write, one line per prompt; - for stdout. Default: "
        "print.",
    ),
    overwrite: bool = options.OVERWRITE,
    explain: bool = options.OutputOption(
        False,
        "--explain",
        help="Show tokens, ids, embeddings, layers, logits and softmax of the PROMPT; then each "
        "generated token with its probability, its loss and its alternatives.",
    ),
    answer: str | None = options.OutputOption(
        None, metavar="TEXT", help="With --explain: the right continuation, to show its loss."
    ),
    show_strategies: bool = options.OutputOption(
        False, "--show-strategies", help="Compare greedy, three temperatures and beam search."
    ),
    stream: bool | None = options.OutputOption(
        None,
        "--stream/--no-stream",
        help="Print tokens as they are generated. Default: in a terminal.",
    ),
    **settings: Any,
) -> Output:
    """Generate text from a prompt, or from each prompt of a file."""
    if prompt == "-":
        file, prompt = file or "-", None
    if (prompt is None) == (file is None):
        raise UsageError("Give either a PROMPT or --file.")
    prompt = options.text_arguments([prompt], "--file")[0] if prompt is not None else ""
    if system is not None and not chat:
        raise UsageError("--system is the first message of a chat: add --chat.")
    if (early := settings["early_stopping"]) is not None and early not in EARLY_STOPPING:
        raise UsageError(f"--early-stopping is yes, no or never, not {early!r}.")
    settings["early_stopping"] = EARLY_STOPPING.get(early)
    stops = settings["stop"] or ()
    settings["stop"] = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stops)
    config = GenerationConfig.of(settings)  # usage errors come before the model is loaded
    if show_strategies and (file or out or explain or config.n > 1 or config.method != "greedy"):
        raise UsageError(
            "--show-strategies compares methods on one PROMPT: omit other methods, --n, --explain, "
            "--file and --out."
        )
    if file is not None and explain and out is None:
        raise UsageError("--explain prints a table for one PROMPT; with --file, add --out.")
    if answer is not None and (not explain or file is not None or not answer.strip()):
        raise UsageError("--answer is the right continuation of one PROMPT: add --explain.")
    if file is None and out is not None:
        raise UsageError("--out is for --file; the completion of one PROMPT is printed.")
    options.check_jsonl(out, overwrite)
    if stream and (file or explain or show_strategies or config.num_sequences > 1):
        raise UsageError("--stream needs one PROMPT, no beams and --n 1.")
    if file is not None:
        options.check_source(file, format)
    from firth.cli.views import generation as view
    from firth.jobs.generating import complete_file, strategies
    from firth.jobs.row_streams import as_values

    loaded = options.load_model(model, dtype, device, weights)
    generator = loaded.text_generator(**settings)
    generator = replace(generator, explain=explain, chat=chat, system=system)
    if file is not None:
        bad_rows = null_rows(strict)
        found = complete_file(generator, file, column=column, format=format, bad=bad_rows)
        show = lambda found: _show_completions(found, config.n)  # noqa: E731
        output = row_output(found, as_values, show, out, bad_rows)
        if "n" in output.values:  # prompts with completions
            completed = output.values["n"] - bad_rows.count
            output = output._replace(values={**output.values, "n": completed})
        return output
    if show_strategies:
        compared = strategies(generator, prompt)
        rows = [{"strategy": name, **one.values()} for name, one in compared.items()]
        return Output({"prompt": prompt, "strategies": rows}, [view.strategies(prompt, compared)])
    if stream is None:
        stream = sys.stdout.isatty() and not explain and config.num_sequences == 1
    output = _generate_one(generator, prompt, stream)
    return _explain(loaded, generator, prompt, answer or "", output) if explain else output


def _explain(
    model: "Model", generator: "TextGenerator", prompt: str, answer: str, output: Output
) -> Output:
    """Put the forward pass on the prompt before its completions."""
    from firth.cli.views.explanation import GENERATED, explained
    from firth.inference.explanation import explain_prompt

    found = explain_prompt(generator, generator.encode_prompt(prompt), answer=answer)
    values = {**output.values, "explanation": found.values()}
    return Output(values, chain(explained(found, model), [GENERATED], output.view))


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
            shown = encoded.text + "\n" * generator.chat
            yield from view.streamed(shown, generator.stream(prompt))
        else:
            yield from view.completed(completed())

    values = {
        "prompt": encoded.text,
        "completions": lambda: [one.values() for one in completed().completions],
        "notes": list(encoded.notes),
    }
    return Output(values, shown())


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
