"""How likely texts are: the same however they are batched, and nothing is read twice.

That the numbers are right, `tests/parity/test_scoring.py` says.
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
from firth.adapt.adapted import apply
from firth.errors import FirthError, MismatchError
from firth.inference import rows
from firth.inference.pseudo import pseudo_likelihoods
from firth.inference.rows import ALIKE, Asked, scores
from firth.inference.score import continuations, likelihoods
from firth.inference.windows import windows
from firth.models.masks import Mask
from firth.prompting import prompt

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
    return [score.logs for score in found]


def assert_same(first: Any, second: Any) -> None:
    for one, other in zip(logs(first), logs(second), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("strategy", [None, "prompt:length=3", "prefix:length=3"])
@pytest.mark.parametrize("name", ["gpt2", "decoder-tiny", "t5-small", "bart-base"])
def test_batching_makes_no_difference(
    name: str, strategy: str | None, make_model: Callable[..., Model]
) -> None:
    network = make_model(name).network
    if strategy is not None:
        apply(network, strategy)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    together = continuations(network, PAIRS)
    assert_same(together, continuations(network, PAIRS, batch=1))
    assert_same(together, [continuations(network, [pair])[0] for pair in PAIRS])
    long = [([*range(50, 50 + 2 * ALIKE), *pair[0]], pair[1]) for pair in PAIRS]  # begin alike
    assert_same(continuations(network, long), [continuations(network, [pair])[0] for pair in long])
    # The probability of all continuations of one token is 1.
    every = continuations(network, [([5, 6, 7], [id]) for id in range(network.config.vocabulary)])
    assert sum(np.exp(score.sum) for score in every) == pytest.approx(1.0, abs=1e-5)
    assert sum(score.is_greedy for score in every) == 1


def test_what_is_shared_is_read_once(
    make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, read = make_model("gpt2").network, list[int]()
    plain = type(network).forward

    def counting(self: Any, tokens: Any, *arguments: Any, **options: Any) -> Any:
        read.append(len(tokens))
        return plain(self, tokens, *arguments, **options)

    monkeypatch.setattr(type(network), "forward", counting)
    continuations(network, [([5, 6, 7], [id]) for id in range(100)])
    continuations(network, [([5, 6, 7], [8, 9]), ([5], [6, 7])])  # the one begins the other
    assert read == [3, 4]


def test_the_memory_does_not_grow_with_the_number_of_rows(make_model: Callable[..., Model]) -> None:
    """Answers come while questions are still being asked."""
    network, asked = make_model("gpt2").network, list[int]()

    def questions() -> Iterator[Asked]:
        for i in range(1000):
            asked.append(i)
            yield Asked((5, 6, i % 50), (2,), (7,))

    found = scores(network, questions(), batch=30)
    next(found)
    assert len(asked) <= 30 * rows.AHEAD / 3
    assert len(list(found)) == 999


def test_without_a_token_that_begins_a_text_the_first_is_not_scored(
    make_model: Callable[..., Model],
) -> None:
    model = make_model("gpt2", tokenizer="bpe", begin_id=None)
    ids = [model.tokenizer_needed().encode(text) for text in [*TEXTS, ""]]
    found = list(likelihoods(model.network, model.tokenizer_needed(), [*TEXTS, ""]))
    assert [score.tokens for score in found] == [max(0, len(row) - 1) for row in ids]
    assert_same(found[:-1], continuations(model.network, [(row[:1], row[1:]) for row in ids[:-1]]))
    begun = make_model("gpt2", tokenizer="bpe", begin_id=0)
    found = list(likelihoods(begun.network, begun.tokenizer_needed(), TEXTS))
    assert [score.tokens for score in found] == [len(row) for row in ids[:-1]]


@torch.no_grad()
def test_a_hybrid_is_asked_at_the_place_before_what_is_hidden(
    make_model: Callable[..., Model],
) -> None:
    """As GPT-BERT learns: both ways, one place to the left; one call for each token here."""
    model = make_model("gpt2", begin_id=2, end_id=3)
    network, tokenizer = model.network, model.tokenizer_needed()
    found = list(pseudo_likelihoods(network, tokenizer, TEXTS))
    for text, score in zip(TEXTS, found, strict=True):
        row = [2, *tokenizer.encode(text), 3]
        wanted = []
        for i in range(1, len(row) - 1):
            hidden = [*row[:i], tokenizer.special_ids["mask"], *row[i + 1 :]]
            seen = network(torch.tensor(hidden), Mask([len(hidden)]))
            wanted.append(float(network.logits(seen[i - 1 : i]).log_softmax(-1)[0, row[i]]))
        np.testing.assert_allclose(score.logs, wanted, atol=1e-5)


def test_pseudo_likelihoods_of_nothing_and_in_any_batches(make_model: Callable[..., Model]) -> None:
    model = make_model("bert-tiny")
    both = model.network, model.tokenizer_needed()
    texts = ["", *TEXTS, "", ""]
    found = list(pseudo_likelihoods(*both, texts))
    assert [score.tokens for score in found] == [len(both[1].encode(text)) for text in texts]
    assert_same(found, pseudo_likelihoods(*both, texts, batch=9))
    assert found[1].sum == found[4].sum  # the same text, bit by bit


def test_models_that_cannot(make_model: Callable[..., Model]) -> None:
    encoder, decoder = make_model("bert-tiny"), make_model("gpt2", tokenizer="bpe")
    both = make_model("t5-small")
    with pytest.raises(MismatchError, match="An encoder cannot say how a text goes on"):
        continuations(encoder.network, PAIRS)
    with pytest.raises(MismatchError, match="it has a pseudo-likelihood"):
        likelihoods(encoder.network, encoder.tokenizer_needed(), TEXTS)
    with pytest.raises(MismatchError, match="can score a target for a source"):
        pseudo_likelihoods(both.network, both.tokenizer_needed(), TEXTS)
    with pytest.raises(MismatchError, match="has no mask token"):
        pseudo_likelihoods(decoder.network, decoder.tokenizer_needed(), TEXTS)
    with pytest.raises(MismatchError, match="needs at least one token before it"):
        continuations(decoder.network, [([], [3])])
    for network in (decoder.network, both.network):
        with pytest.raises(MismatchError, match="but the model sees only 64"):
            continuations(network, [([3] * 65, [3, 4])])
    del encoder.network.heads["language"]
    with pytest.raises(MismatchError, match="has no language head"):
        list(pseudo_likelihoods(encoder.network, encoder.tokenizer_needed(), TEXTS))


# ---- windows ------------------------------------------------------------------------------------


@given(
    length=st.integers(0, 60),
    context=st.integers(2, 20),
    data=st.data(),
    known=st.integers(0, 1),
)
def test_windows(length: int, context: int, data: st.DataObject, known: int) -> None:
    """Every token is asked for once, with enough before it, however the text comes in pieces."""
    stride = data.draw(st.integers(1, context - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=5)))
    text = np.arange(length)
    pieces = np.split(text, cuts)
    found = list(windows(iter(pieces), context, stride, known))
    asked = [token for window, old in found for token in window[old:].tolist()]
    assert asked == text[known:].tolist()
    for i, (window, old) in enumerate(found):
        assert len(window) <= context
        assert old == (known if i == 0 else context - stride)
        assert window.tolist() == list(range(window[0], window[0] + len(window)))


def test_scores_that_are_no_numbers_are_told(make_model: Callable[..., Model]) -> None:
    decoder = make_model("gpt2", tokenizer="bpe", begin_id=1)
    encoder, both = make_model("bert-tiny"), make_model("bart-base", end_id=2, start_id=2)
    for model in (decoder, encoder, both):
        torch.nn.init.constant_(model.network.tokens.weight, float("nan"))
    assert decoder.tokenizer is not None
    asked: list[Callable[[], Any]] = [
        lambda: list(likelihoods(decoder.network, decoder.tokenizer, TEXTS)),  # type: ignore[arg-type]
        lambda: prompt(decoder, TEXTS[:1], task="classify", labels=["dog", "river"]),
        lambda: encoder.fill("The [MASK] rose."),
        lambda: encoder.fill("The [MASK] rose.", targets=["the"]),
        lambda: encoder.correct("The rivre rose."),
        lambda: both.fill("The [MASK] rose."),
    ]
    for ask in asked:
        with pytest.raises(FirthError, match=r"not numbers \(NaN\)"):
            ask()
