"""Minimal pairs: how often a model prefers the grammatical sentence (BLiMP).

A decoder scores each sentence by its log-probability, a masked model by its pseudo-log-likelihood,
both in 32 bits (matrix products on a GPU: TF32); a hybrid model by both, and by their sum
(`combined_accuracy`). `accuracy` compares sums, as Warstadt et al. (2020); `accuracy_mean` compares
means per token, which is fair for sentences of different length. A tie counts half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice

import numpy as np

from firth.data.input_files import find_sources
from firth.data.readers import ReadOptions
from firth.inference.scoring.token_scoring import check_language_head
from firth.metrics.bootstrap import Metric
from firth.metrics.language_modelling import preferences, proportions
from firth.models.transformer import max_text_length
from firth.tasks.readers.columns import TaskFile, good_examples, place
from firth.tasks.readers.examples import MinimalPair
from firth.tasks.readers.sentence_pairs import read_minimal_pairs
from firth.tasks.scoring_task import Parts, Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.tokenizers.tokenizer import encode_batch
from firth.utils.devices import fast_matmul
from firth.utils.errors import InputError
from firth.utils.rng import Bools, Floats
from firth.utils.streams import bounded_batches

BATCH_SENTENCES = 4096  # tokenized together
MAX_KINDS = 64  # categories whose intervals are computed together
METHODS = {True: "pseudo-log-likelihood", False: "log-likelihood"}


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute accuracy on all pairs, on each set and on each linguistic field."""
    check_language_head(scorer.network, scorer.name)
    sets = list(_sets(options))
    pairs = [pair for _, some in sets for pair in some]
    same = np.concatenate([_check(scorer, path, some) for path, some in sets])
    outcomes: dict[str, Floats] = {}
    for prefix, (sums, lengths) in _scored(scorer, pairs).items():  # (pairs, 2), good first
        means = sums / lengths
        for name, scores in (("accuracy", sums), ("accuracy_mean", means)):
            likelier = preferences(scores[:, 0], scores[:, 1])
            outcomes[prefix + name] = np.where(same, 0.5, likelier)
    kinds = {
        name: [getattr(pair, name) for pair in pairs] for name in ("category", "term", "field")
    }
    ties = int((outcomes["accuracy"] == 0.5).sum())
    return ScoringResult(
        n=len(pairs),
        metrics=proportions(outcomes),
        parts=_by_kind(outcomes, kinds["category"]),
        groups={name: _by_kind(outcomes, kinds[name]) for name in ("term", "field")},
        details={
            "method": METHODS[not scorer.config.has_decoder],
            "ties": ties,
            "sizes": dict(Counter(kinds["category"])),
        },
        notes=scorer.notes
        + ([f"{ties:,} of {len(pairs):,} pairs are ties, which count half."] if ties else []),
    )


def _sets(options: ScoringOptions) -> Iterator[tuple[str, list[MinimalPair]]]:
    """Read the pairs of each file."""
    sources, _ = find_sources([options.data], ReadOptions(format=options.format))
    for source in sources:
        format = None if source.guess_format or source.is_table else source.format
        path = options.data if source.is_table else source.name
        file = TaskFile(path, format, bad=options.bad)
        pairs = good_examples(read_minimal_pairs, file)
        yield source.name, list(islice(pairs, options.limit or None))


def _check(scorer: Scorer, path: str, pairs: Sequence[MinimalPair]) -> Bools:
    """Return which pairs have identical tokens; raise InputError for sentences that do not fit.

    Such pairs are ties by definition: sums of two batches may differ in their last bits.
    """
    ends = len(scorer.tokenizer.encode("", specials=not scorer.config.has_decoder))
    most = max_text_length(scorer.network) - max(ends, 2)
    same = []
    backend = scorer.tokenizer.backend
    for some in bounded_batches(pairs, lambda one: len(one.good), max_items=BATCH_SENTENCES):
        sides = ([pair.good for pair in some], [pair.bad for pair in some])
        both = (encode_batch(backend, texts) for texts in sides)
        for pair, good, bad in zip(some, *both, strict=True):
            shortest, longest = sorted((len(good.ids), len(bad.ids)))
            if longest > most or not shortest:
                reason = f"has {longest:,} tokens, more than the model's {most:,}"
                raise InputError(
                    f"{place(path, pair.line)}: a sentence "
                    f"{reason if shortest else 'has no tokens'}; remove the pair."
                )
            same.append(good.ids == bad.ids)
    return np.array(same, dtype=np.bool_)


def _scored(scorer: Scorer, pairs: Sequence[MinimalPair]) -> dict[str, tuple[Floats, Floats]]:
    """Compute log-likelihoods and numbers of tokens of all sentences with every method."""
    found: dict[str, tuple[Floats, Floats]] = {}
    for prefix, method in scorer.methods().items():
        sums, lengths = np.empty((2, 2 * len(pairs)))
        with fast_matmul(scorer.network.device):
            for i, score in enumerate(method(chain.from_iterable(pair.inputs for pair in pairs))):
                sums[i], lengths[i] = score.sum, max(1, score.tokens)
                if i % 256 == 255 or i + 1 == len(sums):
                    scorer.progress("sentences scored", i + 1, len(sums))
        found[prefix] = sums.reshape(-1, 2), lengths.reshape(-1, 2)
    if len(found) > 1:
        (left, left_lengths), (right, right_lengths) = found.values()
        found["combined_"] = left + right, left_lengths + right_lengths
    return found


def _by_kind(outcomes: Mapping[str, Floats], kinds: Sequence[str]) -> Parts:
    """Compute accuracies of each category; {} if the data have no categories."""
    names = list(dict.fromkeys(kinds))
    if names == [""]:
        return {}
    numbers = {name: i for i, name in enumerate(names)}
    each = np.array([numbers[kind] for kind in kinds])
    own = {name: np.flatnonzero(each == i) for name, i in numbers.items()}
    found: dict[tuple[str, str], Metric] = {}
    by_size = sorted(names, key=lambda name: len(own[name]))
    for _, same_size in groupby(by_size, lambda name: len(own[name])):
        # Computed together, they share the bootstrap's resamples.
        for some in bounded_batches(same_size, lambda name: 1, max_items=MAX_KINDS):
            columns = {(name, key): outcomes[key][own[name]] for name in some for key in outcomes}
            found |= proportions(columns)
    return {name or "other": {key: found[name, key] for key in outcomes} for name in names}


MINIMAL_PAIRS = ScoringTask(
    about="which of two sentences is grammatical (BLiMP)",
    columns="sentence_good, sentence_bad",
    metric="accuracy",
    architectures=("encoder", "decoder"),
    options=("by_word", "temperature"),
    folders=True,
    run=measure,
)
