"""What is written behind a prompt: with a cache as without one, drawn as it should be, and the same
whatever else is in the batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from firth import Misuse
from firth.errors import FirthError
from firth.inference.generate import generate
from firth.inference.settings import Generation
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from tests.models.small import BOTH, DECODERS, KINDS, VOCABULARY, build

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [3, 4]]
GENERATORS = [*DECODERS, *BOTH]


def after(network: Transformer, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The scores of the token behind some others, without a cache and alone."""
    with torch.no_grad():
        if not network.config.has_encoder:
            row = torch.tensor([*prompt, *tokens])
            return network.logits(network(row, Mask.causal([len(row)])))[-1]
        read = Mask([len(prompt)])
        memory = network.encode(torch.tensor(prompt), read)
        row = torch.tensor([0, *tokens])
        hidden = network(row, Mask.causal([len(row)]), memory=memory, memory_mask=read)
        return network.logits(hidden)[-1]


@pytest.mark.parametrize("kind", GENERATORS)
def test_with_a_cache_as_without_one(kind: str) -> None:
    network = build(KINDS[kind], dtype=torch.float64)
    for prompt, [ours] in zip(
        PROMPTS, generate(network, PROMPTS, Generation(max_new_tokens=7), end=2), strict=True
    ):
        tokens: list[int] = []
        total = 0.0
        for _ in range(7):
            scores = after(network, prompt, tokens).log_softmax(-1)
            tokens.append(int(scores.argmax()))
            total += float(scores.max())
            if tokens[-1] == 2:
                break
        ended = tokens[-1] == 2
        assert list(ours.tokens) == tokens[: len(tokens) - ended]
        assert ours.ended == ("end" if ended else "length")
        assert ours.logprob == pytest.approx(total, abs=1e-4)
        assert ours.score == pytest.approx(total / len(tokens), abs=1e-5)


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize(
    "settings",
    [
        Generation(max_new_tokens=12),
        Generation(max_new_tokens=12, method="sample", n=2, seed=3, repetition_penalty=1.2),
        Generation(max_new_tokens=12, method="beam", beams=3, n=2, no_repeat_ngram=3),
    ],
    ids=lambda settings: settings.method,
)
def test_neighbours_in_a_batch_make_no_difference(kind: str, settings: Generation) -> None:
    """Also when many of them end early and are dropped."""
    network = build(KINDS[kind], dtype=torch.float64)
    prompts, room = PROMPTS * 3, [12, 1, 2, 3, 1, 12, 2, 12, 2, 1, 12, 9]
    together = generate(network, prompts, settings, end=2, room=room)
    assert {len(one.tokens) for rows in together for one in rows} >= {1, 2}
    for i, rows in enumerate(together):
        alone = generate(network, prompts[i : i + 1], settings, end=2, room=[room[i]], numbers=[i])
        assert [one.tokens for one in rows] == [one.tokens for one in alone[0]]
        assert [one.score for one in rows] == pytest.approx([one.score for one in alone[0]])
        assert [one.ended for one in rows] == [one.ended for one in alone[0]]


# --- drawing


def reference(scores: NDArray[np.float64], settings: Generation) -> NDArray[np.float64]:
    """The distribution that tokens are to be drawn from, the simplest way there is."""
    scores = scores / settings.temperature
    left = sorted(range(len(scores)), key=lambda i: -scores[i])
    if settings.top_k:
        left = left[: settings.top_k]

    def shares() -> NDArray[np.float64]:
        powers = np.exp(scores[left] - scores[left].max())
        return powers / powers.sum()

    if settings.top_p < 1:
        sums = np.cumsum(shares())
        left = left[: 1 + int((sums < settings.top_p).sum())]
    if settings.min_p:
        own = shares()
        left = [id for id, share in zip(left, own, strict=True) if share >= settings.min_p * own[0]]
    found = np.zeros(len(scores))
    found[left] = shares()
    return found


