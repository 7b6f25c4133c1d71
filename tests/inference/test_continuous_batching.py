"""Sequences that join and leave a batch get the tokens they get alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import firth
from firth import UsageError
from firth.inference.generation.continuous_batching import ContinuousBatch
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.sequence_request import SequenceRequest, StepToken
from firth.inference.generation.token_generation import generate
from firth.models.config import ModelConfig
from firth.models.initialization import initialise
from firth.models.language_model import LanguageNetwork, ScoringModel
from firth.models.masks import Mask
from firth.models.networks import build_network
from firth.models.ngram.config import NgramConfig
from firth.models.ngram.kneser_ney import SmoothedOrder
from firth.models.ngram.model import NgramModel
from firth.models.recurrent.recurrent_configs import LstmConfig
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig, RnnSeq2SeqConfig
from firth.models.transformer import Transformer
from firth.quantization import c_library
from firth.quantization.c_decoder import CDecoder
from firth.tokenizers.open_vocabulary import _OPEN_WORDS
from tests.models.small import BOTH, DECODERS, KINDS, VOCABULARY, build
from tests.quantization import needs_native

END = 2
SAMPLE_FILE = Path(__file__).parents[1] / "sample.txt"
Requests = Mapping[int, SequenceRequest]
SAMPLED: tuple[dict[str, Any], ...] = (
    dict(),
    dict(temperature=0.7),
    dict(top_k=5),
    dict(top_k=3, top_p=0.8),
    dict(top_p=0.6, temperature=1.3),
    dict(min_p=0.1),
    dict(repetition_penalty=1.4),
    dict(no_repeat_ngram=2),
)


def make_requests(count: int, seed: int = 0, vocab_size: int = VOCABULARY) -> dict[int, Any]:
    """Return requests of different length, half of them sampled with all kinds of options."""
    draw, requests = random.Random(seed), {}
    for i in range(count):
        config = GenerationConfig(repetition_penalty=1.2 if i % 8 == 2 else 1.0)
        if i % 2:
            config = GenerationConfig(method="sample", seed=i, **SAMPLED[i // 2 % len(SAMPLED)])
        prompt = tuple(draw.randrange(3, vocab_size) for _ in range(draw.randint(1, 12)))
        requests[i] = SequenceRequest(
            prompt=prompt,
            limit=draw.randint(1, 14),
            config=config,
            index=i % 3,
            prompt_index=i % 4,
            logprobs=i % 5,
            eos_token_ids=(END,),
        )
    return requests


def run(batch: ContinuousBatch, requests: Requests, seed: int = 1) -> dict[int, list[StepToken]]:
    """Generate, with a random number of new sequences before each step."""
    draw, waiting = random.Random(seed), list(requests.items())
    found: dict[int, list[StepToken]] = {key: [] for key in requests}
    while waiting or len(batch):
        new: dict[Any, SequenceRequest] = {}
        for _ in range(draw.randint(0, 3)):
            if waiting and batch.fits(*new.values(), waiting[0][1]):
                key, request = waiting.pop(0)
                new[key] = request
        batch.add(new)
        for token in batch.step():
            assert isinstance(token.key, int)
            found[token.key].append(token)
    return found


def alone(network: ScoringModel, request: SequenceRequest) -> tuple[list[int], float, str]:
    """Return the tokens that `generate` gives one prompt, their log-probability and the reason."""
    sampled = request.config.method == "sample"
    config = replace(request.config, n=request.index + 1 if sampled else 1, max_new_tokens=500)
    [completions] = generate(
        network,
        [request.prompt],
        config,
        eos_token_id=request.eos_token_ids,
        limits=[request.limit],
        indices=[request.prompt_index],
    )
    last = completions[-1]
    end = [] if last.eos_token_id is None else [last.eos_token_id]
    return [*last.tokens, *end], last.logprob, last.finish_reason


def check(network: ScoringModel, requests: Requests, found: Mapping[int, list[StepToken]]) -> None:
    """Compare with each request alone."""
    for key, request in requests.items():
        tokens, logprob, reason = alone(network, request)
        steps = found[key]
        assert [step.token for step in steps] == tokens, key
        assert sum(step.logprob for step in steps) == pytest.approx(logprob, abs=1e-3)
        assert [step.finish for step in steps] == [""] * (len(tokens) - 1) + [reason]
        assert all(len(step.top) == min(request.logprobs, VOCABULARY) for step in steps)


@pytest.mark.parametrize("kind", ["gpt2", "windowed", "biased", "t5"])
def test_transformers(kind: str) -> None:
    check_transformer(build(KINDS[kind]), 8)


def test_a_prefix_lm() -> None:
    check_transformer(build(replace(KINDS["llama"], prefix_lm=True)), 6)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)  # float64: in torch
@pytest.mark.parametrize("kind", [*DECODERS, *BOTH])
def test_all_kinds_of_transformers(kind: str, dtype: torch.dtype) -> None:
    check_transformer(build(KINDS[kind], dtype=dtype), 50)


def check_transformer(network: Transformer, count: int) -> None:
    requests = make_requests(count)
    for max_sequences in (3, 12):
        batch = ContinuousBatch(network, max_sequences=max_sequences, max_tokens=300)
        check(network, requests, run(batch, requests))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)  # float64: in torch
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_invalid_logits_end_one_sequence(value: float, dtype: torch.dtype) -> None:
    """Others go on with their tokens, and so does the next one in its row of the cache."""
    network = build(replace(KINDS["llama"], tie_embeddings=False), dtype=dtype)
    requests = make_requests(6)
    expected = {key: alone(network, request) for key, request in requests.items()}
    used = {id for key, request in requests.items() for id in (*request.prompt, *expected[key][0])}
    damaged = min(set(range(3, VOCABULARY)) - used)
    with torch.no_grad():
        network.tokens.weight[damaged] = value
    batch = ContinuousBatch(network, max_sequences=3, max_tokens=300)
    at_once = replace(requests[0], prompt=(*requests[0].prompt, damaged))
    later = replace(requests[0], limit=9, logit_bias={damaged: 1e4})
    found = run(batch, {10: at_once, 11: later, **requests})
    assert [step.finish for step in found[10]] == ["invalid"]
    assert [step.finish for step in found[11]] == ["", "invalid"]
    for key, (tokens, *_) in expected.items():
        assert [step.token for step in found[key]] == tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_invalid_states_are_not_passed_on(dtype: torch.dtype) -> None:
    """A shorter sequence in the same row masks them, but 0 times NaN is NaN."""
    network = build(replace(KINDS["llama"], tie_embeddings=False), dtype=dtype)
    damaged, short = 7, SequenceRequest(prompt=(3, 4), limit=5)
    expected = alone(network, short)[0]
    assert damaged not in expected
    with torch.no_grad():
        network.tokens.weight[damaged] = float("nan")
    batch = ContinuousBatch(network, max_sequences=2, max_tokens=300)
    long = SequenceRequest(prompt=(3, 4, 5, 6) * 3, limit=9, logit_bias={damaged: -1e4})
    batch.add({"long": long, "bad": replace(short, prompt=(3, 4, 5, 6, 8, 9, damaged))})
    assert [step.finish for step in batch.step()] == ["", "invalid"]
    batch.add({"short": short})
    steps = [step for _ in range(5) for step in batch.step() if step.key == "short"]
    assert [step.token for step in steps] == expected


def ngram() -> NgramModel:
    draw = torch.Generator().manual_seed(0)
    words = torch.rand(VOCABULARY, generator=draw).double().log_softmax(-1).numpy()
    pairs = torch.randperm(VOCABULARY**2, generator=draw)[:300].sort().values.numpy()
    log_probs = torch.rand(300, generator=draw).double().log().numpy()
    orders = [
        SmoothedOrder(torch.arange(VOCABULARY).numpy(), words, words),
        SmoothedOrder(pairs, log_probs, log_probs[:0]),
    ]
    return NgramModel.from_orders(NgramConfig(order=2, vocab_size=VOCABULARY), orders)


SIZES: dict[str, Any] = dict(vocab_size=VOCABULARY, max_positions=32, hidden_size=8, num_layers=1)
IDS: dict[str, Any] = dict(eos_token_id=END, decoder_start_token_id=1, initialization="xavier")
RECURRENT: dict[str, ModelConfig] = {
    "lstm": LstmConfig(architecture="decoder", **SIZES, init_std=0.7),
    "gru": LstmConfig(architecture="decoder", **SIZES, init_std=0.7, cell="gru"),
    "seq2seq": RnnSeq2SeqConfig(**SIZES, **IDS, attention="bahdanau"),
    "pointer": PointerGeneratorConfig(**SIZES, **IDS, unk_token_id=3, coverage=True),
}


def recurrent(kind: str) -> LanguageNetwork:
    return initialise(build_network(RECURRENT[kind], ["language"]), seed=3).eval()


@pytest.mark.parametrize("kind", [*RECURRENT, "ngram"])
def test_models_without_a_key_value_cache(kind: str) -> None:
    network = ngram() if kind == "ngram" else recurrent(kind)
    requests = make_requests(10)
    check(
        network, requests, run(ContinuousBatch(network, max_sequences=4, max_tokens=200), requests)
    )


def test_a_copied_word_has_its_open_id() -> None:
    network = recurrent("pointer")
    with torch.no_grad():
        network.gate.bias.fill_(-30.0)  # always copy
    first, second = (_OPEN_WORDS.id(word) for word in ("Firthian", "collocation"))
    requests = {
        i: SequenceRequest(prompt=prompt, limit=3, logprobs=1)
        for i, prompt in enumerate([(first,), (second, second), (5, 5, 5)])
    }
    found = run(ContinuousBatch(network, max_sequences=4, max_tokens=60), requests)
    assert [[step.token for step in steps] for steps in found.values()] == [
        [first] * 3,
        [second] * 3,
        [5] * 3,
    ]
    assert [steps[0].top[0].token for steps in found.values()] == [first, second, 5]
    with pytest.raises(UsageError, match=str(first)):  # a logit of a copied word has no fixed place
        SequenceRequest(prompt=(first,), limit=3, logit_bias={first: 1.0}).check(network)


def test_forced_tokens() -> None:
    forced = dict(forced_bos_token_id=7, forced_eos_token_id=END)
    network, requests = build(replace(KINDS["bart"], **forced)), make_requests(6)
    found = run(ContinuousBatch(network, max_sequences=4, max_tokens=200), requests)
    check(network, requests, found)
    assert all(steps[0].token == 7 for key, steps in found.items() if requests[key].limit > 1)


def log_probs(network: Transformer, tokens: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities of the token after the last, in a plain forward pass."""
    with torch.no_grad():
        hidden = network(torch.tensor(tokens), Mask.causal([len(tokens)]))
        return network.logits(hidden)[-1].log_softmax(-1)


