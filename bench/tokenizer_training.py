"""Training a tokenizer: Firth against the trainer of the `tokenizers` library.

Firth's side is `firth.train_tokenizer`: it reads the file, cleans it, counts its words on all cores
and learns the vocabulary. The peer's side is `Tokenizer.train_from_iterator` over the documents of
the same file, in lists of 1,000, with its own threads, the same normaliser, pre-tokenizer, special
tokens, alphabet and smallest frequency. It cleans nothing: the text is clean. Each side runs in a
process of its own. The peer may use so much memory; if that is too little, it gets half the text,
and so on, and Firth is measured on that size too.

    python bench/tokenizer_training.py --megabytes 1000 --kind bpe
    python bench/tokenizer_training.py --text corpus.jsonl.xz --kind wordpiece
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from grown_text import documents, write_text
from measure import Measured, measure
from tokenizers import models, pre_tokenizers, trainers

import firth
from firth.tokenizers.trainer import KINDS, SPECIALS

MIN_FREQUENCY = 2
TOGETHER = 1000  # documents that the peer is given at once
SMALLEST = 1.0  # megabytes: a peer that cannot do this has another problem than memory
SAMPLE = 2000  # documents on which two Unigram vocabularies are compared


class Run(NamedTuple):
    """One side's training on one size of text."""

    system: str
    size: int  # bytes of text
    measured: Measured
    file: Path  # the tokenizer


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Train both, at the same size at least once, and print what it took."""
    text = folder / "text.txt"
    write_text(options.text, options.megabytes, text)
    own = run_firth(text, options)
    _print_header(options)
    _print_run(own)
    peer = run_peer(text, options)
    _print_run(peer)
    if peer.size < own.size:
        own = run_firth(text, options)
        _print_run(own)
    print(_likeness(options.kind, own.file, peer.file, text))
    print(f"ratio: {_speed(own) / _speed(peer):.2f}")


def run_firth(text: Path, options: argparse.Namespace) -> Run:
    """Train with Firth, without limits."""
    file = text.parent / "firth" / "tokenizer.json"
    measured = measure(train_firth, text, options.kind, options.vocab_size, file)
    assert measured is not None
    return Run("Firth", text.stat().st_size, measured, file)


def run_peer(text: Path, options: argparse.Namespace) -> Run:
    """Train with the peer on the largest half of a half of … the text for which memory suffices."""
    file = text.parent / "peer.json"
    memory = int(options.peer_memory_gb * 1e9)
    megabytes = options.megabytes
    while megabytes >= SMALLEST:
        measured = measure(train_peer, text, options.kind, options.vocab_size, file, memory=memory)
        if measured is not None:
            return Run("tokenizers", text.stat().st_size, measured, file)
        print(f"tokenizers  {megabytes:9.1f}  needs more than {options.peer_memory_gb:g} GB")
        megabytes /= 2
        write_text(options.text, megabytes, text)
    raise SystemExit("The peer failed on every size.")


def train_firth(text: Path, kind: str, vocab_size: int, out: Path) -> None:
    """Firth's side."""
    try:
        tokenizer, _ = firth.train_tokenizer(
            [text], kind=kind, vocab_size=vocab_size, min_frequency=MIN_FREQUENCY
        )
    except firth.FirthError as error:  # too large a vocabulary for this text, most likely
        raise SystemExit(f"Firth: {error}") from error
    tokenizer.save(out.parent)


def train_peer(text: Path, kind: str, vocab_size: int, out: Path) -> None:
    """The peer's side."""
    row = KINDS[kind]
    specials = SPECIALS[row.specials]
    model, trainer = _library_trainer(
        kind,
        specials.roles["unk"],
        vocab_size=vocab_size,
        special_tokens=list(specials.tokens),
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(model)
    if normalizer := row.normalizer(False):
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = row.pre_tokenizer
    tokenizer.train_from_iterator(_lists(documents(text)), trainer)
    tokenizer.save(str(out))


def _library_trainer(kind: str, unknown: str, **shared: Any) -> tuple[models.Model, Any]:
    if kind == "bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return models.BPE(), trainers.BpeTrainer(
            min_frequency=MIN_FREQUENCY, initial_alphabet=alphabet, **shared
        )
    if kind == "wordpiece":
        return models.WordPiece(unk_token=unknown), trainers.WordPieceTrainer(
            min_frequency=MIN_FREQUENCY, limit_alphabet=shared["vocab_size"] // 3, **shared
        )
    return models.Unigram(), trainers.UnigramTrainer(unk_token=unknown, **shared)


def _lists(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while some := list(islice(texts, TOGETHER)):
        yield some


def _likeness(kind: str, own: Path, peer: Path, text: Path) -> str:
    """How alike two vocabularies of one kind are, learned from the same text."""
    ours, theirs = (json.loads(file.read_bytes())["model"] for file in (own, peer))
    if kind == "bpe":
        same = ours["merges"] == theirs["merges"]
        return f"merges: {len(ours['merges']):,}, {'identical' if same else 'NOT identical'}"
    if kind == "wordpiece":
        common = len(ours["vocab"].keys() & theirs["vocab"].keys())
        return f"tokens in common: {common / len(theirs['vocab']):.2%}"
    sample = list(islice(documents(text), SAMPLE))
    return f"tokens per word: Firth {_fertility(own, sample):.4f}, tokenizers " + (
        f"{_fertility(peer, sample):.4f}"
    )


def _fertility(file: Path, texts: list[str]) -> float:
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return sum(map(len, encodings)) / sum(len(text.split()) for text in texts)


def _speed(run: Run) -> float:
    return run.size / 1e6 / run.measured.seconds


def _print_header(options: argparse.Namespace) -> None:
    print(f"{options.kind}, a vocabulary of {options.vocab_size:,}")
    print("system      megabytes  seconds  CPU seconds   MB/s  peak RSS, GB  RAM per byte of text")


def _print_run(run: Run) -> None:
    _, seconds, cpu, peak = run.measured
    print(
        f"{run.system:10}  {run.size / 1e6:9.1f}  {seconds:7.1f}  {cpu:11.1f}  {_speed(run):5.2f}  "
        f"{peak / 1e9:12.2f}  {peak / run.size:20.2f}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="any corpus file; else Firth's stories")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--kind", choices=("bpe", "wordpiece", "unigram"), default="bpe")
    parser.add_argument("--vocab-size", type=int, default=30_000)
    parser.add_argument("--peer-memory-gb", type=float, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
