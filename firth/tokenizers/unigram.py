"""Train a Unigram language model (Kudo 2018) with the `tokenizers` library, from word counts.

The library trains on text, so a sample of the words is written out; its result is made
deterministic. It reports the rounds of its training only in its log, which must be switched on when
it is imported: a training whose rounds are wanted runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from firth.utils.errors import InputError

MAX_SAMPLE = 4_000_000  # words


@dataclass(frozen=True)
class PruningRound:
    """One round of the training: probabilities are estimated, then improbable pieces removed."""

    pieces: int  # after the estimation, before the removal
    loss: float  # mean of -log p of the words, in nats
    tokens: int  # of all distinct words


def train_unigram(
    words: Sequence[str],
    counts: Sequence[int],
    size: int,
    specials: Sequence[str],
    unknown: str,
    trace: Callable[[PruningRound], None] | None = None,
) -> models.Model:
    """Train a Unigram model of `size` tokens, including the special tokens, from word counts.

    `trace` is called with each round of pruning.
    """
    characters: Counter[str] = Counter()
    for word, times in zip(words, counts, strict=True):
        for character in word:
            characters[character] += times
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    room = size - len(specials)
    limit = max(1, room // 2)  # single characters, or more if nothing else fills the vocabulary
    options = dict(vocab_size=size, special_tokens=list(specials), unk_token=unknown)
    train = _train if trace is None else _train_and_log
    while True:
        pieces, rounds = train(_sample(words, counts, set(ranked[:limit])), options)
        missing = size - len(pieces)
        if missing <= 0 or limit >= min(room, len(ranked)):
            break
        limit = min(room, limit + missing)
    for one in rounds:
        assert trace is not None
        trace(one)
    ordered = _sorted_pieces(pieces, specials)
    return models.Unigram(ordered, specials.index(unknown), byte_fallback=False)


Trained = tuple[list[list[Any]], list[PruningRound]]  # the pieces with their scores; the rounds


def _train(sample: Iterable[str], options: dict[str, Any]) -> Trained:
    """Run the library's trainer."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.UnigramTrainer(**options, show_progress=False)
    try:
        backend.train_from_iterator(sample, trainer)
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"No Unigram vocabulary can be trained on this text: {error}.") from error
    return json.loads(backend.to_str())["model"]["vocab"], []


def _train_and_log(sample: Iterator[str], options: dict[str, Any]) -> Trained:
    """Run the trainer in a process of its own; read the rounds from the library's log."""
    code = f"from {__name__} import _train_from_stdin as train; train()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([list(sample), options]).encode(),
        capture_output=True,
        env=os.environ | {"TOKENIZERS_LOG": "debug", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    log = done.stderr.decode(errors="replace")
    if done.returncode:
        reason = log.strip().splitlines()[-1:]
        raise InputError(f"No Unigram vocabulary can be trained on this text: {reason}.")
    found = LOG_LINE.findall(log)
    rounds = [PruningRound(int(size), float(loss), int(tokens)) for size, loss, tokens in found]
    return json.loads(done.stdout), rounds


def _train_from_stdin() -> None:
    sample, options = json.load(sys.stdin)
    print(json.dumps(_train(sample, options)[0]))


# The second of the two iterations of expectation maximization in each round.
LOG_LINE = re.compile(r"Em iter=1 size=(\d+) obj=(\S+) num_tokens=(\d+)")


def _sample(words: Sequence[str], counts: Sequence[int], characters: set[str]) -> Iterator[str]:
    """Sample at most MAX_SAMPLE words in proportion to their counts.

    Systematic sampling: words are taken at equal steps of the cumulative counts. Other characters
    than `characters` are dropped.
    """
    total = np.cumsum(np.asarray(counts, dtype=np.int64))
    taken = np.floor(total * min(1.0, MAX_SAMPLE / max(1, total[-1]))).astype(np.int64)
    for word, times in zip(words, np.diff(taken, prepend=0).tolist(), strict=True):
        if times and (kept := "".join(c for c in word if c in characters)):
            yield " ".join([kept] * times)


def _sorted_pieces(pieces: list[list[Any]], specials: Sequence[str]) -> list[tuple[str, float]]:
    """Make pieces and scores independent of the random order of the library's hash tables.

    Sums in another order differ in their last digits, and single characters outside the learned
    pieces get the lowest score plus a small step each, in random order.
    """
    learned = {piece: round(score, 6) for piece, score in pieces if piece not in specials}
    lowest = min(learned.values(), default=0.0)
    steps = {
        piece: score
        for piece, score in learned.items()
        if len(piece) == 1 and abs(((score - lowest) * 1e4 + 0.5) % 1 - 0.5) < 0.1
    }
    learned.update(zip(sorted(steps), sorted(steps.values()), strict=True))
    ranked = sorted(learned.items(), key=lambda item: (-item[1], item[0]))
    return [(token, 0.0) for token in specials] + ranked
