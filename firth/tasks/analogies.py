"""Word analogies: Athens is to Greece as Oslo is to which word? (Mikolov et al. 2013)

The answer is the word whose vector is most similar to b - a + c of the normalized vectors (3CosAdd;
Levy and Goldberg 2014), other than the three words of the question. Questions with an unknown word
are left out and counted.

Q  questions of a block     V  candidates     W  size of a vector
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.word_lookup import find_ids, look_up, word_id
from firth.metrics.language_modelling import Proportion, proportions
from firth.models.static_vectors import StaticVectors
from firth.tasks.readers.columns import good_examples
from firth.tasks.readers.word_analogies import Analogy, read_analogies
from firth.tasks.scoring_task import Parts, Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.tasks.similarity import check_known, word_embedder, word_notes

Ids = NDArray[np.int64]
QUESTIONS, CANDIDATES = 1024, 1 << 14  # of a block: 64 MiB of similarities


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute the accuracy on all questions, by section, and by kind."""
    embedder = word_embedder(scorer)
    analogies = list(islice(good_examples(read_analogies, options.file), options.limit or None))
    vectors, ids = _candidates(embedder, analogies)  # (V, W), (questions, 4)
    known = np.asarray((ids >= 0).all(axis=1))
    check_known(scorer, int(known.sum()), 1, f"questions of {options.data}")
    answers = []
    for block in torch.from_numpy(ids[known]).split(QUESTIONS):
        answers.append(answer_analogies(vectors, block.to(vectors.device)).cpu().numpy())
        done = min(len(answers) * QUESTIONS, int(known.sum()))
        scorer.progress("questions answered", done, int(known.sum()))
    right = (np.concatenate(answers) == ids[known, 3]).astype(np.float64)
    kept = [one for one, has_vectors in zip(analogies, known.tolist(), strict=True) if has_vectors]
    skipped, is_static = len(analogies) - len(kept), isinstance(embedder.network, StaticVectors)
    special = embedder.tokenizer.backend.get_added_tokens_decoder() if is_static else {}
    candidates = len(vectors) - len(special)
    return ScoringResult(
        n=len(kept),
        metrics=_metrics(kept, right),
        parts=_sections(kept, right),
        details={
            "questions": len(analogies),
            "out_of_vocabulary": skipped,
            "candidates": candidates,
        },
        notes=[
            f"{skipped:,} of {len(analogies):,} questions have an unknown word, and are left out."
            if skipped
            else "All words have vectors.",
            f"The answer is one of {candidates:,} words"
            + ("." if is_static else ": those of the questions."),
            *word_notes(embedder),
        ],
    )


@torch.no_grad()
def _candidates(embedder: Embedder, analogies: Sequence[Analogy]) -> tuple[Tensor, Ids]:
    """Return the vectors of possible answers, and the rows of the words of questions, or -1.

    Candidates are the whole vocabulary of word vectors; else the words of all questions.
    """
    words = list(dict.fromkeys(word for one in analogies for word in one.words))
    network = embedder.network
    if isinstance(network, StaticVectors):
        found, _ = find_ids(words, partial(word_id, network, embedder.tokenizer))
        vectors = network.tokens.weight.detach().float()
    else:
        looked_up = look_up(embedder, words)
        found = np.where(looked_up.known, np.arange(len(words)), -1)
        vectors = torch.from_numpy(looked_up.vectors).to(embedder.device)
    rows = dict(zip(words, found.tolist(), strict=True))
    ids = np.array([[rows[word] for word in one.words] for one in analogies], dtype=np.int64)
    return vectors, ids


@torch.no_grad()
def answer_analogies(vectors: Tensor, questions: Tensor) -> Tensor:
    """Return the answer to each question (a, b, c, …), given as rows of the vectors.

    >>> vectors = torch.tensor([[1.0, 0, 1], [1, 1, 0], [0.5, 0, 3], [0.5, 2, 2], [-1, 1, 1]])
    >>> answer_analogies(vectors, torch.tensor([[0, 1, 2]])).tolist()
    [3]
    """  # (V, W), (Q, 3 or more) -> (Q,)
    norms = vectors.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)  # (V,)
    own = questions[:, :3]
    a, b, c = ((vectors[ids] / norms[ids][:, None]) for ids in own.T)
    target = b - a + c  # (Q, W)
    best = torch.full((len(own),), -torch.inf, device=vectors.device)
    answers = torch.zeros_like(own[:, 0])
    for start in range(0, len(vectors), CANDIDATES):
        rows = slice(start, start + CANDIDATES)
        scores = target @ vectors[rows].T / norms[rows]  # (Q, V of the block)
        inside = (own >= start) & (own < start + scores.shape[1])
        question, place = inside.nonzero(as_tuple=True)
        scores[question, own[question, place] - start] = -torch.inf
        highest, which = scores.max(dim=1)
        better = highest > best
        best = torch.where(better, highest, best)
        answers = torch.where(better, which + start, answers)
    return answers


def _metrics(analogies: Sequence[Analogy], right: NDArray[np.float64]) -> dict[str, Proportion]:
    """Compute the accuracy and, if there are both kinds of sections, that of each."""
    metrics = proportions({"accuracy": right})
    syntactic = np.array([one.is_syntactic for one in analogies])
    if syntactic.any() and not syntactic.all():
        metrics |= proportions({"semantic_accuracy": right[~syntactic]})
        metrics |= proportions({"syntactic_accuracy": right[syntactic]})
    return metrics


def _sections(analogies: Sequence[Analogy], right: NDArray[np.float64]) -> Parts:
    sections = np.array([one.section for one in analogies])
    return {
        name: {**proportions({"accuracy": right[sections == name]})}
        for name in dict.fromkeys(sections.tolist())
        if name
    }


ANALOGIES = ScoringTask(
    about="word analogies, by vector arithmetic (Google's questions)",
    columns="a, b, c, d",
    metric="accuracy",
    architectures=("encoder", "decoder", "encoder-decoder"),
    options=(),
    run=measure,
)
