"""What the embedded models know: probes, minimal pairs, few labels, names, spans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import firth
from firth.data.packing import PackedSequences
from firth.data.stories import lexicon
from firth.data.stories.probes import read_probes
from firth.data.stories.reviews import BLAME, PRAISE
from firth.inference.infilling.span_filling import fill_sentinels, tokens_after_sentinel
from firth.metrics.bootstrap import Metric
from firth.objectives.batch import Batch
from firth.objectives.denoising import span_corruption
from firth.training.losses import hidden_states
from tests.story.ngram import KneserNey

NUM_SAMPLES, SAMPLE_WORDS = 50, 150
FEW_LABELS = 100
TASKS = {  # name: (task, files, metric)
    "sentiment": ("classify", "sentiment/{}.tsv", "accuracy"),
    "topic": ("classify", "topic/{}.tsv", "accuracy"),
    "entailment": ("pair", "entailment/{}.tsv", "accuracy"),
    "entities": ("tag", "entities/{}.conll", "f1"),
}
NUM_STORIES = 40  # whose spans are restored
PROMPT = "Once upon a time"
MAX_TOKENS = 200  # of a story
SPAN_CHECKS = (
    "removed tokens restored, given the tokens before them",
    "the same by a 5-gram model of the task stories",
    "the same by a 5-gram model that also reads the text after a span",
    "spans restored as a whole by greedy search",
)
CANDIDATES = 50  # of the 5-gram model, for the last token of a span
_GIVEN_NAMES = {*lexicon.GIRLS, *lexicon.BOYS, *lexicon.PET_NAMES["f"], *lexicon.PET_NAMES["m"]}
NAMES = _GIVEN_NAMES - {"Jordan"}  # a country too


def measure(name: str, model: firth.Model, stories: Path) -> dict[str, float]:
    """Measure what an embedded model knows, as fractions by description."""
    if name == "stories-encoder":
        return {
            "facts, 50 probes": known_facts(model, "facts"),
            "capitals, 10 probes": known_facts(model, "capitals"),
            "polarity, 10 pairs of probes": known_polarity(model),
            "minimal pairs of the stories": minimal_pairs(model, stories),
        }
    if name == "stories-decoder":
        return {
            "minimal pairs of the stories": minimal_pairs(model, stories),
            "names in the second half of 50 samples that appear in the first half": (
                remembered_names(sample_stories(model))
            ),
        }
    return dict(zip(SPAN_CHECKS, restored_spans(model, stories), strict=True))


def known_facts(encoder: firth.Model, name: str) -> float:
    """Return the fraction of a file's probes whose most probable word is an answer."""
    rows = read_probes(name)
    right = [_best(encoder, text) in answers.split("|") for text, answers in rows]
    return sum(right) / len(rows)


def known_polarity(encoder: firth.Model) -> float:
    """Return the fraction of pairs filled with praise in the first text, blame in the second."""
    rows = read_probes("polarity")
    right = [_best(encoder, a) in PRAISE and _best(encoder, b) in BLAME for a, b in rows]
    return sum(right) / len(rows)


def _best(encoder: firth.Model, text: str) -> str:
    return encoder.fill(text)[0][0].token.strip()


def minimal_pairs(model: firth.Model, stories: Path) -> float:
    """Return the fraction of the stories' minimal pairs whose right sentence is more probable."""
    result = firth.evaluate(model, task="minimal-pairs", data=stories / "agreement/test.jsonl")
    return result.metrics["accuracy"].value


