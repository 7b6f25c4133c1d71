"""Decoding: cached = uncached, batched = alone, samples have the right distribution, and beam
search equals the reference implementation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from firth import UsageError
from firth.inference.generation import beam_search, sampling
from firth.inference.generation.decode_state import DecodeState
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.reference import reference_beam_search
from firth.inference.generation.token_generation import generate
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.utils.errors import FirthError
from tests.models.small import BOTH, DECODERS, KINDS, VOCABULARY, build
from tests.nightly import pairs_mostly_nightly

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [3, 4]]
GENERATORS = [*DECODERS, *BOTH]


def next_logits(network: Transformer, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Compute the next-token logits without a cache or a batch."""
    with torch.no_grad():
        if not network.config.has_encoder:
            row = torch.tensor([*prompt, *tokens])
            return network.logits(network(row, Mask.causal([len(row)])))[-1]
        memory_mask = Mask([len(prompt)])
        memory = network.encode(torch.tensor(prompt), memory_mask)
        row = torch.tensor([0, *tokens])
        hidden = network(row, Mask.causal([len(row)]), memory=memory, memory_mask=memory_mask)
        return network.logits(hidden)[-1]


@pytest.mark.parametrize("kind", GENERATORS)
def test_cached_equals_uncached(kind: str) -> None:
    network = build(KINDS[kind], dtype=torch.float64)
    for prompt, [ours] in zip(
        PROMPTS,
        generate(network, PROMPTS, GenerationConfig(max_new_tokens=7), eos_token_id=2),
        strict=True,
    ):
        tokens: list[int] = []
        total = 0.0
        for _ in range(7):
            log_probs = next_logits(network, prompt, tokens).log_softmax(-1)
            tokens.append(int(log_probs.argmax()))
            total += float(log_probs.max())
            if tokens[-1] == 2:
                break
        ended = tokens[-1] == 2
        assert list(ours.tokens) == tokens[: len(tokens) - ended]
        assert ours.finish_reason == ("end" if ended else "length")
        assert ours.logprob == pytest.approx(total, abs=1e-4)
        assert ours.score == pytest.approx(total / len(tokens), abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        GenerationConfig(max_new_tokens=6),
        GenerationConfig(max_new_tokens=6, method="sample", n=2, repetition_penalty=1.2),
        GenerationConfig(max_new_tokens=6, method="beam", beams=3, n=2),
    ],
    ids=lambda settings: settings.method,
)
def test_a_model_without_a_cache_generates_the_same(
    settings: GenerationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step then runs the whole sequences."""
    network = build(KINDS["llama"], dtype=torch.float64)
    cached = generate(network, PROMPTS, settings, eos_token_id=2)
    for module in (sampling, beam_search):
        monkeypatch.setattr(module, "start_decoding", lambda *given: DecodeState(*given[:3]))
    for ours, expected in zip(
        generate(network, PROMPTS, settings, eos_token_id=2), cached, strict=True
    ):
        assert [one.tokens for one in ours] == [one.tokens for one in expected]
        logprobs = [one.logprob for one in expected]
        assert [one.logprob for one in ours] == pytest.approx(logprobs, abs=1e-4)


METHODS = {
    "greedy": GenerationConfig(max_new_tokens=12),
    "sample": GenerationConfig(
        max_new_tokens=12, method="sample", n=2, seed=3, repetition_penalty=1.2
    ),
    "beam": GenerationConfig(max_new_tokens=12, method="beam", beams=3, n=2, no_repeat_ngram=3),
}


@pytest.mark.parametrize(("kind", "method"), pairs_mostly_nightly(GENERATORS, METHODS))
def test_results_do_not_depend_on_the_batch(kind: str, method: str) -> None:
    """Also when finished prompts are dropped from the batch."""
    settings = METHODS[method]
    network = build(KINDS[kind], dtype=torch.float64)
    prompts, limits = PROMPTS * 3, [12, 1, 2, 3, 1, 12, 2, 12, 2, 1, 12, 9]
    together = generate(network, prompts, settings, eos_token_id=2, limits=limits)
    assert {len(one.tokens) for rows in together for one in rows} >= {1, 2}
    for i, rows in enumerate(together):
        alone = generate(
            network, prompts[i : i + 1], settings, eos_token_id=2, limits=[limits[i]], indices=[i]
        )
        assert [one.tokens for one in rows] == [one.tokens for one in alone[0]]
        assert [one.score for one in rows] == pytest.approx([one.score for one in alone[0]])
        assert [one.finish_reason for one in rows] == [one.finish_reason for one in alone[0]]


# --- sampling


def expected_probs(logits: NDArray[np.float64], settings: GenerationConfig) -> NDArray[np.float64]:
    """Compute the filtered distribution in plain NumPy."""
    logits = logits / settings.temperature
    left = sorted(range(len(logits)), key=lambda i: -logits[i])
    if settings.top_k:
        left = left[: settings.top_k]

    def probs() -> NDArray[np.float64]:
        powers = np.exp(logits[left] - logits[left].max())
        return powers / powers.sum()

    if settings.top_p < 1:
        sums = np.cumsum(probs())
        left = left[: 1 + int((sums < settings.top_p).sum())]
    if settings.min_p:
        own = probs()
        left = [id for id, prob in zip(left, own, strict=True) if prob >= settings.min_p * own[0]]
    found = np.zeros(len(logits))
    found[left] = probs()
    return found


FILTERED: list[dict[str, Any]] = [
    dict(temperature=0.6),
    dict(temperature=1.7, top_k=6),
    dict(top_p=0.7),
    dict(min_p=0.2),
    dict(temperature=1.4, top_k=20, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("given", FILTERED, ids=str)
def test_samples_have_the_filtered_distribution(given: dict[str, Any]) -> None:
    network = build(KINDS["llama"])
    settings = GenerationConfig.of({**given, "n": 4000, "max_new_tokens": 1, "seed": 17})
    prompt = PROMPTS[0]
    found = generate(network, [prompt] * 5, settings, eos_token_id=None)
    counts = Counter(one.tokens[0] for rows in found for one in rows)
    assert counts.total() == 20_000
    expected = expected_probs(next_logits(network, prompt, []).double().numpy(), settings)
    assert not [token for token in counts if expected[token] == 0]
    assert_sampled_from({token: expected[token] for token in np.flatnonzero(expected)}, counts)


def assert_sampled_from(expected: dict[Any, float], counts: Counter[Any]) -> None:
    """Apply a chi-square test, with rare outcomes merged."""
    total = counts.total()
    pairs = [(counts[key], share * total) for key, share in expected.items()]
    common = [pair for pair in pairs if pair[1] >= 10]
    rare = [pair for pair in pairs if pair[1] < 10]
    if rare:
        common.append((sum(n for n, _ in rare), sum(share for _, share in rare)))
    seen, wanted = np.array(common, dtype=float).T
    assert len(common) > 1
    assert chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4


def test_samples_of_two_steps_are_independent() -> None:
    """The frequency of a pair is the product of the probabilities."""
    network = build(KINDS["llama"])
    settings = GenerationConfig.of({"top_k": 3, "n": 4000, "max_new_tokens": 2})
    prompt = PROMPTS[2]
    found = generate(network, [prompt] * 5, settings, eos_token_id=None)
    counts = Counter(one.tokens for rows in found for one in rows)
    expected = {}
    first = expected_probs(next_logits(network, prompt, []).double().numpy(), settings)
    for token in np.flatnonzero(first):
        then = expected_probs(next_logits(network, prompt, [int(token)]).double().numpy(), settings)
        for second in np.flatnonzero(then):
            expected[int(token), int(second)] = float(first[token] * then[second])
    assert len(expected) == 9
    assert_sampled_from(expected, counts)


def test_samples_depend_on_the_seed() -> None:
    network = build(KINDS["gpt2"])

    def sample(**more: Any) -> list[tuple[int, ...]]:
        settings = GenerationConfig.of({"temperature": 1.0, "n": 3, "max_new_tokens": 8, **more})
        found = generate(network, PROMPTS, settings, eos_token_id=None)
        return [one.tokens for rows in found for one in rows]

    assert sample() == sample()
    assert sample() != sample(seed=1)
    assert len(set(sample())) == len(sample())  # also within a prompt


def test_temperature_zero_is_greedy() -> None:
    network = build(KINDS["t5"])
    sampled = generate(
        network, PROMPTS, GenerationConfig(method="sample", temperature=0.0), eos_token_id=2
    )
    assert sampled == generate(network, PROMPTS, GenerationConfig(), eos_token_id=2)


def test_an_exhaustive_beam_search_finds_the_most_probable_sequences() -> None:
    """Compared with all sequences of three tokens."""
    network = build(DECODERS["gpt2"], dtype=torch.float64)
    few = 6  # tokens with a non-zero probability
    with torch.no_grad():
        head = network.heads["language"]
        bias = torch.full((VOCABULARY,), -60.0, dtype=torch.float64)
        bias[10 : 10 + few] = 0.0
        head.bias = torch.nn.Parameter(bias)
    settings = GenerationConfig(method="beam", beams=few**2, n=3, max_new_tokens=3)
    found = generate(network, PROMPTS[:2], settings, eos_token_id=None)
    for prompt, rows in zip(PROMPTS, found, strict=False):
        scores = {}
        first = next_logits(network, prompt, []).log_softmax(-1)
        for a in range(10, 10 + few):
            second = next_logits(network, prompt, [a]).log_softmax(-1)
            for b in range(10, 10 + few):
                third = next_logits(network, prompt, [a, b]).log_softmax(-1)
                for c in range(10, 10 + few):
                    scores[a, b, c] = float(first[a] + second[b] + third[c])
        best = sorted(scores, key=lambda text: -scores[text])[:3]
        assert [one.tokens for one in rows] == best
        logs = [scores[text] for text in best]
        assert [one.logprob for one in rows] == pytest.approx(logs, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "length_penalty"), pairs_mostly_nightly(["gpt2", "t5"], [-0.5, 0.0, 1.0, 2.0])
)
def test_beam_search_equals_the_reference(kind: str, length_penalty: float) -> None:
    network = build(KINDS[kind], dtype=torch.float64)
    [[greedy]] = generate(
        network, PROMPTS[:1], GenerationConfig(max_new_tokens=3), eos_token_id=None
    )
    eos = greedy.tokens[1]  # a token that the beams reach
    options: dict[str, Any] = {"max_new_tokens": 6, "length_penalty": length_penalty}
    config = GenerationConfig(method="beam", beams=3, n=3, **options)
    reasons = set()
    for prompt, ours in zip(
        PROMPTS, generate(network, PROMPTS, config, eos_token_id=eos), strict=True
    ):

        def log_probs(tokens: tuple[int, ...], prompt: list[int] = prompt) -> list[float]:
            return next_logits(network, prompt, list(tokens)).log_softmax(-1).tolist()

        truth = reference_beam_search(log_probs, beams=3, eos_token_id=eos, **options)
        ends = [(eos,) if one.finish_reason == "end" else () for one in ours]
        found = [(*one.tokens, *end) for one, end in zip(ours, ends, strict=True)]
        assert found == [hypothesis.tokens for hypothesis in truth]
        assert [one.score for one in ours] == pytest.approx(
            [hypothesis.score for hypothesis in truth], abs=1e-5
        )
        reasons |= {one.finish_reason for one in ours}
    assert "end" in reasons


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_sequences_fill_the_context(method: str) -> None:
    """The longest prompt is full first, and does not change while the others continue."""
    network = build(KINDS["gpt2"], dtype=torch.float64)
    settings = GenerationConfig(
        max_new_tokens=100, method=method, beams=1 if method == "greedy" else 2
    )
    prompts = [list(range(1, length + 1)) for length in (1, 31, 12, 29)]
    found = generate(network, prompts, settings, eos_token_id=None)
    assert [len(rows[0].tokens) for rows in found] == [31, 1, 20, 3]
    for prompt, rows in zip(prompts, found, strict=True):
        [alone] = generate(network, [prompt], settings, eos_token_id=None)
        assert alone[0].tokens == rows[0].tokens
    with pytest.raises(UsageError, match=r"32 tokens.* 32 tokens"):
        generate(network, [[1] * 32], settings, eos_token_id=None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "sample", "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"method": "beam", "beams": 3},
    ],
)
def test_nan_logits_are_an_error(settings: dict[str, Any]) -> None:
    network = build(KINDS["gpt2"])
    with torch.no_grad():
        network.tokens.weight.fill_(float("nan"))
    with pytest.raises(FirthError, match="NaN"):
        generate(network, PROMPTS, GenerationConfig(**settings), eos_token_id=None)


def test_no_prompts() -> None:
    assert generate(build(KINDS["gpt2"]), [], GenerationConfig(), eos_token_id=None) == []


# --- settings

INVALID: list[tuple[dict[str, Any], list[str]]] = [
    ({"temperature": -0.1}, ["`temperature`", "-0.1"]),
    ({"temperature": "0.5"}, ["`temperature`", "number", "str"]),
    ({"top_p": 0.0}, ["`top_p`", "0.0"]),
    ({"min_p": -1.0}, ["`min_p`", "-1.0"]),
    ({"top_k": -1}, ["`top_k`", "-1"]),
    ({"max_new_tokens": 0}, ["`max_new_tokens`", "from 1", "0"]),
    ({"repetition_penalty": 0.0}, ["`repetition_penalty`", "0.0"]),
    ({"n": 3}, ["3", "`temperature=1.0`", "`beams=3`"]),
    ({"beams": 2, "n": 3}, ["2", "3", "`beams`"]),
    ({"beams": 2, "temperature": 0.7}, ["`temperature`", "`beams`"]),
    ({"method": "sample", "beams": 7}, ["`beams`", "beam search"]),
    ({"method": "beam", "beams": 1}, ["`beams`", "at least 2"]),
    ({"length_penalty": 2.0}, ["`length_penalty`", "beam search", "`beams`"]),
    ({"method": "best"}, ["'best'", "greedy, sample, beam"]),
    ({"stop": [""]}, ["`stop`"]),
    ({"stop": 5}, ["`stop`", "5"]),
    ({"max_new_tokens": 2.5}, ["`max_new_tokens`", "integer", "2.5"]),
    ({"top_k": 1.5}, ["`top_k`", "integer", "1.5"]),
    ({"temperature": 1, "n": 1.0}, ["`n`", "integer", "1.0"]),
    ({"method": "beam", "n": "two"}, ["`n`", "integer", "'two'"]),
    ({"seed": 1.5}, ["`seed`", "integer", "1.5"]),
    ({"beams": 3, "early_stopping": "soon"}, ["`early_stopping`", "'soon'", '"never"']),
    ({"heat": 1.0}, ["heat", "temperature"]),
]


@pytest.mark.parametrize(("given", "facts"), INVALID, ids=str)
def test_invalid_options(given: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        GenerationConfig.of(given)
    message = str(raised.value)
    assert all(fact in message for fact in facts)
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "greedy"),
        ({"top_k": 5}, "sample"),
        ({"temperature": 0.0, "top_k": 5}, "greedy"),
        ({"beams": 1}, "greedy"),
        ({"beams": 2}, "beam"),
        ({"method": "beam"}, "beam"),
    ],
    ids=str,
)
def test_options_determine_the_method(given: dict[str, Any], method: str) -> None:
    assert GenerationConfig.of(given).method == method
