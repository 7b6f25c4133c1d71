"""`firth tokenizer`: train tokenizers, and compare how they split a text."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.errors import UsageError
from firth.utils.outputs import check_output

TRAIN_EXAMPLES = (
    "firth tokenizer train corpus/*.txt --kind wordpiece --vocab-size 30000 --lowercase "
    "--out runs/wordpiece",
    "firth tokenizer train corpus.jsonl.gz --kind bpe --vocab-size 50000 --out runs/bpe",
)
SHOW_EXAMPLES = (
    "firth tokenizer show runs/wordpiece --text unhappiness",
    'firth tokenizer show runs/wordpiece runs/bpe --text "COVID-19 was taaaaasty"',
)


@options.with_options(options.TextOptions, panel="Data")
def train(
    paths: list[str] = options.PATHS,
    kind: str = options.ModelOption(
        ..., help="Algorithm: wordpiece, bpe (bytes), bpe-word, unigram or char."
    ),
    vocab_size: int = options.ModelOption(
        ..., min=1, help="Vocabulary size in tokens, special tokens included."
    ),
    lowercase: bool = options.ModelOption(
        False, "--lowercase", help="Lower-case the text; accents and tone marks are kept."
    ),
    strip_accents: bool = options.ModelOption(
        False,
        "--strip-accents",
        help="Remove accents and tone marks, as BERT's uncased models do (with --lowercase).",
    ),
    min_frequency: int = options.ModelOption(
        2, min=0, help="Merge only pairs that occur at least this often."
    ),
    specials: str | None = options.ModelOption(
        None,
        help="Special tokens of bert, roberta, gpt1, gpt2, t5 or elmo. Default: those usual for "
        "--kind.",
    ),
    sentinels: int = options.ModelOption(
        0, min=0, help="Number of sentinel tokens <extra_id_N>; T5 has 100."
    ),
    mixture_alpha: float | None = options.DataOption(
        None,
        help="Weight named sources in proportion to their number of words to this power, from 0 "
        "(all equal) to 1 (as they are); XLM-R uses 0.3. Default: as they are.",
    ),
    out: Path = options.OutputOption(..., help="Directory to write."),
    overwrite: bool = options.OVERWRITE,
    **text: Any,
) -> Output:
    """Train a tokenizer on text."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.tokenizers.trainer import train_tokenizer

    if out.is_file():
        raise UsageError(f"{out} is a file; a tokenizer needs a directory.")
    check_output(out, overwrite)
    with terminal.progress() as progress:
        tokenizer, report = train_tokenizer(
            options.named_paths(paths, text["column"]),
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            strip_accents=strip_accents,
            min_frequency=min_frequency,
            specials=specials,
            sentinels=sentinels,
            mixture_alpha=mixture_alpha,
            progress=progress,
            **options.TextOptions(**text).arguments(),
        )
        tokenizer.save(out)
    values = {"out": str(out), "kind": kind, "vocab_size": len(tokenizer), **report.as_dict()}
    saved = f"Saved a {kind} tokenizer with {len(tokenizer):,} tokens in {out}."
    return Output(values, [view.report(report), *report.notes, saved])


def show(
    directories: list[Path] = options.Argument(
        ..., metavar="DIR...", help="Directories of the tokenizers to compare."
    ),
    text: list[str] = options.DataOption(
        ..., "--text", metavar="TEXT", help="Text to tokenize; repeatable."
    ),
) -> Output:
    """Compare tokenizers on a text: tokens, ids, tokens per word, unknown tokens."""
    from firth.cli.views import tokenizers as view
    from firth.tokenizers.tokenizer import Tokenizer

    tokenizers = {str(path): Tokenizer.load(path) for path in directories}
    text = [options.terminal_text(one) for one in text]
    values = []
    for name, tokenizer in tokenizers.items():
        coverage = tokenizer.coverage(text)
        split = [(one, tokenizer.pieces(one)) for one in text]
        texts = [
            {"text": one, "tokens": [p.token for p in pieces], "ids": [p.id for p in pieces]}
            for one, pieces in split
        ]
        own = {"tokenizer": name, "kind": tokenizer.kind, "vocab_size": len(tokenizer)}
        rates = {"fertility": coverage.fertility, "unknown_rate": coverage.unknown_rate}
        values.append({**own, "texts": texts, **asdict(coverage), **rates})
    return Output({"tokenizers": values}, view.tokenizers(tokenizers, text))
