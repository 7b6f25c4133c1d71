"""Models pre-trained on the stories: masked words, and perplexity against an n-gram model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from firth.data.shards import Shards
from firth.data.stories import write_stories
from firth.inference.infilling.mask_filling import fill
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from tests.story.ngram import KneserNey


def test_kneser_ney_by_hand() -> None:
    """Two documents, "a b" and "a c", as a bigram model, with every number written out.

    Bigrams: ·a twice; ab, ac, b·, c· once each. Of the counts, 4 are one and 1 is two, so the
    discount is 4 / (4 + 2) = 2/3. A token's continuation count is the number of different tokens
    before it: a 1, b 1, c 1, end 2; of those 3 are one and 1 is two: 3 / (3 + 2) = 3/5.
    """
    a, b, c = range(3)
    model = KneserNey([[a, b], [a, c]], vocabulary=3, order=2)
    uniform = 1 / 4
    unigram = dict.fromkeys((a, b, c), (1 - 0.6) / 5 + 0.6 * 4 / 5 * uniform)
    end = (2 - 0.6) / 5 + 0.6 * 4 / 5 * uniform
    d = 2 / 3
    expected = [
        (2 - d) / 2 + d * 1 / 2 * unigram[a],
        (1 - d) / 2 + d * 2 / 2 * unigram[b],
        (1 - d) / 1 + d * 1 / 1 * end,
    ]
    np.testing.assert_allclose(np.exp(model.log_probabilities([a, b])), expected)
    after_a = [np.exp(model.log_probabilities([a, x])[1]) for x in (a, b, c)]
    last = np.exp(model.log_probabilities([a])[1])
    assert sum(after_a) + last == pytest.approx(1.0)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's stories and tokenizer; the validation split is the test stories."""
    folder = tmp_path_factory.mktemp("world")
    write_stories(folder / "stories", words=1_000_000, seed=0)
    train, test = folder / "stories/train.txt", folder / "stories/test.txt"
    options = {"kind": "wordpiece", "vocab_size": 3000, "lowercase": True, "sentinels": 100}
    tokenizer, _ = train_tokenizer([train], **options)
    tokenizer.save(folder / "tokenizer")
    prepare([train], tokenizer=folder / "tokenizer", out=folder / "shards", valid=[test])
    return folder / "shards"


@pytest.mark.nightly
def test_masked_words_of_the_lectures(shards: Path, tmp_path: Path) -> None:
    run = pretrain(preset="encoder-tiny", data=shards, out=tmp_path, tokens=1_300_000)
    assert run.model.tokenizer is not None
    for text, word in (
        ("The [MASK] barked loudly at the mailman.", "dog"),
        ("The capital of France is [MASK].", "paris"),
    ):
        best = fill(run.model.network, run.model.tokenizer, text)[0][0]
        assert best.token == word, (text, best)


@torch.no_grad()
def perplexity(network: Transformer, tokenizer: Tokenizer, documents: list[list[int]]) -> float:
    """Compute the perplexity of a decoder on documents, end-of-text tokens included."""
    first, last = tokenizer.special_ids["cls"], tokenizer.special_ids["sep"]
    total, count = 0.0, 0
    for document in documents:
        ids = torch.tensor([first, *document, last])
        hidden = network(ids[:-1], Mask.causal([len(ids) - 1]))
        log_probs = network.logits(hidden).float().log_softmax(-1)
        total -= float(log_probs.gather(1, ids[1:, None]).sum())
        count += len(ids) - 1
    return float(np.exp(total / count))


@pytest.mark.nightly
def test_the_tiny_decoder_beats_a_5_gram_model(shards: Path, tmp_path: Path) -> None:
    run = pretrain(preset="decoder-tiny", data=shards, out=tmp_path, tokens=1_000_000)
    train, test = Shards(shards), Shards(shards, "valid")
    tokenizer = Tokenizer.load(shards)
    documents = [test[i].tolist() for i in range(len(test))]
    counts = KneserNey([train[i].tolist() for i in range(len(train))], len(tokenizer))
    surprises = np.concatenate([-counts.log_probabilities(document) for document in documents])
    ngram = float(np.exp(surprises.mean()))
    decoder = perplexity(run.model.network.eval(), tokenizer, documents)
    print(f"perplexity: 5-gram {ngram:.2f}, decoder-tiny {decoder:.2f}")
    assert decoder <= 0.85 * ngram
