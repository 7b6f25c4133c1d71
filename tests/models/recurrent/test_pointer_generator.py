"""The pointer-generator: the mixture by hand, coverage, and unknown words from source to text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.inference.text_model import TextModel
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.recurrent.pointer_generator import MIN_PROB, PointerGenerator
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig
from firth.objectives.batch import Batch
from firth.tasks.inputs import make_input_template
from firth.tasks.readers.examples import Seq2SeqExample
from firth.tasks.registry import task_named
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.training.losses import TrainingModule
from firth.utils.errors import InputError, MismatchError

VOCAB, START, END = 10, 1, 2
SOURCES = [[3, 10, 5, 10], [11, 4, 10]]  # 10 and 11 are unknown words
NAMES = ("Zelda", "Yorick")
TARGETS = [[START, 5, 10], [START, 11]]


def build(**more: Any) -> PointerGenerator:
    sizes = dict(vocab_size=VOCAB, max_positions=16, hidden_size=8, embedding_size=6, num_layers=1)
    ids = dict(eos_token_id=END, decoder_start_token_id=START, unk_token_id=9)
    config = PointerGeneratorConfig(**sizes, **ids, initialization="xavier", **more)
    return initialise(PointerGenerator(config, ["language"]), seed=1).eval()


def run(network: PointerGenerator, sources: list[list[int]], targets: list[list[int]]) -> Tensor:
    mask, target = Mask([len(row) for row in sources]), Mask.causal([len(row) for row in targets])
    ids, target_ids = (
        torch.tensor([id for row in rows for id in row]) for rows in (sources, targets)
    )
    memory = network.encode_source(ids, mask)
    return network(target_ids, target, memory=memory, memory_mask=mask)


@torch.no_grad()
@pytest.mark.parametrize("coverage", [False, True])
def test_the_probability_of_a_word_is_the_mixture_of_section_2_2(coverage: bool) -> None:
    network = build(coverage=coverage)
    rows = run(network, SOURCES, TARGETS)  # (5, W + 2 + 2 L)
    probs = network.logits(rows).exp().double().numpy()
    assert probs.shape == (5, 12)
    for row, found, source in zip(rows, probs, [SOURCES[0]] * 3 + [SOURCES[1]] * 2, strict=True):
        p = 1 / (1 + np.exp(-row[8].item()))
        vocabulary = (network.heads["language"].weight @ row[:8]).softmax(-1)
        for word in range(12):
            attention = sum(row[10 + i].item() for i, id in enumerate(source) if id == word)
            generated = vocabulary[word].item() if word < VOCAB else 0.0
            assert found[word] == pytest.approx(p * generated + (1 - p) * attention, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("coverage", [False, True])
def test_packed_sequences_are_computed_as_one_at_a_time(coverage: bool) -> None:
    network = build(coverage=coverage)
    both = network.logits(run(network, SOURCES, TARGETS))
    first, second = (
        network.logits(run(network, [source], [target]))
        for source, target in zip(SOURCES, TARGETS, strict=True)
    )
    torch.testing.assert_close(both[:3, :11], first)
    torch.testing.assert_close(both[3:], second)


@torch.no_grad()
def test_coverage_is_the_attention_on_tokens_attended_to_before() -> None:
    network = build(coverage=True)
    alignments: list[Tensor] = []
    mask = Mask([4])
    memory = network.encode_source(torch.tensor(SOURCES[0]), mask)
    target = Mask.causal([3])
    rows = network(
        torch.tensor(TARGETS[0]), target, memory=memory, memory_mask=mask, alignments=alignments
    )
    [weights] = alignments  # (3, 4)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-6)
    covered = np.zeros(4)
    for own, loss in zip(weights.numpy(), network.coverage_losses(rows), strict=True):
        assert loss.item() == pytest.approx(np.minimum(own, covered).sum(), abs=1e-6)
        covered += own


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["the king met the queen . the dog met the cat ."] * 2
    return train_tokenizer(texts, kind="word")[0]


def task_batch(network: PointerGenerator, tokenizer: Tokenizer, example: Seq2SeqExample) -> Batch:
    task = task_named("seq2seq")
    metadata = task.metadata([example], 32, {})
    template = make_input_template(network.config, tokenizer, 32)
    return task.batch(task.encode([example], template, metadata), metadata, network.config)


def for_tokenizer(tokenizer: Tokenizer, **more: Any) -> PointerGenerator:
    ids = tokenizer.special_ids
    roles = dict(eos_token_id=ids["eos"], decoder_start_token_id=ids["eos"])
    sizes = dict(vocab_size=len(tokenizer), max_positions=32, hidden_size=8, num_layers=1)
    config = PointerGeneratorConfig(**sizes, **roles, initialization="xavier", **more)
    network = PointerGenerator(config, ["language"])
    network.read_vocabulary(tokenizer)
    return initialise(network, seed=0)


def test_unknown_words_of_the_source_are_targets_to_copy(tokenizer: Tokenizer) -> None:
    network, size = for_tokenizer(tokenizer), len(tokenizer)
    example = Seq2SeqExample(source="Zelda met Yorick .", target="the Yorick Xaver Zelda")
    batch = task_batch(network, tokenizer, example)
    assert batch.target is not None
    known, unknown = tokenizer.encode("the met ."), tokenizer.unknown_id
    assert batch.inputs.tokens.tolist() == [size, known[1], size + 1, known[2]]
    wanted = [known[0], size + 1, unknown, size, tokenizer.special_ids["eos"]]
    assert batch.predictions["target"].targets.tolist() == wanted
    assert batch.target.tokens.tolist()[1:] == wanted[:-1]


def test_coverage_is_a_loss_term_of_its_own(tokenizer: Tokenizer) -> None:
    example = Seq2SeqExample(source="Zelda met the king .", target="Zelda met")
    for coverage in (False, True):
        network = for_tokenizer(tokenizer, coverage=coverage, word_dropout=0.0, dropout=0.0)
        terms = TrainingModule(network)(task_batch(network, tokenizer, example))
        assert set(terms) == ({"target", "coverage"} if coverage else {"target"})
        sum(term.sum for term in terms.values()).backward()
        names = [name for name, p in network.named_parameters() if p.grad is None]
        assert names == []


@torch.no_grad()
@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_copied_words_are_written_as_text(tokenizer: Tokenizer, method: str) -> None:
    """With a gate that always copies, the output consists of words of the source."""
    network = for_tokenizer(tokenizer).eval()
    network.gate.bias.fill_(-100.0)
    prompts = [tokenizer.open_encode(text) for text in ("Zelda Yorick", "Xaver")]
    config = GenerationConfig(method=method, max_new_tokens=4, beams=2 if method == "beam" else 1)
    found = generate(network, prompts, config, eos_token_id=network.config.eos_token_ids)
    texts = [tokenizer.decode(list(own[0].tokens)) for own in found]
    assert set(texts[0].split()) <= {"Zelda", "Yorick"}
    assert texts[1] == "Xaver Xaver Xaver Xaver"


@torch.no_grad()
def test_an_unknown_word_of_the_target_is_scored_as_the_copied_word(tokenizer: Tokenizer) -> None:
    """With a gate that always copies, a word's probability is the attention on it."""
    network = for_tokenizer(tokenizer).eval()
    network.gate.bias.fill_(-100.0)
    model = TextModel(network, tokenizer)
    only, other = model.score(["Zelda", "Xaver"], context="Zelda Zelda")
    assert only.total == pytest.approx(0.0, abs=1e-6)
    assert other.total == pytest.approx(np.log(MIN_PROB), rel=1e-3)  # neither generated nor copied
    parts = [np.exp(model.score(word, context="Zelda met Yorick .").total) for word in NAMES]
    assert 0 < sum(parts) < 1
    with pytest.raises(MismatchError, match="source"):
        model.score("Zelda", context="")


@torch.no_grad()
def test_unknown_words_are_numbered_in_each_source(tokenizer: Tokenizer) -> None:
    network = build()
    one, two = ([3, *tokenizer.open_encode(name), 4] for name in NAMES)
    both = network.encode_source(torch.tensor(one + two), Mask([3, 3]))
    torch.testing.assert_close(both[3:], network.encode_source(torch.tensor(two), Mask([3])))
    assert both[:, -1].tolist() == [3, VOCAB, 4] * 2


def test_word_dropout_keeps_frequent_words_and_special_tokens() -> None:
    network = build(word_dropout=1.0).train()
    network.encode_source(torch.tensor([3, 4]), Mask([2]))
    assert network.dropped is not None
    kept = {0, START, END, 9}  # the most frequent tenth, and special tokens
    assert network.dropped.tolist() == [id not in kept for id in range(VOCAB)]
    torch.testing.assert_close(network.embed(torch.tensor([0])), network.tokens(torch.tensor([0])))


def test_impossible_settings_are_named() -> None:
    with pytest.raises(InputError, match="attention"):
        build(attention="luong")
