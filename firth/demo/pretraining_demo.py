"""The demo: pre-train and fine-tune small models on the built-in stories."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.packing import PackedSequences
from firth.data.shards import Shards
from firth.data.stories import Summary, write_stories
from firth.demo.adaptation_demo import (
    OPINIONS_FILE,
    AdaptationResult,
    Progress,
    adapt,
    step_callback,
)
from firth.inference.infilling.fill_methods import FillCandidate
from firth.inference.infilling.span_filling import fill_sentinels, tokens_after_sentinel
from firth.jobs.objective_examples import show_objectives
from firth.jobs.preparation import PrepareResult, prepare
from firth.jobs.pretraining import PretrainResult, pretrain
from firth.model import Model
from firth.objectives.batch import Batch
from firth.objectives.causal import causal, prefix
from firth.objectives.denoising import span_corruption
from firth.objectives.preview import ObjectivePreview
from firth.objectives.toy_vocabulary import packed
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.training.run_directory import read_metrics
from firth.utils.arguments import check_arguments
from firth.utils.errors import Interrupted
from firth.utils.plotting import plot_attention_masks, plot_loss

WORDS = 1_000_000
VOCAB_SIZE = 3000
# For each model the fraction of the time (a decoder predicts every token and needs less of it than
# models that predict only masked ones) and the overrides for so short a run.
TRIO: dict[str, tuple[float, dict[str, Any]]] = {
    "encoder-tiny": (0.42, {}),
    "decoder-tiny": (0.25, {}),
    "seq2seq-tiny": (0.33, {"max_length": "64", "objective.noise_density": 0.3}),
}
MINUTES = 3.6  # pre-training time of all three
# Sentences of the lectures; none of them occurs in the stories.
BLANKS = (
    "The [MASK] barked loudly at the mailman.",
    "The capital of France is [MASK].",
    "The sun rises in the [MASK].",
    "I went to the [MASK] to buy milk.",
)
PROMPT = "Once upon a time"
MAX_NEW_TOKENS = 60
PASSAGE_TOKENS = 48
# The lectures' words, and Swahili's forms of -ambia, "to tell".
TEXTS = (
    "playing unhappiness unbelievable",
    "COVID-19 taaaaasty Transformerify",
    "niliambia tuliambia waliambia hawataambia nisingeambia",
)


@dataclass(frozen=True)
class RestoredText:
    """A text with removed spans, and what the model predicted for them."""

    pieces: list[tuple[str, str | None]]  # (text, None) or (removed, predicted)

    @property
    def right(self) -> float:
        """Return the fraction of the removed words that were predicted at their position.

        >>> RestoredText([("the dog", None), ("barked loudly", "barked again")]).right
        0.5
        """
        taken = [(was.split(), now.split()) for was, now in self.pieces if now is not None]
        hits = sum(a == b for was, now in taken for a, b in zip(was, now, strict=False))
        return hits / max(1, sum(len(was) for was, _ in taken))


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo."""

    out: Path
    stories: Summary
    opening: str  # the first story
    tokenizers: dict[str, Tokenizer]
    prepared: PrepareResult
    objectives: list[ObjectivePreview]
    picture: Path
    trained: dict[str, PretrainResult]
    curves: Path
    fills: dict[str, list[FillCandidate]]
    continuation: str
    passage: RestoredText
    restored: float  # fraction of the tokens removed from the validation stories
    adapted: AdaptationResult

    def values(self) -> dict[str, Any]:
        """Return the results as plain JSON values."""
        fertility = {name: t.coverage(TEXTS).fertility for name, t in self.tokenizers.items()}
        return {
            "out": self.out,
            "stories": self.stories.stories,
            "words": self.stories.words,
            "vocabulary": self.stories.vocabulary,
            "fertility": fertility,
            "splits": self.prepared.splits,
            "objectives": [asdict(example) for example in self.objectives],
            "picture": self.picture,
            "trained": {name: run.values() for name, run in self.trained.items()},
            "curves": self.curves,
            "fills": {text: [asdict(g) for g in guesses] for text, guesses in self.fills.items()},
            "continuation": {"prompt": PROMPT, "text": self.continuation},
            "restored": {**asdict(self.passage), "right": self.restored},
            "adapted": self.adapted.values(),
        }


