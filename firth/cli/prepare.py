"""`firth prepare`: clean and tokenize text into shards for pre-training."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = (
    "firth prepare corpus/*.txt --tokenizer runs/wordpiece --out runs/shards --dedup",
    "firth prepare train.jsonl --valid dev.jsonl --tokenizer bert-base-uncased --out runs/shards",
    "firth prepare en=english.txt ha=hausa.jsonl.gz,news/ --tokenizer runs/bpe --out runs/shards",
)


@options.with_options(options.TextOptions, panel="Data")
def prepare(
    paths: list[str] = options.PATHS,
    valid: list[str] | None = options.DataOption(
        None, metavar="PATH", help="Text for the validation split; repeatable. Default: none."
    ),
    valid_fraction: float | None = options.DataOption(
        None,
        help="Fraction of the documents held out for validation. Default: 0.01, or 0 with --valid.",
    ),
    dedup: bool = options.DataOption(
        False, "--dedup", help="Remove exact and near duplicates of earlier documents."
    ),
    tokenizer: str = options.ModelOption(
        ..., metavar="MODEL", help="Tokenizer directory, or a model with a tokenizer."
    ),
    out: str = options.OutputOption(
        ..., metavar="PATH", help="Directory to write, or a URL such as s3://bucket/shards."
    ),
    shard_tokens: int = options.OutputOption(
        1 << 24, min=1, help="Approximate size of a shard in tokens."
    ),
    engine: str = options.ENGINE,
    parts: int | None = options.OutputOption(
        None,
        min=1,
        max=99_999,
        help="Number of parts of --engine ray. Default: that of an interrupted run, or one for "
        "each 32 MiB, at most 8 per file.",
    ),
    part: str | None = options.OutputOption(
        None,
        metavar="I/N",
        help="Prepare only part I of N, on any machine, in OUT.parts; then join them with --merge. "
        "Default: all.",
    ),
    merge: bool = options.OutputOption(
        False,
        "--merge",
        help="Join the parts in OUT.parts into shards. With --dedup, run all --part and --merge "
        "twice: the first --merge finds the duplicates.",
    ),
    **text: Any,
) -> Output:
    """Clean, deduplicate and tokenize text into shards; an interrupted run continues."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.jobs.preparation import prepare

    with terminal.progress() as progress:
        prepared = prepare(
            options.named_paths(paths, text["column"]),
            tokenizer=tokenizer,
            out=out,
            valid=options.named_paths(valid or [], text["column"]),
            valid_fraction=valid_fraction,
            dedup=dedup,
            shard_tokens=shard_tokens,
            engine=engine,
            parts=parts,
            part=part,
            merge=merge,
            progress=progress,
            **options.TextOptions(**text).arguments(),
        )
    place = out if prepared.stage == "shards" else prepared.url or str(prepared.path)
    values = {"out": place, "stage": prepared.stage, "resumed": prepared.resumed}
    values |= {"splits": prepared.splits}
    if prepared.sources:
        values["sources"] = prepared.sources
    return Output(values | prepared.report.as_dict(), view.prepared(prepared))