def test_log_probabilities_are_those_of_a_forward_pass() -> None:
    """They are the model's own: no option changes them."""
    network = build(KINDS["llama"])
    sampling = GenerationConfig(method="sample", temperature=0.5, top_k=4, repetition_penalty=1.5)
    request = SequenceRequest(prompt=(5, 9, 14), limit=8, config=sampling, logprobs=6)
    requests = {0: request, 1: replace(request, prompt=(31,), logit_bias={8: 3.0}, index=2)}
    found = run(ContinuousBatch(network, max_sequences=2, max_tokens=60), requests)
    for key, steps in found.items():
        tokens = [*requests[key].prompt]
        for step in steps:
            expected = log_probs(network, tokens)
            assert step.logprob == pytest.approx(expected[step.token].item(), abs=1e-4)
            best = expected.topk(6)
            assert [one.token for one in step.top] == best.indices.tolist()
            assert [one.logprob for one in step.top] == pytest.approx(
                best.values.tolist(), abs=1e-4
            )
            tokens.append(step.token)


def test_a_logit_bias_excludes_or_forces_a_token() -> None:
    network = build(KINDS["gpt2"])
    plain = SequenceRequest(prompt=(5, 9), limit=6)
    tokens, _, _ = alone(network, plain)
    requests = {
        0: plain,
        1: replace(plain, logit_bias={tokens[0]: -100.0}),
        2: replace(plain, logit_bias={11: 100.0}),
        3: replace(plain, logit_bias={11: 100.0}, config=GenerationConfig(method="sample")),
    }
    found = run(ContinuousBatch(network, max_sequences=4, max_tokens=100), requests)
    assert [step.token for step in found[0]] == tokens
    assert tokens[0] not in [step.token for step in found[1]]
    second = log_probs(network, [5, 9]).topk(2).indices[1]
    assert found[1][0].token == second
    assert [step.token for step in (*found[2], *found[3])] == [11] * 12