@check_arguments
def run_demo(
    out: str | Path,
    *,
    minutes: float = MINUTES,
    words: int = WORDS,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> DemoResult:
    """Write stories, train tokenizers, pre-train three small models and fine-tune one of them.

    `minutes` is the pre-training time of the three models together.
    """
    out = Path(out)
    _clear(out)
    try:
        return _run(out, minutes, words, seed, progress)
    except Interrupted as error:
        raise Interrupted(
            "The demo was interrupted and cannot be resumed: the same command starts it again; "
            f"its results so far are in {out}."
        ) from error


def _run(out: Path, minutes: float, words: int, seed: int, progress: Progress) -> DemoResult:
    stories = write_stories(out / "stories", words=words, seed=0, progress=progress)
    train, dev = out / "stories/train.txt", out / "stories/dev.txt"
    tokenizers = _tokenizers(train, out, min(VOCAB_SIZE, 400 + words // 40), progress)
    shards = out / "shards"
    prepared = prepare(
        [train], tokenizer=out / "wordpiece", out=shards, valid=[dev], progress=progress
    )
    examples, _ = show_objectives(Shards(shards))
    draw_attention(out / "attention.png")
    trained = {
        name: pretrain(
            preset=name,
            data=shards,
            out=out / name,
            minutes=fraction * minutes,
            seed=seed,
            overrides=overrides,
            callback=step_callback(f"pre-training {name}", progress),
        )
        for name, (fraction, overrides) in TRIO.items()
    }
    curves = out / "curves.png"
    plot_loss(curves, {name: read_metrics(out / name) for name in trained})
    encoder, decoder, both = (run.model for run in trained.values())
    return DemoResult(
        out=out,
        stories=stories,
        opening=train.read_text(encoding="utf-8").split("\n\n")[0],
        tokenizers=tokenizers,
        prepared=prepared,
        objectives=examples,
        picture=out / "attention.png",
        trained=trained,
        curves=curves,
        fills={text: encoder.fill(text)[0] for text in BLANKS},
        continuation=decoder.generate(PROMPT, max_new_tokens=MAX_NEW_TOKENS),
        passage=restore_spans(both, Shards(shards, "valid")),
        restored=_restored(out / "seq2seq-tiny"),
        adapted=adapt(
            out / "encoder-tiny", out / "stories", out / "tasks", seed=seed, progress=progress
        ),
    )


def _restored(run: Path) -> float:
    """Return the accuracy on removed tokens at the last validation."""
    validations = [line for line in read_metrics(run) if line["kind"] == "validation"]
    return float(validations[-1].get("denoising accuracy", 0.0)) if validations else 0.0


def _clear(out: Path) -> None:
    """Remove the results of an earlier demo, and nothing else."""
    marks = {"stories": "stories.json", "shards": "index.json", "tasks": OPINIONS_FILE}
    for made, mark in (marks | dict.fromkeys(TRIO, "run.json")).items():
        if (out / made / mark).is_file():
            shutil.rmtree(out / made)


def _tokenizers(
    train: Path, out: Path, vocab_size: int, progress: Progress
) -> dict[str, Tokenizer]:
    """Train a WordPiece and a BPE tokenizer."""
    tokenizers = {}
    for kind, sentinels in (("wordpiece", 100), ("bpe", 0)):
        tokenizer, _ = train_tokenizer(
            [train],
            kind=kind,
            vocab_size=vocab_size,
            lowercase=kind == "wordpiece",
            sentinels=sentinels,
            progress=progress,
        )
        tokenizer.save(out / kind)
        tokenizers[str(out / kind)] = tokenizer
    return tokenizers


def restore_spans(model: Model, shards: Shards) -> RestoredText:
    """Remove spans from a validation text, and let the model predict them."""
    tokenizer, key = model.require_tokenizer(), np.array([7], dtype=np.uint64)
    text = PackedSequences.join([shards[0][:PASSAGE_TOKENS].astype(np.int64)], key)
    batch = span_corruption(text, tokenizer.vocabulary)
    corrupted: list[int] = batch.inputs.tokens.tolist()
    targets = batch.predictions["denoising"].targets.tolist()
    sentinels = set(tokenizer.sentinel_ids)
    predicted = iter(fill_sentinels(model.network, tokenizer, corrupted))
    pieces: list[tuple[str, str | None]] = []
    kept: list[int] = []
    for id in corrupted:
        if id not in sentinels:
            kept.append(id)
            continue
        pieces.append((tokenizer.decode(kept), None))
        was, now = tokens_after_sentinel(targets, id, sentinels), next(predicted)
        texts = [tokenizer.decode(ids, skip_specials=True) for ids in (was, now)]
        pieces.append((texts[0], texts[1]))
        kept = []
    pieces.append((tokenizer.decode(kept, skip_specials=True), None))
    return RestoredText([piece for piece in pieces if piece[0] or piece[1]])


def draw_attention(path: Path) -> None:
    """Plot the three attention masks on two short texts packed into one sequence."""
    texts = "the quick brown fox jump ##s", "a lazy dog barked"
    sequences = packed(*texts, seed=1)
    patterns = {
        "encoder: bidirectional": Batch(sequences, sequences.lengths),
        "decoder: causal": causal(sequences),
        "prefix LM": prefix(sequences),
    }
    masks = {name: batch.attention_mask() for name, batch in patterns.items()}
    plot_attention_masks(path, " ".join(texts).split(), masks)
