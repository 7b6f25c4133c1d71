"""The demo: the whole story on the embedded corpus, with results a person can see."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.drawing import attention_patterns, loss_curve
from firth.errors import Interrupted
from firth.inference.completions import continue_text
from firth.inference.fill import fill
from firth.inference.filler import Guess
from firth.inference.restore import between, restore
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Packed
from firth.objectives.causal import causal, prefix
from firth.objectives.denoising import span_corruption
from firth.objectives.examples import packed
from firth.objectives.show import Example, show_objectives
from firth.pretraining import Trained, pretrain
from firth.runs import read_metrics
from firth.text.preparation import Prepared, prepare
from firth.text.shards import Shards
from firth.text.stories import Summary, write_stories
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer
from firth.tour_tasks import OPINIONS_FILE, Adapted, adapt
from firth.training.log import Figures

Progress = Callable[[str, int, int], None]

WORDS = 1_000_000
VOCABULARY = 3000
# The trio: the share of the time each gets (a decoder is asked for every token, the others only for
# what is hidden), and what is changed so that so little time is enough.
TRIO: dict[str, tuple[float, dict[str, Any]]] = {
    "encoder-tiny": (0.42, {}),
    "decoder-tiny": (0.25, {}),
    "seq2seq-tiny": (0.33, {"length": "64", "objective.rate": 0.3}),
}
MINUTES = 3.6  # of learning, for all three
# The lectures' sentences; the stories never tell them.
BLANKS = (
    "The [MASK] barked loudly at the mailman.",
    "The capital of France is [MASK].",
    "The sun rises in the [MASK].",
    "I went to the [MASK] to buy milk.",
)
PROMPT = "Once upon a time"
WRITTEN = 60  # tokens
PASSAGE = 48  # tokens
# The lectures' words, and Swahili's forms of -ambia, "to tell".
TEXTS = (
    "playing unhappiness unbelievable",
    "COVID-19 taaaaasty Transformerify",
    "niliambia tuliambia waliambia hawataambia nisingeambia",
)


@dataclass(frozen=True)
class Passage:
    """A text that was damaged, piece by piece: what stayed, and what was taken and put back."""

    pieces: list[tuple[str, str | None]]  # (original, None) stayed, (original, put back) was taken

    @property
    def right(self) -> float:
        """The share of the words that were taken and put back where they had been.

        >>> Passage([("the dog", None), ("barked loudly", "barked again")]).right
        0.5
        """
        taken = [(was.split(), now.split()) for was, now in self.pieces if now is not None]
        hits = sum(a == b for was, now in taken for a, b in zip(was, now, strict=False))
        return hits / max(1, sum(len(was) for was, _ in taken))


@dataclass(frozen=True)
class Tour:
    """What the demo made."""

    out: Path
    stories: Summary
    opening: str  # the first story
    tokenizers: dict[str, Tokenizer]
    prepared: Prepared
    objectives: list[Example]
    picture: Path
    trained: dict[str, Trained]
    curves: Path
    fills: dict[str, list[Guess]]
    continuation: str
    passage: Passage
    restored: float  # the share of all tokens taken from the validation stories
    adapted: Adapted

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        fertility = {name: t.coverage(TEXTS).fertility for name, t in self.tokenizers.items()}
        return {
            "out": self.out,
            "stories": self.stories.stories,
            "words": self.stories.words,
            "vocabulary": self.stories.vocabulary,
            "fertility": fertility,
            "splits": self.prepared.splits,
            "objectives": [example.values() for example in self.objectives],
            "picture": self.picture,
            "trained": {name: run.values() for name, run in self.trained.items()},
            "curves": self.curves,
            "fills": {text: [asdict(g) for g in guesses] for text, guesses in self.fills.items()},
            "continuation": {"prompt": PROMPT, "text": self.continuation},
            "restored": {**asdict(self.passage), "right": self.restored},
            "adapted": self.adapted.values(),
        }


def demo(
    out: str | Path,
    *,
    minutes: float = MINUTES,
    words: int = WORDS,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Tour:
    """Stories, vocabularies, shards, objectives; then three small networks learn, and speak.

    `minutes` is the time the three learn, together.
    """
    out = Path(out)
    _clear(out)
    try:
        return _made(out, minutes, words, seed, progress)
    except Interrupted as error:
        raise Interrupted(
            "The demo was stopped, as asked. It cannot go on where it was: the same command begins "
            f"it anew; what it has made so far is in {out}."
        ) from error


def _made(out: Path, minutes: float, words: int, seed: int, progress: Progress) -> Tour:
    stories = write_stories(out / "stories", words=words, seed=0, progress=progress)
    train, dev = out / "stories/train.txt", out / "stories/dev.txt"
    tokenizers = _tokenizers(train, out, min(VOCABULARY, 400 + words // 40), progress)
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
            minutes=share * minutes,
            seed=seed,
            changes=changes,
            listener=_listener(name, progress),
        )
        for name, (share, changes) in TRIO.items()
    }
    curves = out / "curves.png"
    loss_curve(curves, {name: read_metrics(out / name) for name in trained})
    encoder, decoder, both = (run.model for run in trained.values())
    tokenizer = tokenizers[str(out / "wordpiece")]
    return Tour(
        out=out,
        stories=stories,
        opening=train.read_text(encoding="utf-8").split("\n\n")[0],
        tokenizers=tokenizers,
        prepared=prepared,
        objectives=examples,
        picture=out / "attention.png",
        trained=trained,
        curves=curves,
        fills={text: fill(encoder.network, tokenizer, text)[0] for text in BLANKS},
        continuation=continue_text(decoder.network, tokenizer, PROMPT, most=WRITTEN),
        passage=mend(both.network, tokenizer, Shards(shards, "valid")),
        restored=_restored(out / "seq2seq-tiny"),
        adapted=adapt(
            out / "encoder-tiny", out / "stories", out / "tasks", seed=seed, progress=progress
        ),
    )


def _restored(run: Path) -> float:
    """How many of the hidden tokens the last validation found."""
    validations = [line for line in read_metrics(run) if line["kind"] == "validation"]
    return float(validations[-1].get("denoising right", 0.0)) if validations else 0.0


def _clear(out: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    marks = {"stories": "stories.json", "shards": "index.json", "tasks": OPINIONS_FILE}
    for made, mark in (marks | dict.fromkeys(TRIO, "run.json")).items():
        if (out / made / mark).is_file():
            shutil.rmtree(out / made)


def _tokenizers(
    train: Path, out: Path, vocabulary: int, progress: Progress
) -> dict[str, Tokenizer]:
    """A vocabulary of each of the two common kinds."""
    tokenizers = {}
    for kind, sentinels in (("wordpiece", 100), ("bpe", 0)):
        tokenizer, _ = train_tokenizer(
            [train],
            kind=kind,
            vocab_size=vocabulary,
            lowercase=kind == "wordpiece",
            sentinels=sentinels,
            progress=progress,
        )
        tokenizer.save(out / kind)
        tokenizers[str(out / kind)] = tokenizer
    return tokenizers


def _listener(name: str, progress: Progress) -> Callable[[str, Figures], None]:
    def listen(kind: str, figures: Figures) -> None:
        if kind == "step":
            progress(f"learning {name}", int(1000 * figures["progress"]), 1000)

    return listen


def mend(network: Transformer, tokenizer: Tokenizer, shards: Shards) -> Passage:
    """Take spans out of a text the network never saw, and let it put them back."""
    key = np.array([7], dtype=np.uint64)
    text = Packed.join([shards[0][:PASSAGE].astype(np.int64)], key)
    batch = span_corruption(text, tokenizer.vocabulary)
    damaged, answer = batch.inputs.tokens.tolist(), batch.predictions["denoising"].targets.tolist()
    holes = set(tokenizer.sentinel_ids)
    put_back = iter(restore(network, tokenizer, damaged))
    pieces: list[tuple[str, str | None]] = []
    kept: list[int] = []
    for id in damaged:
        if id not in holes:
            kept.append(id)
            continue
        pieces.append((tokenizer.decode(kept), None))
        was, now = between(answer, id, holes), next(put_back)
        texts = [tokenizer.decode(ids, skip_specials=True) for ids in (was, now)]
        pieces.append((texts[0], texts[1]))
        kept = []
    pieces.append((tokenizer.decode(kept, skip_specials=True), None))
    return Passage([piece for piece in pieces if piece[0] or piece[1]])


def draw_attention(path: Path) -> None:
    """The three patterns, on two short texts that share one stream."""
    texts = "the quick brown fox jump ##s", "a lazy dog barked"
    sequences = packed(*texts, seed=1)
    patterns = {
        "encoder: both ways": Batch(sequences, sequences.lengths),
        "decoder: to the left": causal(sequences),
        "prefix: both": prefix(sequences),
    }
    words = " ".join(texts).split()
    attention_patterns(path, words, {name: batch.visible() for name, batch in patterns.items()})
