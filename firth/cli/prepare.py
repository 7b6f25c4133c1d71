"""`firth prepare`: clean and tokenize text into shards for pre-training."""

from pathlib import Path
from typing import Annotated

from firth.cli.options import (
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
)
from firth.cli.verbs import Output

EXAMPLES = (
    "firth prepare corpus/*.txt --tokenizer runs/wordpiece --out runs/shards --dedup",
    "firth prepare train.jsonl --valid dev.jsonl --tokenizer bert-base-uncased --out runs/shards",
)


def prepare(
    paths: Paths,
    tokenizer: Annotated[
        str,
        ModelOption(metavar="MODEL", help="Tokenizer directory, or a model with a tokenizer."),
    ],
    out: Annotated[Path, OutputOption(help="Directory to write.")],
    valid: Annotated[
        list[str] | None, DataOption(help="Text for the validation split; repeatable.")
    ] = None,
    valid_fraction: Annotated[
        float | None,
        DataOption(
            help="Fraction of the documents held out for validation. Default: 0.01, or 0 with "
            "--valid."
        ),
    ] = None,
    dedup: Annotated[
        bool, DataOption("--dedup", help="Remove exact and near duplicates of earlier documents.")
    ] = False,
    documents: Documents = DocumentUnit.block,
    column: TextColumn = "text",
    format: Format = None,
    strict: Strict = False,
    no_clean: NoClean = False,
    shard_tokens: Annotated[
        int, OutputOption(min=1, help="Approximate size of a shard in tokens.")
    ] = 1 << 24,
    workers: Workers = None,
) -> Output:
    """Clean, deduplicate and tokenize text into shards; an interrupted run continues."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.jobs.preparation import prepare

    with terminal.progress() as progress:
        prepared = prepare(
            paths,
            tokenizer=tokenizer,
            out=out,
            valid=valid or (),
            valid_fraction=valid_fraction,
            dedup=dedup,
            reading=read_options(column, format, documents, strict),
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
    return Output(values, view.prepared(prepared))