def remembered_names(texts: Sequence[str]) -> float:
    """Return the fraction of the names in the second halves that appear in the first halves.

    >>> remembered_names(["Anna met Ben . Ben saw Tom ."])
    0.5
    """
    later, known = 0, 0
    for text in texts:
        words = text.split()[:SAMPLE_WORDS]
        first, second = words[: len(words) // 2], words[len(words) // 2 :]
        names = _names(second)
        later += len(names)
        known += sum(name in set(_names(first)) for name in names)
    return known / max(1, later)


def _names(words: Sequence[str]) -> list[str]:
    return [word for word in re.findall(r"[A-Z][a-z]+", " ".join(words)) if word in NAMES]


def sample_stories(decoder: firth.Model) -> list[str]:
    """Sample stories at temperature 0.8 from the most probable tokens (top-p 0.9)."""
    how = {"method": "sample", "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 260}
    return [PROMPT + decoder.generate(PROMPT, seed=seed, **how) for seed in range(NUM_SAMPLES)]


def few_labels(
    encoder: firth.Model | str, stories: Path, out: Path, *, name: str, seed: int, scratch: bool
) -> Metric:
    """Fine-tune with 100 labels, from random weights if `scratch`; return the test metric."""
    task, files, metric = TASKS[name]
    run = firth.finetune(
        encoder,
        task=task,
        train=stories / files.format("train"),
        dev=stories / files.format("dev"),
        out=out,
        limit=FEW_LABELS,
        seed=seed,
        scratch=scratch,
    )
    return firth.evaluate(run.model, data=stories / files.format("test")).metrics[metric]


# ---- spans ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemovedToken:
    """A removed token: the tokens before it, those kept after it, and whether it ends its span."""

    before: list[int]
    token: int
    after: list[int]  # empty unless the token is the last of its span


def remove_spans(model: firth.Model, text: str, number: int) -> tuple[Batch, list[RemovedToken]]:
    """Remove spans from a text as in pre-training; `number` decides which."""
    tokenizer = model.require_tokenizer()
    ids = np.array(tokenizer.encode(text)[:MAX_TOKENS], dtype=np.int64)
    key = np.array([number], dtype=np.uint64)
    batch = span_corruption(PackedSequences.join([ids], key), tokenizer.vocabulary)
    sentinels, removed, at = set(tokenizer.sentinel_ids), list[RemovedToken](), 0
    whole = ids.tolist()
    targets = batch.predictions["denoising"].targets.tolist()
    for id in batch.inputs.tokens.tolist():
        if id not in sentinels:
            at += 1
            continue
        span = tokens_after_sentinel(targets[:-1], id, sentinels)
        for token in span:
            at += 1
            removed.append(RemovedToken(whole[: at - 1], token, []))
        if span:
            removed[-1] = replace(removed[-1], after=whole[at : at + 4])
    return batch, removed


def restored_tokens(model: firth.Model, batch: Batch) -> list[bool]:
    """Return whether the model predicts each removed token, given those before it in its span."""
    wanted = batch.predictions["denoising"]
    with torch.no_grad():
        hidden = hidden_states(model.network, batch)
        best = model.network.logits(hidden[wanted.positions]).argmax(-1).numpy()
    special = {*model.require_tokenizer().sentinel_ids, int(wanted.targets[-1])}
    return [
        bool(a == b) for a, b in zip(best, wanted.targets, strict=True) if int(b) not in special
    ]


def ngram_restores(counts: KneserNey, removed: RemovedToken, both: bool = True) -> bool:
    """Return whether a 5-gram model's best token is the removed one, given those before it.

    With `both`, the last token of a span is chosen together with the tokens that follow it.
    """
    scores = counts.next_log_probabilities(removed.before)
    best = np.argsort(-scores, kind="stable")[:CANDIDATES]
    if both and removed.after:
        following = [_following(counts, [*removed.before, int(id)], removed.after) for id in best]
        best = best[np.argsort(-(scores[best] + following), kind="stable")]
    return bool(best[0] == removed.token)


def _following(counts: KneserNey, before: list[int], after: list[int]) -> float:
    text = [*before[-counts.order :], *after]
    return float(counts.log_probabilities(text)[-1 - len(after) : -1].sum())


def restored_spans(model: firth.Model, stories: Path) -> tuple[float, float, float, float]:
    """Return the fractions of `SPAN_CHECKS`, in their order."""
    tokenizer = model.require_tokenizer()
    texts = (stories / "test.txt").read_text(encoding="utf-8").split("\n\n")[:NUM_STORIES]
    train = (stories / "train.txt").read_text(encoding="utf-8").split("\n\n")
    counts = KneserNey([tokenizer.encode(text) for text in train if text], len(tokenizer))
    corrupted = [remove_spans(model, text, i) for i, text in enumerate(texts)]
    removed = [token for _, tokens in corrupted for token in tokens]
    restored = [hit for batch, _ in corrupted for hit in restored_tokens(model, batch)]
    left, both = ([ngram_restores(counts, one, side) for one in removed] for side in (False, True))
    whole = [hit for batch, _ in corrupted for hit in whole_spans(model, batch)]
    fractions = [float(np.mean(hits)) for hits in (restored, left, both, whole)]
    return fractions[0], fractions[1], fractions[2], fractions[3]


def whole_spans(model: firth.Model, batch: Batch) -> list[bool]:
    """Return whether greedy search restores each span of a text exactly."""
    tokenizer, inputs = model.require_tokenizer(), batch.inputs.tokens.tolist()
    sentinels = set(tokenizer.sentinel_ids)
    targets = batch.predictions["denoising"].targets.tolist()[:-1]
    wanted = [tokens_after_sentinel(targets, id, sentinels) for id in inputs if id in sentinels]
    return [
        a == b
        for a, b in zip(wanted, fill_sentinels(model.network, tokenizer, inputs), strict=True)
    ]