@pytest.mark.parametrize("kind", ["llama", "t5", "lstm"])
def test_sequences_that_are_removed_do_not_disturb_the_others(kind: str) -> None:
    network = recurrent(kind) if kind in RECURRENT else build(KINDS[kind])
    requests = {key: replace(one, limit=14) for key, one in make_requests(9).items()}
    batch = ContinuousBatch(network, max_sequences=9, max_tokens=400)
    batch.add(requests)
    found: dict[int, list[StepToken]] = {key: [] for key in requests}
    for step in range(14):
        for token in batch.step():
            found[token.key].append(token)  # type: ignore[index]
        if step in (2, 5):
            batch.remove(step)
            batch.remove(8 - step)
            batch.remove("unknown")
    kept = {key: one for key, one in requests.items() if key not in (2, 6, 5, 3)}
    check(network, kept, found)
    assert len(found[2]) <= 3
    assert len(batch) == 0
    assert batch.step() == []


def test_a_removed_key_can_be_used_again() -> None:
    network, request = build(KINDS["llama"]), SequenceRequest(prompt=(5, 9), limit=4)
    batch = ContinuousBatch(network, max_sequences=2, max_tokens=40)
    batch.add({0: request})
    batch.step()
    with pytest.raises(UsageError, match="0"):
        batch.add({0: request})
    batch.remove(0)
    check(network, {0: request}, run(batch, {0: request}))


