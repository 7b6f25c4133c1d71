"""Train a tokenizer: `firth.train_tokenizer` against the trainer of the `tokenizers` library.

Firth reads the file, cleans it, counts its words on all cores and learns the vocabulary. The peer
is `Tokenizer.train_from_iterator` on the documents of the same file, in lists of 1,000, with its
own threads and the same normalizer, pre-tokenizer, special tokens, alphabet and minimum frequency;
it does not clean, as the text is clean. Each runs in a process of its own. If the peer needs more
than `--peer-memory-gb`, it gets half of the text, a quarter and so on, and Firth is measured on
that size again. The vocabularies are compared: merges (BPE), common tokens (WordPiece) or tokens
per word (Unigram). Seconds, CPU seconds, MB/s and peak RSS are printed; the ratio is that of the
MB/s.

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
from grown_text import read_documents, write_text
from measure import Measured, measure
from tokenizers import models, pre_tokenizers, trainers

import firth
from firth.tokenizers.trainer import KINDS, SPECIALS

MIN_FREQUENCY = 2
PEER_BATCH_SIZE = 1000  # documents per list for the peer
MIN_MEGABYTES = 1.0  # if the peer fails on less, memory is not the reason
NUM_COMPARED = 2000  # documents whose tokens per word are compared for Unigram


class Run(NamedTuple):
    """Time and memory of training one tokenizer."""

    system: str
    size: int  # bytes of text
    measured: Measured
    file: Path  # the saved tokenizer


def main() -> None:
    """Run the comparison in a temporary folder."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Train both tokenizers, in the end on texts of the same size, and print the results."""
    text = folder / "text.txt"
    write_text(options.text, options.megabytes, text)
    firth_run = run_firth(text, options)
    _print_header(options)
    _print_run(firth_run)
    peer_run = run_peer(text, options)
    _print_run(peer_run)
    if peer_run.size < firth_run.size:
        firth_run = run_firth(text, options)
        _print_run(firth_run)
    print(_compare_vocabularies(options.kind, firth_run.file, peer_run.file, text))
    print(f"ratio: {_megabytes_per_second(firth_run) / _megabytes_per_second(peer_run):.2f}")


def run_firth(text: Path, options: argparse.Namespace) -> Run:
    """Measure Firth's training in a process of its own, without a memory limit."""
    file = text.parent / "firth" / "tokenizer.json"
    measured = measure(train_firth, text, options.kind, options.vocab_size, file)
    assert measured is not None
    return Run("Firth", text.stat().st_size, measured, file)


def run_peer(text: Path, options: argparse.Namespace) -> Run:
    """Measure the peer's training; halve the text until the memory limit suffices."""
    file = text.parent / "peer.json"
    memory = int(options.peer_memory_gb * 1e9)
    megabytes = options.megabytes
    while megabytes >= MIN_MEGABYTES:
        measured = measure(train_peer, text, options.kind, options.vocab_size, file, memory=memory)
        if measured is not None:
            return Run("tokenizers", text.stat().st_size, measured, file)
        print(f"tokenizers  {megabytes:9.1f}  out of memory ({options.peer_memory_gb:g} GB)")
        megabytes /= 2
        write_text(options.text, megabytes, text)
    raise SystemExit("The peer failed on every size.")


def train_firth(text: Path, kind: str, vocab_size: int, out: Path) -> None:
    """Train a tokenizer with Firth and save it."""
    try:
        tokenizer, _ = firth.train_tokenizer(
            [text], kind=kind, vocab_size=vocab_size, min_frequency=MIN_FREQUENCY
        )
    except firth.FirthError as error:  # most likely, the vocabulary is too large for this text
        raise SystemExit(f"Firth: {error}") from error
    tokenizer.save(out.parent)


