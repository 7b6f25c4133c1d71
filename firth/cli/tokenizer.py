"""`firth tokenizer`: train tokenizers, and compare how they split a text."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.errors import FirthError, InputError, UsageError
from firth.utils.outputs import check_output

if TYPE_CHECKING:
    from firth.tokenizers.bpe import MergeStep
    from firth.tokenizers.tokenizer import Tokenizer
    from firth.tokenizers.unigram import PruningRound

TRAIN_EXAMPLES = (
    "firth tokenizer train corpus/*.txt --kind wordpiece --vocab-size 30000 --lowercase "
    "--out runs/wordpiece",
    "firth tokenizer train corpus.jsonl.gz --kind bpe --vocab-size 50000 --out runs/bpe",
    "firth tokenizer train small.txt --kind bpe-word --vocab-size 30 --trace --out runs/small",
    "firth tokenizer train corpus/*.txt --kind word --min-frequency 5 --lowercase --out runs/words",
)
SHOW_EXAMPLES = (
    "firth tokenizer show runs/wordpiece",
    "firth tokenizer show runs/wordpiece --text unhappiness",
    'firth tokenizer show runs/wordpiece runs/bpe --text "COVID-19 was taaaaasty"',
)


@options.with_options(options.TextOptions, panel="Data")
def train(
    paths: list[str] = options.PATHS,
    kind: str = options.ModelOption(
        ..., help="Algorithm: wordpiece, bpe (bytes), bpe-word, unigram, char or word."
    ),
    vocab_size: int | None = options.ModelOption(
        None,
        min=1,
        help="Vocabulary size in tokens, special tokens included; required, but for word, where it "
        "is a maximum. Default of word: all words that occur --min-frequency times.",
    ),
    lowercase: bool = options.ModelOption(
        False, "--lowercase", help="Lower-case the text; accents and tone marks are kept."
    ),
    strip_accents: bool = options.ModelOption(
        False,
        "--strip-accents",
        help="Remove accents and tone marks, as BERT's uncased models do (with --lowercase).",
    ),
    add_prefix_space: bool = options.ModelOption(
        False,
        "--add-prefix-space",
        help="--kind bpe: encode a text with a space before it, so that its first word is the same "
        "token as inside a text.",
    ),
    min_frequency: int = options.ModelOption(
        2,
        min=0,
        help="Minimum count of a pair to be merged, or of a word (--kind word).",
    ),
    specials: str | None = options.ModelOption(
        None,
        help="Special tokens of bert, roberta, gpt1, gpt2, t5, elmo or word. Default: those usual "
        "for --kind.",
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
    engine: str = options.ENGINE,
    trace: bool = options.OutputOption(
        False,
        "--trace",
        help="Show the training step by step: merges with their counts, or rounds of pruning.",
    ),
    trace_steps: int = options.OutputOption(
        30, min=0, help="Number of steps that --trace shows; 0: all, as with --json."
    ),
    **text: Any,
) -> Output:
    """Train a tokenizer on text."""
    from firth.cli import terminal
    from firth.cli.views import data as view
    from firth.cli.views import tokenizer_training as trace_view
    from firth.tokenizers.trainer import train_tokenizer

    if out.is_file():
        raise UsageError(f"{out} is a file; a tokenizer needs a directory.")
    check_output(out, overwrite)
    steps: list[MergeStep | PruningRound] = []
    with terminal.progress() as progress:
        tokenizer, report = train_tokenizer(
            options.named_paths(paths, text["column"]),
            kind=kind,
            vocab_size=vocab_size,
            lowercase=lowercase,
            strip_accents=strip_accents,
            add_prefix_space=add_prefix_space,
            min_frequency=min_frequency,
            specials=specials,
            sentinels=sentinels,
            mixture_alpha=mixture_alpha,
            engine=engine,
            trace=steps.append if trace else None,
            progress=progress,
            **options.TextOptions(**text).arguments(),
        )
        tokenizer.save(out)
    values: dict[str, Any] = {
        "out": str(out),
        "kind": kind,
        "vocab_size": len(tokenizer),
        **report.as_dict(),
    }
    saved = f"Saved a {kind} tokenizer with {len(tokenizer):,} tokens in {out}."
    shown: list[Any] = []
    if trace:
        values["trace"] = trace_view.values(steps, kind)
        shown = trace_view.trace(steps, kind, tokenizer, trace_steps or len(steps))
    return Output(values, [view.report(report), *report.notes, *shown, saved])


def show(
    models: list[str] = options.Argument(
        ..., metavar="MODEL...", help=f"Tokenizers, or models with one. {options.MODEL_HELP}"
    ),
    text: list[str] | None = options.DataOption(
        None, "--text", metavar="TEXT", help="Text to tokenize; repeatable. Default: none."
    ),
) -> Output:
    """Describe tokenizers, and with --text compare how they split it."""
    from firth.cli.views import tokenizers as view
    from firth.tokenizers.description import describe_tokenizer

    tokenizers = {name: _load(name) for name in models}
    texts = [options.terminal_text(one) for one in text or ()]
    values = []
    for name, tokenizer in tokenizers.items():
        coverage = tokenizer.coverage(texts)
        split = [(one, tokenizer.pieces(one)) for one in texts]
        tokens = [
            {"text": one, "tokens": [p.token for p in pieces], "ids": [p.id for p in pieces]}
            for one, pieces in split
        ]
        values.append({"tokenizer": name, **asdict(describe_tokenizer(tokenizer))})
        if texts:
            rates = {"fertility": coverage.fertility, "unknown_rate": coverage.unknown_rate}
            values[-1] |= {"texts": tokens, **asdict(coverage), **rates}
    return Output({"tokenizers": values}, view.tokenizers(tokenizers, texts))


def _load(name: str) -> "Tokenizer":
    """Load the tokenizer of a model; a preset has none, which the error says."""
    from firth.formats.tokenizers.loading import load_tokenizer
    from firth.models.presets import PRESETS

    try:
        return load_tokenizer(name)
    except FirthError as error:
        if name not in PRESETS:
            raise
        size = PRESETS[name].config.vocab_size
        raise InputError(
            f"The preset {name} has a vocabulary of {size:,} tokens but no tokenizer: name a "
            f"model, or train one with `firth tokenizer train`. As a model: {error}"
        ) from error
