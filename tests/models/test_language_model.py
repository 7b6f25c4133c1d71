"""Models that are not Transformers go through the same functions as one.

A bigram network is pre-trained, scored, embedded and fine-tuned; a count-based unigram model, which
has no parameters, is evaluated and generates.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor, nn

from firth import Model, evaluate
from firth.adapt.apply import apply
from firth.data.packing import PackedSequences
from firth.formats.huggingface.directory import read_config
from firth.formats.safetensors import open_weights
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.text_generation import TextGenerator, generate_text
from firth.inference.scoring.log_likelihood import log_likelihoods, score_continuations
from firth.models.config import LanguageModelConfig
from firth.models.heads import make_head
from firth.models.initialization import initialise
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.transformer_config import TransformerConfig
from firth.objectives.causal import causal
from firth.tasks.dataset import TaskDataset
from firth.tasks.finetune_config import FinetuneRunConfig
from firth.tasks.perplexity import measure
from firth.tasks.readers.examples import LabelledExample
from firth.tasks.registry import task_named
from firth.tasks.scoring_task import Scorer, ScoringOptions
from firth.tasks.task_trainer import build_task_trainer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import FinetuneTrainingConfig, TrainingConfig
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule, mean_losses
from firth.training.optim import OptimizerConfig
from firth.training.plateau import entropy
from firth.training.state import PlannedBatch, TrainingState
from firth.utils.errors import MismatchError, UsageError

WORDS = ["<s>", "sun", "moon", "rain", "snow", "<unk>"]
CPU = {"precision": "fp32", "compile": "false", "cuda_graphs": "false"}


class Bigram(LanguageNetwork):
    """Predict the next token from the embedding of this one."""

    def __init__(self, config: TransformerConfig, heads: tuple[str, ...] = ("language",)) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        return self.tokens(tokens)


class Unigram:
    """Predict tokens by their counts, without context and without parameters."""

    device = torch.device("cpu")

    def __init__(self, counts: dict[int, int]) -> None:
        self.config = LanguageModelConfig(
            architecture="decoder", vocab_size=len(WORDS), max_positions=64, bos_token_id=0
        )
        probabilities = torch.zeros(len(WORDS))
        probabilities[list(counts)] = torch.tensor(list(counts.values())) / sum(counts.values())
        self.log_probs = probabilities.log()  # (V,)

    def __call__(self, tokens: Tensor, mask: Mask) -> Tensor:
        return tokens  # the state of the context; not needed

    def logits(self, hidden: Tensor) -> Tensor:
        return self.log_probs.repeat(len(hidden), 1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    ids = {word: id for id, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, {})


def weather(days: int, seed: int) -> list[int]:
    """Draw a text in which a word is mostly followed by the next one of the list."""
    draw, words = np.random.default_rng(seed), [1]
    while len(words) < days:
        words.append(words[-1] % 4 + 1 if draw.random() < 0.9 else int(draw.integers(1, 5)))
    return words


def text(ids: list[int]) -> str:
    return " ".join(WORDS[id] for id in ids)


def train(module: TrainingModule, config: TrainingConfig, plan: Any, out: Path) -> None:
    out.mkdir(exist_ok=True)
    log = MetricsLog(out / "metrics.jsonl", every=0, callback=lambda kind, metrics: None)
    TrainingLoop(module, config, plan, log, Callbacks()).fit()
    module.network.eval()


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> Bigram:
    """A bigram network, pre-trained by the training loop."""
    sizes = dict(vocab_size=len(WORDS), hidden_size=8, max_positions=64)
    unused = dict(num_layers=1, num_heads=1, ffn_size=1, position_embedding="none")
    config = TransformerConfig(
        architecture="decoder", bos_token_id=0, tie_embeddings=False, **sizes, **unused
    )
    network = initialise(Bigram(config), seed=0)

    def plan(state: TrainingState, progress: Callable[[Any], float]) -> Iterator[PlannedBatch]:
        for step in range(state.step, 100):
            rows = [np.array([0, *weather(30, seed=8 * step + i)]) for i in range(8)]
            stream = PackedSequences.join(rows, np.zeros(8, dtype=np.uint64))
            yield PlannedBatch(causal(stream), state.position, 0)

    optimizer = OptimizerConfig(learning_rate=0.1, weight_decay=0.0)
    settings = TrainingConfig(steps=100, validate_every=1.0, optimizer=optimizer, **CPU)
    train(TrainingModule(network), settings, plan, tmp_path_factory.mktemp("bigram"))
    return network


@torch.no_grad()
def test_the_bigram_network_learns_the_transitions(bigram: Bigram) -> None:
    held_out = [0, *weather(2000, seed=10**6)]
    stream = PackedSequences.join([np.array(held_out)], np.zeros(1, dtype=np.uint64))
    loss = mean_losses(TrainingModule(bigram), [causal(stream)])["loss"]
    words = np.array(held_out[1:])
    assert loss < entropy(np.bincount(words)) - 0.5  # no unigram model reaches this
    pairs = Counter(pairwise(held_out[1:]))
    joint = entropy(np.array(list(pairs.values()))) - entropy(np.bincount(words[:-1]))
    assert loss == pytest.approx(joint, abs=0.05)  # the entropy of a word given the one before


@torch.no_grad()
def test_scores_equal_the_softmax_of_the_weights(bigram: Bigram, tokenizer: Tokenizer) -> None:
    table = (bigram.tokens.weight @ bigram.heads["language"].weight.T).log_softmax(-1)  # (V, V)
    [score] = score_continuations(bigram, [([1, 2], [3, 4])])
    assert score.log_probs == pytest.approx([float(table[2, 3]), float(table[3, 4])], abs=1e-5)
    [whole] = log_likelihoods(bigram, tokenizer, ["sun moon"])
    assert whole.sum == pytest.approx(float(table[0, 1] + table[1, 2]), abs=1e-5)


@torch.no_grad()
def test_perplexity_is_that_of_the_weights(
    bigram: Bigram, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    ids, path = weather(300, seed=7), tmp_path / "text.txt"
    path.write_text(text(ids), encoding="utf-8")
    table = (bigram.tokens.weight @ bigram.heads["language"].weight.T).log_softmax(-1)
    nats = -sum(float(table[a, b]) for a, b in pairwise([0, *ids])) / len(ids)
    found = evaluate(Model(bigram, tokenizer), task="lm", data=path)
    assert found.metrics["token_perplexity"].value == pytest.approx(math.exp(nats), rel=1e-4)


def test_it_generates_the_most_likely_transitions(bigram: Bigram, tokenizer: Tokenizer) -> None:
    model = Model(bigram, tokenizer)
    assert model.generate("sun", max_new_tokens=5) == " moon rain snow sun moon"
    assert model.generate("rain", beams=2, max_new_tokens=2) == " snow sun"


def test_embeddings_are_means_of_the_token_embeddings(bigram: Bigram, tokenizer: Tokenizer) -> None:
    vectors = Model(bigram, tokenizer).embed(["sun", "sun moon rain"], pooling="mean")
    weight = bigram.tokens.weight.detach()
    assert vectors == pytest.approx(np.stack([weight[1], weight[1:4].mean(0)]), abs=1e-6)


def test_it_survives_saving(bigram: Bigram, tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert Model(bigram, tokenizer).save(tmp_path) == "firth"
    config, family = read_config(tmp_path)
    assert (config, family) == (bigram.config, None)
    again = Bigram(config)
    weights = open_weights(tmp_path)
    again.load_state_dict({name: weights[name] for name in again.state_dict()})
    tokens, mask = torch.arange(5), Mask.causal([5])
    assert torch.equal(again.logits(again(tokens, mask)), bigram.logits(bigram(tokens, mask)))


def test_it_is_fine_tuned_to_classify(bigram: Bigram, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The label is whether it rained or snowed, wherever the word stands."""
    task, draw = task_named("classify"), np.random.default_rng(0)

    def example(label: str) -> LabelledExample:
        words = [*draw.choice(["sun", "moon"], 5), label]
        return LabelledExample(text=" ".join(draw.permutation(words)), label=label)

    train_set, dev = ([example(("rain", "snow")[i % 2]) for i in range(n)] for n in (64, 32))
    metadata = task.metadata(train_set, 16, {})
    optimizer = OptimizerConfig(learning_rate=0.05)
    settings = FinetuneTrainingConfig(steps=80, batch_size=16, optimizer=optimizer, **CPU)
    config = FinetuneRunConfig(
        model="bigram", task="classify", recipe="", strategy="full", training=settings,
        metadata=metadata, head={"pooling": "mean"},
    )  # fmt: skip
    network = Bigram(bigram.config)
    network.load_state_dict(bigram.state_dict())
    dataset = TaskDataset(train_set, dev, metadata, [])
    trainer = build_task_trainer(config, network, tokenizer, dataset, None)
    before = trainer.validate()
    train(trainer.trainee, settings, trainer.plan, tmp_path / "run")
    after = trainer.validate()
    assert after["accuracy"] == 1.0
    assert after["loss"] < 0.5 * before["loss"]
    assert not torch.equal(network.tokens.weight, bigram.tokens.weight)


