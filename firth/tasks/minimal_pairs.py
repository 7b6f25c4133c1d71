"""Pairs of sentences that differ in one thing: does a model find the right one likelier? (BLiMP)

A decoder is asked for the log-probability of each sentence, a masked model for its pseudo-log-
likelihood, in 32 bits. Compared are the sums, as Warstadt et al. (2020) do, and the means for each
token, which are fair where the sentences differ in length. A tie counts half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from firth.adapt.prompts import room
from firth.draws import Bools, Floats
from firth.errors import InputError
from firth.inference.rows import check_head
from firth.metrics.language import Rate, preferences, rates
from firth.tasks.reading.columns import place
from firth.tasks.reading.examples import MinimalPair
from firth.tasks.reading.judged import read_minimal_pairs
from firth.tasks.scoring import Asking, Measure, Measured, Parts, Scorer
from firth.text.readers import Reading, find_sources

AT_ONCE = 4096  # sentences that are tokenised together
METHODS = {True: "pseudo-log-likelihood", False: "log-likelihood"}


def measure(scorer: Scorer, asking: Asking) -> Measured:
    """How often the good sentence of a pair is likelier: in all, in each set, in each field."""
    check_head(scorer.network, scorer.name)
    sets = list(_sets(asking))
    pairs = [pair for _, some in sets for pair in some]
    same = np.concatenate([_check(scorer, path, some) for path, some in sets])
    outcomes: dict[str, Floats] = {}
    for prefix, found in _scored(scorer, pairs).items():
        sums, lengths = found  # (pairs, 2) each, the good one first
        means = sums / lengths
        for name, each in (("accuracy", sums), ("accuracy_mean", means)):
            likelier = preferences(each[:, 0], each[:, 1])
            outcomes[prefix + name] = np.where(same, 0.5, likelier)
    kinds = {
        name: [getattr(pair, name) for pair in pairs] for name in ("category", "term", "field")
    }
    ties = int((outcomes["accuracy"] == 0.5).sum())
    return Measured(
        n=len(pairs),
        figures=rates(outcomes),
        parts=_by_kind(outcomes, kinds["category"]),
        groups={name: _by_kind(outcomes, kinds[name]) for name in ("term", "field")},
        details={
            "method": METHODS[not scorer.config.has_decoder],
            "ties": ties,
            "sizes": dict(Counter(kinds["category"])),
        },
        notes=scorer.notes
        + ([f"{ties:,} of {len(pairs):,} pairs tie: half each."] if ties else []),
    )


def _sets(asking: Asking) -> Iterator[tuple[str, list[MinimalPair]]]:
    """The pairs of each file."""
    sources, _ = find_sources([asking.data], Reading(format=asking.format))
    for source in sources:
        said = None if source.unsaid else source.format
        read = read_minimal_pairs(source.name, format=said, limit=asking.limit)
        yield source.name, read


def _check(scorer: Scorer, path: str, pairs: Sequence[MinimalPair]) -> Bools:
    """Which pairs are two times the same to the model; a sentence that it cannot read is refused.

    That they tie is decided here: sums of two batches may differ in their last bits.
    """
    ends = len(scorer.tokenizer.encode("", specials=not scorer.config.has_decoder))
    most = room(scorer.network) - max(ends, 2)
    same = []
    encode = scorer.tokenizer.backend.encode_batch_fast
    for begin in range(0, len(pairs), AT_ONCE):
        some = pairs[begin : begin + AT_ONCE]
        sides = ([pair.good for pair in some], [pair.bad for pair in some])
        both = (encode(texts, add_special_tokens=False) for texts in sides)
        for pair, good, bad in zip(some, *both, strict=True):
            shortest, longest = sorted((len(good.ids), len(bad.ids)))
            if longest > most or not shortest:
                why = f"has {longest:,} tokens, more than the {most:,} that the model reads"
                raise InputError(
                    f"{place(path, pair.line)}: a sentence {why if shortest else 'has no tokens'}; "
                    "remove the pair."
                )
            same.append(good.ids == bad.ids)
    return np.array(same, dtype=np.bool_)


def _scored(scorer: Scorer, pairs: Sequence[MinimalPair]) -> dict[str, tuple[Floats, Floats]]:
    """The sums of all sentences and their numbers of tokens, in every way the model has."""
    found = {}
    for prefix, way in scorer.ways().items():
        sums, lengths = np.empty((2, 2 * len(pairs)))
        for i, score in enumerate(way(chain.from_iterable(pair.inputs for pair in pairs))):
            sums[i], lengths[i] = score.sum, max(1, score.tokens)
            if i % 256 == 255 or i + 1 == len(sums):
                scorer.progress("sentences scored", i + 1, len(sums))
        found[prefix] = sums.reshape(-1, 2), lengths.reshape(-1, 2)
    return found


def _by_kind(outcomes: Mapping[str, Floats], kinds: Sequence[str]) -> Parts:
    """The rates of each kind of pair by itself; none where no pair says its kind."""
    names = list(dict.fromkeys(kinds))
    if names == [""]:
        return {}
    each = np.array(kinds)
    found: dict[str, dict[str, Rate]] = {
        name or "other": rates({key: wins[each == name] for key, wins in outcomes.items()})
        for name in names
    }
    return dict(found)  # type: ignore[arg-type]


MINIMAL_PAIRS = Measure(
    about="which of two sentences is right: grammar, without being asked (BLiMP)",
    columns="sentence_good, sentence_bad",
    metric="accuracy",
    architectures=("encoder", "decoder"),
    options=("by_word",),
    folders=True,
    run=measure,
)