def test_what_fits() -> None:
    network = build(KINDS["llama"])
    batch = ContinuousBatch(network, max_sequences=3, max_tokens=60)
    short, long = (SequenceRequest(prompt=(5,) * size, limit=10) for size in (5, 20))
    assert batch.fits(short, short, short)
    assert not batch.fits(short, short, short, short)
    assert batch.fits(long, short)
    assert not batch.fits(long, short, short)  # three rows of 30 tokens
    batch.add({0: long, 1: short})
    assert not batch.fits(short)
    with pytest.raises(UsageError, match="60"):
        batch.add({2: short})
    batch.remove(0)
    assert batch.fits(short, short)
    batch.add({2: short, 3: short})
    assert len(batch) == 3
    assert 3 in batch
    assert 0 not in batch


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (dict(limit=30), "32"),  # of max_positions
        (dict(limit=0), "limit"),
        (dict(prompt=()), "prompt"),
        (dict(prompt=(5, VOCABULARY)), str(VOCABULARY)),
        (dict(logit_bias={-1: 2.0}), "-1"),
        (dict(config=GenerationConfig(method="beam", beams=2)), "sampling"),
    ],
)
def test_an_invalid_request_is_refused(values: dict[str, Any], word: str) -> None:
    batch = ContinuousBatch(build(KINDS["llama"]), max_sequences=3, max_tokens=90)
    request = SequenceRequest(prompt=(5, 9, 14), limit=4)
    with pytest.raises(UsageError, match=word):
        batch.add({0: request, 1: replace(request, **values)})
    assert len(batch) == 0


def test_the_limits_of_an_encoder_decoder_are_those_of_its_stacks() -> None:
    batch = ContinuousBatch(build(KINDS["t5"]), max_sequences=3, max_tokens=900)
    batch.add({0: SequenceRequest(prompt=(5,) * 32, limit=31)})
    with pytest.raises(UsageError, match="33"):
        batch.add({1: SequenceRequest(prompt=(5,) * 33, limit=1)})
    with pytest.raises(UsageError, match="33"):
        batch.add({1: SequenceRequest(prompt=(5,), limit=32)})


@needs_native
def test_one_c_decoder_serves_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = [], []
    init, step = CDecoder.__init__, CDecoder.step
    monkeypatch.setattr(CDecoder, "__init__", lambda *given: made.append(1) or init(*given))
    monkeypatch.setattr(CDecoder, "step", lambda *given: steps.append(1) or step(*given))
    network, requests = build(KINDS["llama"]), make_requests(16)
    found = run(ContinuousBatch(network, max_sequences=10, max_tokens=640), requests)
    assert len(made) == 1
    assert len(steps) > 10
    monkeypatch.setenv(c_library.DISABLE_VARIABLE, "0")
    check(network, requests, found)


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_any_joins_and_leaves(data: st.DataObject) -> None:
    network = NETWORKS[data.draw(st.sampled_from(sorted(NETWORKS)))]
    requests = make_requests(6, seed=data.draw(st.integers(0, 99)))
    limits = dict(
        max_sequences=data.draw(st.integers(1, 6)), max_tokens=data.draw(st.integers(32, 150))
    )
    batch, waiting = ContinuousBatch(network, **limits), [*requests]
    found: dict[int, list[StepToken]] = {key: [] for key in requests}
    removed = set()
    while waiting or len(batch):
        action = data.draw(st.sampled_from(["add", "step", "remove"]))
        if action == "add" and waiting and batch.fits(requests[waiting[0]]):
            batch.add({waiting[0]: requests[waiting.pop(0)]})
        elif action == "remove" and data.draw(st.booleans()):
            key = data.draw(st.sampled_from([*requests]))
            removed |= {key} if key in batch else set()
            batch.remove(key)
        else:
            for token in batch.step():
                found[token.key].append(token)  # type: ignore[index]
    check(network, {key: one for key, one in requests.items() if key not in removed}, found)


NETWORKS: dict[str, ScoringModel] = {
    **{kind: build(KINDS[kind]) for kind in ("gpt2", "windowed", "t5")},
    "lstm": recurrent("lstm"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("max_sequences", [8, 20])  # in C, and in torch
def test_200_prompts_of_a_trained_model(max_sequences: int) -> None:
    model, draw = firth.load("stories-decoder"), random.Random(0)
    words = SAMPLE_FILE.read_text(encoding="utf-8").split()
    requests = {}
    for i in range(200):
        start = draw.randrange(len(words) - 60)
        text = " ".join(words[start : start + draw.randint(1, 60)])
        limit, prompt = draw.randint(1, 40), tuple(model.tokenizer.encode(text))
        requests[i] = SequenceRequest(prompt=prompt, limit=limit, eos_token_ids=(END,))
    batch = ContinuousBatch(model.network, max_sequences=max_sequences, max_tokens=8192)
    check(model.network, requests, run(batch, requests))
