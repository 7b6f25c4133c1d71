"""Log-likelihoods do not depend on the batch, and shared inputs are computed once.

`tests/parity/test_scoring.py` compares the values with other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firth import Model
from firth.adapt.apply import apply
from firth.data.windows import sliding_windows
from firth.inference.scoring import token_scoring
from firth.inference.scoring.log_likelihood import log_likelihoods, score_continuations
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.inference.scoring.token_scoring import MIN_SHARED_PREFIX, ScoringRequest, score_requests
from firth.jobs.prompting import prompt
from firth.models.masks import Mask
from firth.utils.errors import FirthError, MismatchError
from tests.nightly import pairs_mostly_nightly

TEXTS = ["The river rose.", "A dog", "the river rose and the old dog ran", "The river rose."]
PAIRS = [
    ([5, 6, 7], [8, 9]),
    ([5, 6, 7], [10]),
    ([5, 6, 7], [11]),
    ([30, 31], [32, 33, 34, 35]),
    ([5, 6], [7, 8]),
    ([40] * 20, [41, 42]),
]


def logs(found: Any) -> list[Any]:
    return [score.log_probs for score in found]


def assert_same(first: Any, second: Any) -> None:
    for one, other in zip(logs(first), logs(second), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "strategy"),
    pairs_mostly_nightly(
        ["gpt2", "decoder-tiny", "t5-small", "bart-base"],
        [None, "prompt:length=3", "prefix:length=3"],
    ),
)
def test_batching_makes_no_difference(
    name: str, strategy: str | None, make_model: Callable[..., Model]
) -> None:
    network = make_model(name).network
    if strategy is not None:
        apply(network, strategy)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    together = score_continuations(network, PAIRS)
    assert_same(together, score_continuations(network, PAIRS, batch_tokens=1))
    assert_same(together, [score_continuations(network, [pair])[0] for pair in PAIRS])
    long = [
        ([*range(50, 50 + 2 * MIN_SHARED_PREFIX), *pair[0]], pair[1]) for pair in PAIRS
    ]  # begin alike
    assert_same(
        score_continuations(network, long),
        [score_continuations(network, [pair])[0] for pair in long],
    )
    # The probability of all continuations of one token is 1.
    every = score_continuations(
        network, [([5, 6, 7], [id]) for id in range(network.config.vocab_size)]
    )
    assert sum(np.exp(score.sum) for score in every) == pytest.approx(1.0, abs=1e-5)
    assert sum(score.is_greedy for score in every) == 1


def test_shared_inputs_are_computed_once(
    make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, read = make_model("gpt2").network, list[int]()
    plain = type(network).forward

    def counting(self: Any, tokens: Any, *arguments: Any, **options: Any) -> Any:
        read.append(len(tokens))
        return plain(self, tokens, *arguments, **options)

    monkeypatch.setattr(type(network), "forward", counting)
    score_continuations(network, [([5, 6, 7], [id]) for id in range(100)])
    score_continuations(network, [([5, 6, 7], [8, 9]), ([5], [6, 7])])  # the one begins the other
    assert read == [3, 4]


def test_requests_are_consumed_lazily(make_model: Callable[..., Model]) -> None:
    """Results are yielded before all requests are consumed."""
    network, asked = make_model("gpt2").network, list[int]()

    def questions() -> Iterator[ScoringRequest]:
        for i in range(1000):
            asked.append(i)
            yield ScoringRequest((5, 6, i % 50), (2,), (7,))

    found = score_requests(network, questions(), batch_tokens=30)
    next(found)
    per_window = 30 * token_scoring.BATCHES_PER_WINDOW // 3
    assert len(asked) <= per_window + 1  # one more shows that the window is full
    assert len(list(found)) == 999


def test_without_bos_the_first_token_is_not_scored(
    make_model: Callable[..., Model],
) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=None)
    ids = [model.require_tokenizer().encode(text) for text in [*TEXTS, ""]]
    found = list(log_likelihoods(model.network, model.require_tokenizer(), [*TEXTS, ""]))
    assert [score.tokens for score in found] == [max(0, len(row) - 1) for row in ids]
    assert_same(
        found[:-1], score_continuations(model.network, [(row[:1], row[1:]) for row in ids[:-1]])
    )
    begun = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    found = list(log_likelihoods(begun.network, begun.require_tokenizer(), TEXTS))
    assert [score.tokens for score in found] == [len(row) for row in ids[:-1]]


@torch.no_grad()
def test_hybrid_decoder_scores_at_the_position_before(
    make_model: Callable[..., Model],
) -> None:
    """As in GPT-BERT: bidirectional, one position to the left; here one call per token."""
    model = make_model("gpt2", bos_token_id=2, eos_token_id=3)
    network, tokenizer = model.network, model.require_tokenizer()
    found = list(pseudo_log_likelihoods(network, tokenizer, TEXTS))
    for text, score in zip(TEXTS, found, strict=True):
        row = [2, *tokenizer.encode(text), 3]
        wanted = []
        for i in range(1, len(row) - 1):
            hidden = [*row[:i], tokenizer.special_ids["mask"], *row[i + 1 :]]
            seen = network(torch.tensor(hidden), Mask([len(hidden)]))
            wanted.append(float(network.logits(seen[i - 1 : i]).log_softmax(-1)[0, row[i]]))
        np.testing.assert_allclose(score.log_probs, wanted, atol=1e-5)


def test_pseudo_log_likelihoods_of_any_batch(
    make_model: Callable[..., Model],
) -> None:
    model = make_model("bert-tiny")
    both = model.network, model.require_tokenizer()
    texts = ["", *TEXTS, "", ""]
    found = list(pseudo_log_likelihoods(*both, texts))
    assert [score.tokens for score in found] == [len(both[1].encode(text)) for text in texts]
    assert_same(found, pseudo_log_likelihoods(*both, texts, batch_tokens=9))
    assert found[1].sum == pytest.approx(found[4].sum)  # the same text


def test_models_without_likelihoods(make_model: Callable[..., Model]) -> None:
    encoder, decoder = make_model("bert-tiny"), make_model("gpt2", tokenizer="bpe")
    both = make_model("t5-small")
    with pytest.raises(MismatchError, match="encoder cannot score continuations"):
        score_continuations(encoder.network, PAIRS)
    with pytest.raises(MismatchError, match="pseudo-log-likelihood"):
        log_likelihoods(encoder.network, encoder.require_tokenizer(), TEXTS)
    with pytest.raises(MismatchError, match="target given a source"):
        pseudo_log_likelihoods(both.network, both.require_tokenizer(), TEXTS)
    with pytest.raises(MismatchError, match="has no mask token"):
        pseudo_log_likelihoods(decoder.network, decoder.require_tokenizer(), TEXTS)
    with pytest.raises(MismatchError, match="at least one token"):
        score_continuations(decoder.network, [([], [3])])
    for network in (decoder.network, both.network):
        with pytest.raises(MismatchError, match="64 tokens"):
            score_continuations(network, [([3] * 65, [3, 4])])
    del encoder.network.heads["language"]
    with pytest.raises(MismatchError, match="no language head"):
        list(pseudo_log_likelihoods(encoder.network, encoder.require_tokenizer(), TEXTS))


# ---- windows ------------------------------------------------------------------------------------


@given(
    length=st.integers(0, 60),
    context=st.integers(2, 20),
    data=st.data(),
    known=st.integers(0, 1),
)
def test_windows(length: int, context: int, data: st.DataObject, known: int) -> None:
    """Every token is scored once, with enough context, whatever the pieces of the text."""
    stride = data.draw(st.integers(1, context - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=5)))
    text = np.arange(length)
    pieces = np.split(text, cuts)
    found = list(sliding_windows(iter(pieces), context, stride, known))
    asked = [token for window, old in found for token in window[old:].tolist()]
    assert asked == text[known:].tolist()
    for i, (window, old) in enumerate(found):
        assert len(window) <= context
        assert old == (known if i == 0 else context - stride)
        assert window.tolist() == list(range(window[0], window[0] + len(window)))


def test_nan_logits_are_an_error(make_model: Callable[..., Model]) -> None:
    decoder = make_model("gpt2", tokenizer="bpe", bos_token_id=1)
    encoder, both = (
        make_model("bert-tiny"),
        make_model("bart-base", eos_token_id=2, decoder_start_token_id=2),
    )
    for model in (decoder, encoder, both):
        torch.nn.init.constant_(model.network.tokens.weight, float("nan"))
    assert decoder.tokenizer is not None
    asked: list[Callable[[], Any]] = [
        lambda: list(log_likelihoods(decoder.network, decoder.tokenizer, TEXTS)),  # type: ignore[arg-type]
        lambda: prompt(decoder, TEXTS[:1], task="classify", labels=["dog", "river"]),
        lambda: encoder.fill("The [MASK] rose."),
        lambda: encoder.fill("The [MASK] rose.", targets=["the"]),
        lambda: encoder.correct("The rivre rose."),
        lambda: both.fill("The [MASK] rose."),
    ]
    for ask in asked:
        with pytest.raises(FirthError, match="NaN"):
            ask()