def test_what_needs_a_transformer_says_so(bigram: Bigram, tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"lora .* Transformer"):
        apply(bigram, "lora")
    with pytest.raises(MismatchError, match=r"Transformer.* Bigram"):
        _ = Model(bigram, tokenizer).transformer


def test_a_network_without_a_language_head_cannot_score(bigram: Bigram) -> None:
    with pytest.raises(MismatchError, match="no language head"):
        score_continuations(Bigram(bigram.config, heads=()), [([1], [2])])


# ---- counts

COUNTS = {1: 5, 2: 3, 3: 2}


def test_the_perplexity_of_counts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("sun rain sun moon", encoding="utf-8")
    found = measure(Scorer(network=Unigram(COUNTS), tokenizer=tokenizer), ScoringOptions(data=path))
    expected = (0.5 * 0.2 * 0.5 * 0.3) ** (-1 / 4)
    assert found.metrics["token_perplexity"].value == pytest.approx(expected, rel=1e-5)


def test_counts_generate_the_most_frequent_word(tokenizer: Tokenizer) -> None:
    assert generate_text(Unigram(COUNTS), tokenizer, "rain", max_new_tokens=3) == " sun sun sun"
    generator = TextGenerator(
        network=Unigram({1: 1, 4: 9}),
        tokenizer=tokenizer,
        config=GenerationConfig(method="beam", beams=2, n=2, max_new_tokens=2),
    )
    [done] = generator.complete(["rain"])
    assert done.completions[0].text == " snow snow"
    assert done.completions[0].logprob == pytest.approx(2 * math.log(0.9), abs=1e-5)


def test_a_count_based_config_survives_json() -> None:
    config = Unigram(COUNTS).config
    assert LanguageModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
