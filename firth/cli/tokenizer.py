"""`firth tokenizer`: train tokenizers, and compare how they split a text."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from firth.cli.options import (
    Argument,
    DataOption,
    Documents,
    DocumentUnit,
    Format,
    ModelOption,
    NoClean,
    OutputOption,
    Paths,
    Strict,
    TextColumn,
    Workers,
    read_options,
    terminal_text,
)
from firth.cli.verbs import Output
from firth.utils.errors import UsageError

TRAIN_EXAMPLES = (
    "firth tokenizer train corpus/*.txt --kind wordpiece --vocab-size 30000 --lowercase "
    "--out runs/wordpiece",
    "firth tokenizer train corpus.jsonl.gz --kind bpe --vocab-size 50000 --out runs/bpe",
)
SHOW_EXAMPLES = (
    "firth tokenizer show runs/wordpiece --text unhappiness",
    'firth tokenizer show runs/wordpiece runs/bpe --text "COVID-19 was taaaaasty"',
)


def train(
    paths: Paths,
    kind: Annotated[
        str, ModelOption(help="Algorithm: wordpiece, bpe (bytes), bpe-word, unigram or char.")
    ],
    vocab_size: Annotated[
        int, ModelOption(min=1, help="Vocabulary size in tokens, special tokens included.")
    ],
    out: Annotated[Path, OutputOption(help="Directory to write.")],
    lowercase: Annotated[
        bool,
        ModelOption("--lowercase", help="Lower-case the text; wordpiece also strips accents."),
    ] = False,
    min_frequency: Annotated[
        int, ModelOption(min=0, help="Merge only pairs that occur at least this often.")
    ] = 2,
    specials: Annotated[
        str | None,
        ModelOption(
            help="Special tokens of bert, roberta, gpt1, gpt2, t5 or elmo. Default: those usual "
            "for --kind."
        ),
    ] = None,
    sentinels: Annotated[
        int, ModelOption(min=0, help="Number of sentinel tokens <extra_id_N>; T5 has 100.")
    ] = 0,
    documents: Documents = DocumentUnit.block,
    column: TextColumn = "text",
    format: Format = None,
    strict: Strict = False,
    no_clean: NoClean = False,
    workers: Workers = None,
) -> Output:
    """Train a tokenizer on text."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.tokenizers.trainer import train_tokenizer

    if out.is_file():
        raise UsageError(f"{out} is a file; a tokenizer needs a directory.")
    with terminal.progress() as progress:
        tokenizer, report = train_tokenizer(
            paths,
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            min_frequency=min_frequency,
            specials=specials,
            sentinels=sentinels,
            reading=read_options(column, format, documents, strict),
            clean=not no_clean,
            workers=workers,
            progress=progress,
        )
        tokenizer.save(out)
    values = {"out": str(out), "kind": kind, "vocab_size": len(tokenizer), **report.as_dict()}
    saved = f"Saved a {kind} tokenizer with {len(tokenizer):,} tokens in {out}."
    return Output(values, [view.report(report), saved])


def show(
    directories: Annotated[
        list[Path], Argument(metavar="DIR...", help="Directories of the tokenizers to compare.")
    ],
    text: Annotated[list[str], DataOption(help="Text to tokenize; repeatable.")],
) -> Output:
    """Compare tokenizers on a text: tokens, ids, tokens per word, unknown tokens."""
    from firth.cli.views import tokenizers as view
    from firth.tokenizers.tokenizer import Tokenizer

    tokenizers = {str(path): Tokenizer.load(path) for path in directories}
    text = [terminal_text(one) for one in text]
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
    return Output({"tokenizers": values}, view.tokenizers(tokenizers, text))
