"""Losses of every objective, and the same gradients for any split of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, kl_div
from torch.utils._python_dispatch import TorchDispatchMode

from firth.models.initialization import initialise
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.objectives.batch import Batch
from firth.objectives.causal import causal
from firth.objectives.denoising import span_corruption
from firth.objectives.masked import masked, masked_spans
from firth.objectives.registry import OBJECTIVES
from firth.objectives.replaced import mask_for_generator
from firth.objectives.toy_vocabulary import VOCABULARY, WORDS, packed
from firth.training import losses
from firth.training.distillation import copy_teacher_weights, distillation_loss
from firth.training.losses import LOSSES, TrainingModule, heads_for, hidden_states
from firth.utils.rng import derive_keys

TEXTS = (
    "[CLS] the quick brown fox jump ##s over the lazy dog . [SEP]",
    "[CLS] a lazy dog barked . [SEP]",
    "[CLS] thank you for invit ##ing me to your party . [SEP]",
)
CONFIG = TransformerConfig(
    architecture="encoder",
    vocab_size=len(WORDS),
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    ffn_size=32,
    max_positions=32,
    num_segments=2,
    dropout=0.0,
    attention_dropout=0.0,
)


def network(architecture: str, heads: tuple[str, ...], seed: int = 0) -> Transformer:
    config = replace(CONFIG, architecture=architecture, num_decoder_layers=0, init_std=0.3)
    if architecture == "encoder-decoder":
        config = replace(config, num_decoder_layers=2)
    return initialise(Transformer(config, heads), seed).double()


def batches() -> dict[str, tuple[str, Batch]]:
    text = packed(*TEXTS)
    return {
        "masked": ("encoder", masked(text, VOCABULARY, mask_prob=0.3)),
        "spans": ("encoder", masked_spans(text, VOCABULARY, mask_prob=0.3)),
        "causal": ("decoder", causal(text)),
        "denoising": ("encoder-decoder", span_corruption(text, VOCABULARY, noise_density=0.3)),
    }


def gradients(trainee: TrainingModule, parts: list[Batch], whole: Batch) -> dict[str, torch.Tensor]:
    trainee.zero_grad()
    counts = trainee.counts(whole)
    for part in parts:
        terms = trainee(part)
        sum(term.weight * term.sum / counts[name] for name, term in terms.items()).backward()
    named = trainee.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("name", ["masked", "spans", "causal", "denoising"])
def test_gradients_of_micro_batches_sum_to_the_whole(name: str) -> None:
    architecture, batch = batches()[name]
    trainee = TrainingModule(network(architecture, heads_for(tuple(batch.predictions))))
    parts = batch.split(1)
    assert len(parts) == 3
    whole, cut = gradients(trainee, [batch], batch), gradients(trainee, parts, batch)
    assert whole.keys() == cut.keys()
    for key in whole:
        torch.testing.assert_close(cut[key], whole[key])


def test_generator_samples_do_not_depend_on_micro_batches() -> None:
    batch = mask_for_generator(packed(*TEXTS), VOCABULARY, mask_prob=0.4)
    trainee = TrainingModule(
        network("encoder", ("replaced",)),
        generator=network("encoder", ("language",), seed=1),
        vocabulary=VOCABULARY,
        weights={"replaced": 50.0},
    )
    whole, cut = gradients(trainee, [batch], batch), gradients(trainee, batch.split(1), batch)
    for key in whole:
        torch.testing.assert_close(cut[key], whole[key])
    assert trainee.generator is not None
    assert trainee.generator.tokens is trainee.network.tokens
    assert trainee(batch)["replaced"].count == trainee.counts(batch)["replaced"]


def test_generator_samples_follow_its_distribution() -> None:
    """2,000 samples at one masked position, compared with the softmax."""
    text = packed(*(["[CLS] the dog [SEP]"] * 2000))
    text = replace(text, keys=derive_keys(3, np.arange(2000)))
    batch = mask_for_generator(text, VOCABULARY, mask_prob=0.5)
    generator = network("encoder", ("language",), seed=2)
    with torch.no_grad():
        hidden = hidden_states(generator, batch)
        drawn = losses._sample(generator, hidden, batch)
        positions = batch.predictions["masked"].positions
        first = batch.inputs.offsets[positions] == 1
        shares = generator.logits(hidden[positions[first][:1]])[0].softmax(-1).numpy()
    counts = np.bincount(drawn[first], minlength=len(WORDS)) / first.sum()
    assert np.abs(counts - shares).max() < 0.05


def test_the_masked_loss_is_cross_entropy_at_masked_tokens() -> None:
    batch = batches()["masked"][1]
    model = network("encoder", ("language",))
    term = TrainingModule(model)(batch)["masked"]
    hidden = hidden_states(model, batch)
    wanted = batch.predictions["masked"]
    logits = model.logits(hidden[torch.from_numpy(wanted.positions)])
    expected = cross_entropy(logits, torch.from_numpy(wanted.targets), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert term.count == len(wanted.targets)


def test_distillation_losses_equal_the_formulas() -> None:
    batch = batches()["masked"][1]
    teacher = network("encoder", ("language",), seed=5)
    student = network("encoder", ("language",), seed=6)
    terms = TrainingModule(student, teacher=teacher)(batch)
    positions = torch.from_numpy(batch.predictions["masked"].positions)
    mine, theirs = (
        hidden_states(student, batch)[positions],
        hidden_states(teacher, batch)[positions],
    )
    soft = kl_div(
        (student.logits(mine).float() / 2).log_softmax(-1),
        (teacher.logits(theirs).float() / 2).softmax(-1),
        reduction="sum",
    )
    torch.testing.assert_close(terms["soft targets"].sum, 4 * soft)
    angles = 1 - torch.cosine_similarity(mine.float(), theirs.float())
    torch.testing.assert_close(terms["cosine"].sum, angles.sum())
    same = TrainingModule(teacher, teacher=teacher)(batch)
    assert abs(same["soft targets"].sum.item()) < 1e-5


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_chunked_soft_targets_equal_the_formula(at_once: int) -> None:
    teacher = network("encoder", ("language",), seed=5)
    student = network("encoder", ("language",), seed=6)
    matrix, (mine, theirs) = student.tokens.weight, torch.randn(2, 10, 16).double()
    mine.requires_grad_()

    scores, aim = student.logits(mine), teacher.logits(theirs)
    aims = (aim / 2).softmax(-1).detach()
    expected = 4 * (aims * (aims.log() - (scores / 2).log_softmax(-1))).sum()
    wanted = torch.autograd.grad(expected, (mine, matrix))

    loss, right = distillation_loss(student, teacher, mine, theirs, at_once)
    found = torch.autograd.grad(loss, (mine, matrix))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    assert right == (scores.argmax(-1) == aim.argmax(-1)).sum()
    for ours, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


class Watch(TorchDispatchMode):
    """Records the largest number of rows of logits in a tensor."""

    rows = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **options or {})
        if isinstance(made, torch.Tensor) and made.shape[1:] == (len(WORDS),):
            self.rows = max(self.rows, len(made))
        return made


def test_soft_targets_keep_the_logits_of_one_chunk() -> None:
    teacher = network("encoder", ("language",), seed=5)
    student = network("encoder", ("language",), seed=6)
    mine, theirs = torch.randn(2, 60, 16).double()
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    with Watch() as watch, saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, _ = distillation_loss(student, teacher, mine.requires_grad_(), theirs, 20)
        loss.backward()
    assert watch.rows == 20
    assert not any(len(WORDS) in shape for shape in kept)


def test_generator_samples_do_not_depend_on_the_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = mask_for_generator(packed(*TEXTS), VOCABULARY, mask_prob=0.4)
    generator = network("encoder", ("language",), seed=1)
    hidden = hidden_states(generator, batch)
    whole = losses._sample(generator, hidden, batch)
    assert len(set(whole.tolist())) > 3
    for scored in (1, 4):
        monkeypatch.setattr(losses, "LOGITS_CHUNK", scored)
        np.testing.assert_array_equal(losses._sample(generator, hidden, batch), whole)


def test_a_student_starts_with_alternate_layers() -> None:
    teacher = initialise(Transformer(replace(CONFIG, num_layers=4), ["language"]), 1)
    student = initialise(Transformer(CONFIG, ["language"]), 2)
    copy_teacher_weights(student, teacher)
    ours, theirs = student.state_dict(), teacher.state_dict()
    for mine, other in ((0, 0), (1, 3)):
        name = "encoder.blocks.{}.attention.qkv.weight"
        assert torch.equal(ours[name.format(mine)], theirs[name.format(other)])
    assert torch.equal(ours["tokens.weight"], theirs["tokens.weight"])


def test_every_prediction_of_an_objective_has_a_loss() -> None:
    assert {name for row in OBJECTIVES.values() for name in row.predicts} <= set(LOSSES)