def train_peer(text: Path, kind: str, vocab_size: int, out: Path) -> None:
    """Train a tokenizer with the `tokenizers` library and save it."""
    row = KINDS[kind]
    specials = SPECIALS[row.specials]
    model, trainer = _make_trainer(
        kind,
        specials.roles["unk"],
        vocab_size=vocab_size,
        special_tokens=list(specials.tokens),
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(model)
    if normalizer := row.normalizer(False, False):
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = row.pre_tokenizer
    tokenizer.train_from_iterator(_batched(read_documents(text)), trainer)
    tokenizer.save(str(out))


def _make_trainer(kind: str, unk_token: str, **shared: Any) -> tuple[models.Model, Any]:
    """Return a model and a trainer of the `tokenizers` library with Firth's settings."""
    if kind == "bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return models.BPE(), trainers.BpeTrainer(
            min_frequency=MIN_FREQUENCY, initial_alphabet=alphabet, **shared
        )
    if kind == "wordpiece":
        return models.WordPiece(unk_token=unk_token), trainers.WordPieceTrainer(
            min_frequency=MIN_FREQUENCY, limit_alphabet=shared["vocab_size"] // 3, **shared
        )
    return models.Unigram(), trainers.UnigramTrainer(unk_token=unk_token, **shared)


def _batched(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of up to 1,000 documents."""
    texts = iter(texts)
    while batch := list(islice(texts, PEER_BATCH_SIZE)):
        yield batch


def _compare_vocabularies(kind: str, firth_file: Path, peer_file: Path, text: Path) -> str:
    """Describe how similar two tokenizers are that were trained on the same text."""
    firth_model, peer_model = (
        json.loads(file.read_bytes())["model"] for file in (firth_file, peer_file)
    )
    if kind == "bpe":
        identical = firth_model["merges"] == peer_model["merges"]
        return (
            f"merges: {len(firth_model['merges']):,}, "
            f"{'identical' if identical else 'NOT identical'}"
        )
    if kind == "wordpiece":
        common = len(firth_model["vocab"].keys() & peer_model["vocab"].keys())
        return f"tokens in common: {common / len(peer_model['vocab']):.2%}"
    sample = list(islice(read_documents(text), NUM_COMPARED))
    return f"tokens per word: Firth {_tokens_per_word(firth_file, sample):.4f}, tokenizers " + (
        f"{_tokens_per_word(peer_file, sample):.4f}"
    )


def _tokens_per_word(file: Path, texts: list[str]) -> float:
    """Return the tokens per whitespace-separated word."""
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return sum(map(len, encodings)) / sum(len(text.split()) for text in texts)


def _megabytes_per_second(run: Run) -> float:
    """Return the MB of text per second."""
    return run.size / 1e6 / run.measured.seconds


def _print_header(options: argparse.Namespace) -> None:
    """Print the settings and the table's header."""
    print(f"{options.kind}, vocabulary size {options.vocab_size:,}")
    print("system      megabytes  seconds  CPU seconds   MB/s  peak RSS, GB  peak RSS / text size")


def _print_run(run: Run) -> None:
    """Print a row of the table."""
    _, seconds, cpu, peak = run.measured
    print(
        f"{run.system:10}  {run.size / 1e6:9.1f}  {seconds:7.1f}  {cpu:11.1f}  "
        f"{_megabytes_per_second(run):5.2f}  {peak / 1e9:12.2f}  {peak / run.size:20.2f}",
        flush=True,
    )


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="corpus file (default: Firth's stories)")
    parser.add_argument(
        "--megabytes", type=float, default=1000, help="size of the text in MB (default: 1000)"
    )
    parser.add_argument(
        "--kind",
        choices=("bpe", "wordpiece", "unigram"),
        default="bpe",
        help="tokenizer (default: bpe)",
    )
    parser.add_argument(
        "--vocab-size", type=int, default=30_000, help="vocabulary size (default: 30000)"
    )
    parser.add_argument(
        "--peer-memory-gb",
        type=float,
        default=8,
        help="memory limit of the peer in GB (default: 8)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
