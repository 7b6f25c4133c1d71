"""Recurrent encoder-decoders: attention by hand, packed = one at a time, step by step = at once."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.reference import reference_beam_search
from firth.inference.generation.token_generation import generate
from firth.inference.scoring.token_scoring import ScoringRequest, score_requests
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.recurrent.alignment import AdditiveAttention, MultiplicativeAttention
from firth.models.recurrent.rnn_seq2seq import RnnSeq2Seq
from firth.models.recurrent.seq2seq_configs import RnnSeq2SeqConfig
from firth.utils.errors import InputError

VOCAB, START, END = 12, 1, 2
SIZES: dict[str, Any] = dict(vocab_size=VOCAB, max_positions=16, hidden_size=8)
KINDS: dict[str, dict[str, Any]] = {
    "none": dict(attention="none", num_layers=2, num_decoder_layers=1),
    "bahdanau": dict(attention="bahdanau", num_layers=1, num_decoder_layers=2),
    "luong": dict(attention="luong", num_layers=1, embedding_size=4),
    "fed": dict(attention="luong", input_feeding=True, num_layers=1),
}
SOURCES = [[3, 4, 5, 6], [7, 8], [9, 3, 11]]
TARGETS = [[START, 5, 4], [START], [START, 9, 8, 7, 3]]


def build(kind: str) -> RnnSeq2Seq:
    ids = dict(eos_token_id=END, decoder_start_token_id=START, initialization="xavier")
    network = RnnSeq2Seq(RnnSeq2SeqConfig(**SIZES, **ids, **KINDS[kind]), ["language"])
    return initialise(network, seed=3).eval()


def run(network: RnnSeq2Seq, sources: list[list[int]], targets: list[list[int]]) -> Tensor:
    """The outputs of a packed batch."""
    mask, target = Mask([len(row) for row in sources]), Mask.causal([len(row) for row in targets])
    ids, target_ids = (torch.tensor(list(chain(*rows))) for rows in (sources, targets))
    memory = network.encode(ids, mask)
    return network(target_ids, target, memory=memory, memory_mask=mask)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(-1, keepdims=True)


@torch.no_grad()
def test_attention_weights_are_those_of_the_papers() -> None:
    draw = np.random.default_rng(0)
    states, memory = draw.normal(size=(2, 3, 4)), draw.normal(size=(2, 5, 4))
    visible = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    additive, general = AdditiveAttention(4).double(), MultiplicativeAttention(4).double()
    query, key, v = (part.weight.numpy() for part in (additive.query, additive.key, additive.score))
    bilinear = general.key.weight.numpy()
    for i, length in enumerate((5, 2)):
        for t in range(3):
            by_hand = [
                v[0] @ np.tanh(query @ states[i, t] + key @ h + additive.key.bias.numpy())
                for h in memory[i, :length]
            ]
            source = torch.from_numpy(memory)
            weights = additive(torch.from_numpy(states), additive.keys(source), visible)[i, t]
            np.testing.assert_allclose(weights[:length], softmax(np.array(by_hand)))
            assert not weights[length:].any()
            by_hand = [states[i, t] @ bilinear @ h for h in memory[i, :length]]
            weights = general(torch.from_numpy(states), general.keys(source), visible)[i, t]
            np.testing.assert_allclose(weights[:length], softmax(np.array(by_hand)))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_computed_as_one_at_a_time(kind: str) -> None:
    network = build(kind)
    alone = [
        run(network, [source], [target]) for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    torch.testing.assert_close(run(network, SOURCES, TARGETS), torch.cat(alone))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_beam_search_continue_from_the_state(kind: str) -> None:
    """With the state of the last token as with the whole target; beams as in the reference."""
    network = build(kind)
    [[found]] = generate(
        network, [SOURCES[0]], GenerationConfig(max_new_tokens=6), eos_token_id=END
    )
    written: list[int] = []
    while len(written) < 6 and END not in written:
        logits = network.logits(run(network, SOURCES[:1], [[START, *written]])[-1:])
        written.append(int(logits.argmax()))
    assert list(found.tokens) == [id for id in written if id != END]
    tokens = (START, *written[:-1])
    request = ScoringRequest(tokens, range(len(written)), written, tuple(SOURCES[0]))
    [scores] = score_requests(network, [request])
    assert found.logprob == pytest.approx(scores.sum, abs=1e-5)

    config = GenerationConfig(method="beam", beams=3, n=3, max_new_tokens=4)
    beams = generate(network, SOURCES, config, eos_token_id=END)
    for source, own in zip(SOURCES, beams, strict=True):
        wanted = reference_beam_search(
            lambda after, source=source: (
                network.logits(run(network, [source], [[START, *after]])[-1:])
                .log_softmax(-1)[0]
                .tolist()
            ),
            beams=3,
            max_new_tokens=4,
            eos_token_id=END,
        )
        for result, hypothesis in zip(own, wanted, strict=True):
            assert result.tokens == tuple(id for id in hypothesis.tokens if id != END)
            assert result.score == pytest.approx(hypothesis.score, abs=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(attention="dot"),
        dict(input_feeding=True),
        dict(hidden_size=7),
        dict(tie_embeddings=True, embedding_size=4),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RnnSeq2SeqConfig(**SIZES | dict(num_layers=1) | wrong)
