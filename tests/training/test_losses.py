"""Losses by name: each with its own denominator, and the same however a step is cut up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from firth.draws import derive
from firth.models.config import ModelConfig
from firth.models.initial import initialise
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.objectives.causal import causal
from firth.objectives.denoising import span_corruption
from firth.objectives.examples import VOCABULARY, WORDS, packed
from firth.objectives.masked import masked, masked_spans
from firth.objectives.replaced import hidden_for_generator
from firth.training.distillation import student_of
from firth.training.losses import LOSSES, Trainee, heads_for, run

TEXTS = (
    "[CLS] the quick brown fox jump ##s over the lazy dog . [SEP]",
    "[CLS] a lazy dog barked . [SEP]",
    "[CLS] thank you for invit ##ing me to your party . [SEP]",
)
CONFIG = ModelConfig(
    architecture="encoder",
    vocabulary=len(WORDS),
    width=16,
    layers=2,
    heads=2,
    inner=32,
    context=32,
    segments=2,
    dropout=0.0,
    attention_dropout=0.0,
)


def network(architecture: str, heads: tuple[str, ...], seed: int = 0) -> Transformer:
    config = replace(CONFIG, architecture=architecture, decoder_layers=0, spread=0.3)
    if architecture == "encoder-decoder":
        config = replace(config, decoder_layers=2)
    return initialise(Transformer(config, heads), seed).double()


def batches() -> dict[str, tuple[str, Batch]]:
    text = packed(*TEXTS)
    return {
        "masked": ("encoder", masked(text, VOCABULARY, rate=0.3)),
        "spans": ("encoder", masked_spans(text, VOCABULARY, rate=0.3)),
        "causal": ("decoder", causal(text)),
        "denoising": ("encoder-decoder", span_corruption(text, VOCABULARY, rate=0.3)),
    }


def gradients(trainee: Trainee, parts: list[Batch], whole: Batch) -> dict[str, torch.Tensor]:
    trainee.zero_grad()
    counts = trainee.counts(whole)
    for part in parts:
        terms = trainee(part)
        sum(term.weight * term.sum / counts[name] for name, term in terms.items()).backward()
    named = trainee.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("name", ["masked", "spans", "causal", "denoising"])
def test_parts_add_up_to_the_gradient_of_the_whole(name: str) -> None:
    architecture, batch = batches()[name]
    trainee = Trainee(network(architecture, heads_for(tuple(batch.predictions))))
    parts = batch.split(1)
    assert len(parts) == 3
    whole, cut = gradients(trainee, [batch], batch), gradients(trainee, parts, batch)
    assert whole.keys() == cut.keys()
    for key in whole:
        torch.testing.assert_close(cut[key], whole[key])


def test_the_generators_samples_do_not_depend_on_how_a_step_is_cut() -> None:
    batch = hidden_for_generator(packed(*TEXTS), VOCABULARY, rate=0.4)
    trainee = Trainee(
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
    """2,000 draws of one hidden place against the softmax they are drawn from."""
    text = packed(*(["[CLS] the dog [SEP]"] * 2000))
    text = replace(text, keys=derive(3, np.arange(2000)))
    batch = hidden_for_generator(text, VOCABULARY, rate=0.5)
    generator = network("encoder", ("language",), seed=2)
    from firth.training.losses import _sample

    with torch.no_grad():
        hidden = run(generator, batch)
        drawn = _sample(generator, hidden, batch)
        positions = batch.predictions["masked"].positions
        first = batch.inputs.offsets[positions] == 1
        shares = generator.logits(hidden[positions[first][:1]])[0].softmax(-1).numpy()
    counts = np.bincount(drawn[first], minlength=len(WORDS)) / first.sum()
    assert np.abs(counts - shares).max() < 0.05


def test_a_masked_loss_is_the_mean_surprise_at_the_hidden_tokens() -> None:
    batch = batches()["masked"][1]
    model = network("encoder", ("language",))
    term = Trainee(model)(batch)["masked"]
    hidden = run(model, batch)
    wanted = batch.predictions["masked"]
    logits = model.logits(hidden[torch.from_numpy(wanted.positions)])
    expected = cross_entropy(logits, torch.from_numpy(wanted.targets), reduction="sum")
    torch.testing.assert_close(term.sum, expected)
    assert term.count == len(wanted.targets)


def test_a_teachers_distribution_and_direction_are_learned() -> None:
    batch = batches()["masked"][1]
    teacher = network("encoder", ("language",), seed=5)
    student = network("encoder", ("language",), seed=6)
    terms = Trainee(student, teacher=teacher)(batch)
    positions = torch.from_numpy(batch.predictions["masked"].positions)
    mine, theirs = run(student, batch)[positions], run(teacher, batch)[positions]
    soft = kl_div(
        (student.logits(mine).float() / 2).log_softmax(-1),
        (teacher.logits(theirs).float() / 2).softmax(-1),
        reduction="sum",
    )
    torch.testing.assert_close(terms["soft targets"].sum, 4 * soft)
    angles = 1 - torch.cosine_similarity(mine.float(), theirs.float())
    torch.testing.assert_close(terms["cosine"].sum, angles.sum())
    same = Trainee(teacher, teacher=teacher)(batch)
    assert abs(same["soft targets"].sum.item()) < 1e-5


def test_a_student_begins_with_alternate_layers() -> None:
    teacher = initialise(Transformer(replace(CONFIG, layers=4), ["language"]), 1)
    student = initialise(Transformer(CONFIG, ["language"]), 2)
    student_of(student, teacher)
    ours, theirs = student.state_dict(), teacher.state_dict()
    for mine, other in ((0, 0), (1, 3)):
        name = "encoder.blocks.{}.attention.qkv.weight"
        assert torch.equal(ours[name.format(mine)], theirs[name.format(other)])
    assert torch.equal(ours["tokens.weight"], theirs["tokens.weight"])


def test_every_prediction_of_an_objective_has_a_loss() -> None:
    from firth.objectives.table import OBJECTIVES

    assert {name for row in OBJECTIVES.values() for name in row.predicts} <= set(LOSSES)
