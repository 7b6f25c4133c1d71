"""The command line: one verb per capability, thin.

A verb takes its options, calls the Python function of the same name and returns an `Output`: the
values for `--json` and a view of them for people. Results go to stdout, progress and errors to
stderr. Heavy imports stay inside the verbs, so that `firth --help` answers at once.
"""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import firth
from firth.commands import blank_verbs, prompt_verbs, task_verbs, text_verbs, vector_verbs
from firth.commands.verbs import AnyModel, Group, Output, assignments, verb
from firth.errors import Misuse

if TYPE_CHECKING:
    from firth.text.readers import Reading

Option, Argument = typer.Option, typer.Argument

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokenizer_app = typer.Typer(
    cls=Group, help="Train tokenizers and look at them.", no_args_is_help=True
)
app.add_typer(tokenizer_app, name="tokenizer")


def _version(asked: bool) -> None:
    if asked:
        print(f"firth {firth.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        Option("--version", help="Say which version this is.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Firth: pre-train once, adapt many times."""


# ---- options that several verbs share ---------------------------------------------------------


class Documents(StrEnum):
    block = "block"
    line = "line"
    file = "file"


Paths = Annotated[
    list[str],
    Argument(
        metavar="PATHS...",
        help="Files (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), folders, globs, "
        "- for standard input, datasets:NAME.",
    ),
]
DocumentsAre = Annotated[
    Documents, Option(help="Plain text: one document per block between blank lines, line or file.")
]
Column = Annotated[
    str, Option(help="The field of JSONL, CSV and Parquet rows that holds the text.")
]
Format = Annotated[
    str | None,
    Option(help="What standard input, or a file of unknown ending, holds: txt, jsonl, …"),
]
Strict = Annotated[bool, Option("--strict", help="Refuse bytes that are not UTF-8.")]
NoClean = Annotated[bool, Option("--no-clean", help="Take the text exactly as it is.")]
Workers = Annotated[int | None, Option(min=1, help="Processes; all cores unless given.")]


def _reading(documents: Documents, column: str, format: str | None, strict: bool) -> "Reading":
    from firth.text.readers import FORMATS, Reading

    if format and format not in FORMATS:
        raise Misuse(f"--format {format} is not known; there are {', '.join(FORMATS)}.")
    return Reading(documents=documents.value, column=column, format=format, strict=strict)


# ---- verbs ------------------------------------------------------------------------------------


@verb(app, "demo")
def demo(
    out: Annotated[Path, Option(help="Where what it makes is left.")] = Path("firth-demo"),
    minutes: Annotated[float, Option(min=0.01, help="How long the three networks learn.")] = 3.6,
    words: Annotated[int, Option(min=1000, help="How many words of stories, about.")] = 1_000_000,
    seed: Annotated[int, Option(help="Another seed, other networks.")] = 0,
) -> Output:
    """Tell the whole story on the embedded corpus, with results to look at."""
    from firth import tour
    from firth.commands import terminal, tour_views

    with terminal.progress(stages=True) as progress:
        made = tour.demo(out, minutes=minutes, words=words, seed=seed, progress=progress)
    return Output(made.values(), tour_views.tour(made))


@verb(app, "stories")
def stories(
    out: Annotated[Path, Argument(metavar="OUT", help="The directory to write.")],
    words: Annotated[int, Option(min=1, help="How many words, about, in all.")] = 1_000_000,
    seed: Annotated[int, Option(help="Another seed tells other stories.")] = 0,
) -> Output:
    """Write the embedded corpus: stories of a small world, and labelled examples for each task."""
    from firth.commands import terminal
    from firth.text.stories import write_stories

    with terminal.progress() as progress:
        summary = write_stories(out, words=words, seed=seed, progress=progress)
    return Output(asdict(summary), terminal.stories(summary))


@verb(tokenizer_app, "train")
def tokenizer_train(
    paths: Paths,
    kind: Annotated[str, Option(help="wordpiece, bpe, bpe-word, unigram or char.")],
    vocab_size: Annotated[int, Option(min=1, help="Tokens in all, special ones included.")],
    out: Annotated[Path, Option(help="The directory to write.")],
    lowercase: Annotated[
        bool, Option("--lowercase", help="Lower case first; with wordpiece, as BERT: no accents.")
    ] = False,
    min_frequency: Annotated[int, Option(min=0, help="Rarer pairs are not merged.")] = 2,
    specials: Annotated[
        str | None, Option(help="Special tokens of bert, roberta, gpt1, gpt2, t5 or elmo.")
    ] = None,
    sentinels: Annotated[int, Option(min=0, help="So many <extra_id_…>; T5 has 100.")] = 0,
    documents: DocumentsAre = Documents.block,
    column: Column = "text",
    format: Format = None,
    strict: Strict = False,
    no_clean: NoClean = False,
    workers: Workers = None,
) -> Output:
    """Learn a vocabulary from text."""
    from firth.commands import terminal
    from firth.text.vocabulary import train_tokenizer

    if out.is_file():
        raise Misuse(f"{out} is a file; a tokenizer needs a directory.")
    with terminal.progress() as progress:
        tokenizer, report = train_tokenizer(
            paths,
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            min_frequency=min_frequency,
            specials=specials,
            sentinels=sentinels,
            reading=_reading(documents, column, format, strict),
            clean=not no_clean,
            workers=workers,
            progress=progress,
        )
        tokenizer.save(out)
    values = {"out": str(out), "kind": kind, "vocab_size": len(tokenizer), **report.as_dict()}
    done = f"A {kind} vocabulary of {len(tokenizer):,} tokens is in {out}."
    return Output(values, [terminal.report(report), done])


@verb(tokenizer_app, "show")
def tokenizer_show(
    directories: Annotated[list[Path], Argument(metavar="DIR...", help="Tokenizers to compare.")],
    text: Annotated[list[str], Option(help="A text to cut; may be given several times.")],
) -> Output:
    """Draw how tokenizers cut a text: pieces, ids, tokens per word, unknown tokens."""
    from firth.commands import terminal
    from firth.text.tokenizer import Tokenizer

    tokenizers = {str(path): Tokenizer.load(path) for path in directories}
    text = [t.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for t in text]
    values = [
        {
            "tokenizer": name,
            "kind": tokenizer.kind,
            "vocab_size": len(tokenizer),
            "texts": [
                {"text": t, "tokens": [p.token for p in pieces], "ids": [p.id for p in pieces]}
                for t in text
                for pieces in [tokenizer.pieces(t)]
            ],
            **asdict(coverage),
            "fertility": coverage.fertility,
            "unknown_rate": coverage.unknown_rate,
        }
        for name, tokenizer in tokenizers.items()
        for coverage in [tokenizer.coverage(text)]
    ]
    return Output({"tokenizers": values}, terminal.tokenizers(tokenizers, text))


@verb(app, "prepare", opens_models=True)
def prepare(
    paths: Paths,
    tokenizer: Annotated[
        str,
        Option(
            metavar="MODEL",
            help="The directory of a tokenizer, or any model with one to go on from.",
        ),
    ],
    out: Annotated[Path, Option(help="The directory to write.")],
    valid: Annotated[
        list[str] | None, Option(help="Text for validation; may be given several times.")
    ] = None,
    valid_fraction: Annotated[
        float | None, Option(help="The share of documents kept for validation; 0.01 if not given.")
    ] = None,
    dedup: Annotated[
        bool, Option("--dedup", help="Leave out exact and near copies of earlier documents.")
    ] = False,
    documents: DocumentsAre = Documents.block,
    column: Column = "text",
    format: Format = None,
    strict: Strict = False,
    no_clean: NoClean = False,
    shard_tokens: Annotated[int, Option(min=1, help="Tokens in a shard, about.")] = 1 << 24,
    workers: Workers = None,
) -> Output:
    """Tokenise text into shards for training; interrupted and started again, it continues."""
    from firth.commands import terminal
    from firth.text.preparation import prepare

    with terminal.progress() as progress:
        prepared = prepare(
            paths,
            tokenizer=tokenizer,
            out=out,
            valid=valid or (),
            valid_fraction=valid_fraction,
            dedup=dedup,
            reading=_reading(documents, column, format, strict),
            clean=not no_clean,
            shard_tokens=shard_tokens,
            workers=workers,
            progress=progress,
        )
    values = {
        "out": str(out),
        "resumed": prepared.resumed,
        "splits": prepared.splits,
        **prepared.report.as_dict(),
    }
    return Output(values, terminal.prepared(prepared))


@verb(app, "objectives")
def objectives(
    data: Annotated[
        Path | None, Option(help="Shards: show what each objective makes of their text.")
    ] = None,
    objective: Annotated[
        list[str] | None, Option(help="Only this one; may be given several times.")
    ] = None,
    length: Annotated[int, Option(min=1, help="Tokens of a sequence.")] = 32,
    seed: Annotated[int, Option(help="Another seed, another example.")] = 0,
) -> Output:
    """List the pre-training objectives; with --data, show each as coloured text."""
    from firth.commands import terminal
    from firth.objectives.show import show_objectives
    from firth.objectives.table import OBJECTIVES
    from firth.text.shards import Shards

    if data is None and objective:
        raise Misuse("--objective chooses what to show of --data: give both.")
    if data is None:
        rows = [
            {"objective": name, "about": row.about, "source": row.source}
            | {"architectures": row.architectures}
            for name, row in OBJECTIVES.items()
        ]
        return Output({"objectives": rows}, [terminal.objective_table()])
    examples, reasons = show_objectives(Shards(data), objective or (), length=length, seed=seed)
    values = {"examples": [example.values() for example in examples], "missing": reasons}
    return Output(values, terminal.objectives(examples, reasons))


@verb(app, "pretrain", opens_models=True)
def pretrain(
    data: Annotated[Path, Option(help="Shards that `firth prepare` made.")],
    out: Annotated[Path, Option(help="The run directory to write.")],
    preset: Annotated[
        str | None, Option(help="The network: see `firth presets`; with --from, that model's.")
    ] = None,
    objective: Annotated[
        str | None, Option(help="What is hidden and asked for: see `firth objectives`.")
    ] = None,
    steps: Annotated[int, Option(min=0, help="Learn for so many steps,")] = 0,
    tokens: Annotated[str, Option(help="or so many tokens (10M and 1e7 will do),")] = "0",
    minutes: Annotated[float, Option(min=0, help="or so many minutes.")] = 0.0,
    from_: Annotated[
        str | None, Option("--from", metavar="MODEL", help="Go on from this model, on new text.")
    ] = None,
    teacher: Annotated[
        str | None, Option(metavar="MODEL", help="Learn from this larger model as well.")
    ] = None,
    seed: Annotated[int, Option(help="Another seed, another run.")] = 0,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting (rate, batch, length, …), model.FIELD or objective.OPTION.",
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Go on where this run stopped.")] = False,
) -> Output:
    """Teach a network a text, from nothing or from another model."""
    from firth.commands import terminal
    from firth.pretraining import pretrain

    with terminal.training() as listener:
        trained = pretrain(
            preset=preset,
            data=data,
            out=out,
            objective=objective,
            steps=steps,
            tokens=_count(tokens),
            minutes=minutes,
            source=from_,
            teacher=teacher,
            seed=seed,
            changes=assignments(set_ or [], "--set", "rate=1e-3"),
            resume=resume,
            listener=listener,
        )
    return Output(trained.values(), terminal.trained(trained))


def _count(text: str) -> int:
    """A number that may be written 10M or 1e7."""
    factors = {"k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
    factor = factors.get(text[-1:], 1)
    try:
        count = float(text[:-1] if factor > 1 else text) * factor
        if count < 0 or count != int(count):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise Misuse(f"--tokens is a number such as 5000000, 5M or 5e6, not {text!r}.") from error
    return int(count)


@verb(app, "presets")
def presets(
    name: Annotated[str | None, Argument(help="Show this one with all its fields.")] = None,
) -> Output:
    """List the models that can be pre-trained: shapes with their sources."""
    from firth.commands import terminal
    from firth.models.presets import PRESETS, preset

    if name is not None:
        row = preset(name)
        return Output(row.values() | {"config": row.config.to_dict()}, terminal.preset(row))
    rows = list(PRESETS.values())
    return Output({"presets": [row.values() for row in rows]}, [terminal.presets(rows)])


verb(app, "tasks")(task_verbs.tasks)
verb(app, "finetune", opens_models=True)(task_verbs.finetune)
verb(app, "evaluate", opens_models=True)(task_verbs.evaluate)
verb(app, "predict", opens_models=True)(task_verbs.predict)
verb(app, "prompt", opens_models=True)(prompt_verbs.prompt)
verb(app, "generate", opens_models=True)(text_verbs.generate)
verb(app, "fill", opens_models=True)(blank_verbs.fill)
verb(app, "embed", opens_models=True)(vector_verbs.embed)
verb(app, "search", opens_models=True)(vector_verbs.search)


@verb(app, "export", opens_models=True)
def export(
    model: AnyModel,
    out: Annotated[Path, Argument(metavar="OUT", help="The directory to write.")],
    to: Annotated[str, Option(help="hf: a Hugging Face checkpoint.")] = "hf",
) -> Output:
    """Write a model as the rest of the world opens it."""
    from firth.model import export

    family = export(model, out, to=to)
    done = f"{out} is a {family} checkpoint; transformers.AutoModel.from_pretrained opens it."
    return Output({"out": str(out), "family": family}, [done])


def main() -> None:
    """The `firth` command."""
    app(prog_name="firth")
