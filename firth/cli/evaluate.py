"""`firth evaluate`: compute the metrics of a model on labelled examples, text or a suite."""

from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.utils.config_fields import flag
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth evaluate runs/sentiment --data test.tsv",
    "firth evaluate runs/seed-0 runs/seed-1 runs/seed-2 --data test.tsv --ensemble",
    "firth evaluate gpt2 --task lm --convention wikitext --data wiki.test.tokens",
)


def evaluate(
    models: list[str] = options.Argument(
        ...,
        metavar="MODEL...",
        help=options.MODEL_HELP + " Several models: one table, or their average with --ensemble.",
    ),
    data: str = options.DataOption(
        ..., help="File of labelled examples, a text file, or the folder of a suite."
    ),
    task: str | None = options.DataOption(
        None,
        help="Task; lm, last-word, minimal-pairs and choice work with any language model, "
        "similarity and analogies with word vectors and any network, next-sentence, sentence-order "
        "and replaced with such a head. Default: the task the model was trained for.",
    ),
    ensemble: bool = options.DataOption(
        False,
        "--ensemble",
        help="Evaluate the averaged predictions of several models instead of each model.",
    ),
    suite: str | None = options.DataOption(
        None, help="glue, lm or blimp: all files of the folder, with the average. Default: none."
    ),
    convention: str = options.DataOption(
        "",
        help="lm: preprocessing and unit of perplexity: plain, wikitext, ptb or enwik8. Default: "
        "plain.",
    ),
    context: int = options.DataOption(
        0, min=0, help="lm: window size in tokens; 0: 1024, or the model's maximum if shorter."
    ),
    stride: int = options.DataOption(
        0, min=0, help="lm: tokens between windows; 0: half of --context."
    ),
    by_word: bool = options.DataOption(
        False,
        "--by-word",
        help="minimal-pairs, masked models: mask also the following tokens of the same word.",
    ),
    temperature: float | None = options.DataOption(
        None, help="minimal-pairs: divide logits by this temperature. Default: 1."
    ),
    limit: int = options.DataOption(
        0,
        min=0,
        help="Use at most this many examples, stratified by label (evaluation-only tasks: the "
        "first ones); 0: all.",
    ),
    columns: list[str] | None = options.COLUMNS,
    format: str | None = options.FORMAT,
    strict: bool = options.STRICT,
    weights: str | None = options.WEIGHTS,
    device: str | None = options.DEVICE,
) -> Output:
    """Compute the metrics of one or more models, with 95 % confidence intervals."""
    from firth.cli import terminal
    from firth.cli.views import tasks as view
    from firth.jobs.evaluation import evaluate
    from firth.jobs.suites import evaluate_suite

    shared: dict[str, Any] = {
        "data": data,
        "limit": limit,
        "by_word": by_word,
        "temperature": temperature,
        "device": device,
    }
    file_options: dict[str, Any] = {
        "task": task,
        "ensemble": ensemble,
        "convention": convention,
        "context": context,
        "stride": stride,
        "columns": options.column_names(columns),
        "format": format,
        "strict": strict,
        "weights": weights,
    }
    with terminal.progress() as progress:
        if suite is None:
            found = evaluate(
                models[0] if len(models) == 1 else models,
                progress=progress,
                **shared,
                **file_options,
            )
            return Output(found.values(), view.evaluation(found))
        if given := [name for name, value in file_options.items() if value]:
            raise UsageError(f"{flag(given[0])} is for a single file: omit it with --suite.")
        if len(models) > 1:
            raise UsageError(f"--suite evaluates one model, not {len(models)}.")
        table = evaluate_suite(models[0], suite, progress=progress, **shared)
    return Output(table.values(), view.suite(table))