FILTERED: list[dict[str, Any]] = [
    dict(temperature=1.0),
    dict(temperature=0.6),
    dict(temperature=1.7, top_k=6),
    dict(top_p=0.7),
    dict(min_p=0.2),
    dict(temperature=1.4, top_k=20, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("given", FILTERED, ids=str)
def test_twenty_thousand_draws_are_as_they_should_be(given: dict[str, Any]) -> None:
    network = build(KINDS["llama"])
    settings = Generation.of({**given, "n": 4000, "max_new_tokens": 1, "seed": 17})
    prompt = PROMPTS[0]
    found = generate(network, [prompt] * 5, settings, end=None)
    counts = Counter(one.tokens[0] for rows in found for one in rows)
    assert counts.total() == 20_000
    expected = reference(after(network, prompt, []).double().numpy(), settings)
    assert not [token for token in counts if expected[token] == 0]
    assert_drawn_from({token: expected[token] for token in np.flatnonzero(expected)}, counts)


def assert_drawn_from(expected: dict[Any, float], counts: Counter[Any]) -> None:
    """A chi-square test; what is rare is put together."""
    total = counts.total()
    pairs = [(counts[key], share * total) for key, share in expected.items()]
    common = [pair for pair in pairs if pair[1] >= 10]
    rare = [pair for pair in pairs if pair[1] < 10]
    if rare:
        common.append((sum(n for n, _ in rare), sum(share for _, share in rare)))
    seen, wanted = np.array(common, dtype=float).T
    assert len(common) > 1
    assert chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4


def test_draws_of_one_step_say_nothing_of_the_next() -> None:
    """Pairs of tokens come as often as their probabilities multiply to."""
    network = build(KINDS["llama"])
    settings = Generation.of({"top_k": 3, "n": 4000, "max_new_tokens": 2})
    prompt = PROMPTS[2]
    found = generate(network, [prompt] * 5, settings, end=None)
    counts = Counter(one.tokens for rows in found for one in rows)
    expected = {}
    first = reference(after(network, prompt, []).double().numpy(), settings)
    for token in np.flatnonzero(first):
        then = reference(after(network, prompt, [int(token)]).double().numpy(), settings)
        for second in np.flatnonzero(then):
            expected[int(token), int(second)] = float(first[token] * then[second])
    assert len(expected) == 9
    assert_drawn_from(expected, counts)


def test_another_seed_draws_others_and_the_same_the_same() -> None:
    network = build(KINDS["gpt2"])

    def draw(**more: Any) -> list[tuple[int, ...]]:
        settings = Generation.of({"temperature": 1.0, "n": 3, "max_new_tokens": 8, **more})
        found = generate(network, PROMPTS, settings, end=None)
        return [one.tokens for rows in found for one in rows]

    assert draw() == draw()
    assert draw() != draw(seed=1)
    assert len(set(draw())) == len(draw())  # the completions of a prompt differ, too


def test_no_heat_is_the_likeliest() -> None:
    network = build(KINDS["t5"])
    cold = generate(network, PROMPTS, Generation(method="sample", temperature=0.0), end=2)
    assert cold == generate(network, PROMPTS, Generation(), end=2)


def test_a_beam_search_as_wide_as_the_tree_finds_the_likeliest_text() -> None:
    """Every text of three tokens is looked at in turn."""
    network = build(DECODERS["gpt2"], dtype=torch.float64)
    few = 6  # tokens that can come at all
    with torch.no_grad():
        head = network.heads["language"]
        bias = torch.full((VOCABULARY,), -60.0, dtype=torch.float64)
        bias[10 : 10 + few] = 0.0
        head.bias = torch.nn.Parameter(bias)
    settings = Generation(method="beam", beams=few**2, n=3, max_new_tokens=3)
    found = generate(network, PROMPTS[:2], settings, end=None)
    for prompt, rows in zip(PROMPTS, found, strict=False):
        scores = {}
        first = after(network, prompt, []).log_softmax(-1)
        for a in range(10, 10 + few):
            second = after(network, prompt, [a]).log_softmax(-1)
            for b in range(10, 10 + few):
                third = after(network, prompt, [a, b]).log_softmax(-1)
                for c in range(10, 10 + few):
                    scores[a, b, c] = float(first[a] + second[b] + third[c])
        best = sorted(scores, key=lambda text: -scores[text])[:3]
        assert [one.tokens for one in rows] == best
        logs = [scores[text] for text in best]
        assert [one.logprob for one in rows] == pytest.approx(logs, abs=1e-4)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_every_text_goes_on_to_the_last_place(method: str) -> None:
    """The longest prompt is full first, and stays as it is while the others go on."""
    network = build(KINDS["gpt2"], dtype=torch.float64)
    settings = Generation(max_new_tokens=100, method=method, beams=1 if method == "greedy" else 2)
    prompts = [list(range(1, length + 1)) for length in (1, 31, 12, 29)]
    found = generate(network, prompts, settings, end=None)
    assert [len(rows[0].tokens) for rows in found] == [31, 1, 20, 3]
    for prompt, rows in zip(prompts, found, strict=True):
        [alone] = generate(network, [prompt], settings, end=None)
        assert alone[0].tokens == rows[0].tokens
    with pytest.raises(Misuse, match="A prompt has 32 tokens, the model sees only 32"):
        generate(network, [[1] * 32], settings, end=None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "sample"},
        {"method": "sample", "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"method": "beam", "beams": 3},
    ],
)
def test_scores_that_are_no_numbers_are_told(settings: dict[str, Any]) -> None:
    network = build(KINDS["gpt2"])
    with torch.no_grad():
        network.tokens.weight.fill_(float("nan"))
    with pytest.raises(FirthError, match=r"not numbers \(NaN\)"):
        generate(network, PROMPTS, Generation(**settings), end=None)


def test_of_no_prompts_nothing_is_made() -> None:
    assert generate(build(KINDS["gpt2"]), [], Generation(), end=None) == []


# --- settings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, r"`temperature` is at least 0 .*, not -0\.1"),
    ({"temperature": float("nan")}, "`temperature` is at least 0"),
    ({"top_p": 0.0}, r"`top_p` is a probability above 0 and up to 1, not 0\.0"),
    ({"top_p": 1.5}, "`top_p` is a probability"),
    ({"min_p": -1.0}, "`min_p` is a share from 0 to 1"),
    ({"top_k": -1}, "`top_k` is a number of tokens"),
    ({"max_new_tokens": 0}, "`max_new_tokens` is a number from 1"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` is above 0"),
    ({"beams": 0}, "`beams` is a number from 1"),
    ({"n": 3}, r"one likeliest continuation, not 3: draw them .* or search"),
    ({"n": 3, "temperature": 0}, "one likeliest continuation"),
    ({"beams": 2, "n": 3}, "2 beams give no more than 2 completions, not 3"),
    ({"beams": 2, "temperature": 0.7}, "Beams are searched, not drawn: leave out `temperature`"),
    ({"method": "beam", "top_k": 7}, "Beams are searched, not drawn"),
    ({"method": "greedy", "top_k": 7}, "`top_k` is for sampling"),
    ({"method": "sample", "beams": 7}, "`beams` is for beams"),
    ({"method": "beam", "beams": 1}, "needs `beams` of at least 2"),
    ({"length_penalty": 2.0}, "`length_penalty` is for a beam search: say how many `beams`"),
    ({"method": "best"}, "no method 'best'; known are greedy, sample, beam"),
    ({"stop": [""]}, "`stop` is texts, none of them empty"),
    ({"beams": 3, "early_stopping": "soon"}, "`early_stopping` is True, False"),
    ({"heat": 1.0}, "no setting heat"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=lambda value: str(value))
def test_settings_that_cannot_be_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence) as refused:
        Generation.of(given)
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "greedy"),
        ({"top_k": 5}, "sample"),
        ({"top_p": 0.9}, "sample"),
        ({"min_p": 0.1}, "sample"),
        ({"temperature": 0.0, "top_k": 5}, "greedy"),
        ({"beams": 1}, "greedy"),
        ({"beams": 2}, "beam"),
        ({"method": "beam"}, "beam"),
        ({"repetition_penalty": 1.2}, "greedy"),
    ],
    ids=str,
)
def test_what_is_given_says_which_method_it_is(given: dict[str, Any], method: str) -> None:
    assert Generation.of(given).method == method
