"""Replay of pre-training text: its batches, its steps and the loss on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.jobs.finetuning import finetune
from firth.model import Model, load
from firth.models.masks import Mask
from firth.objectives.toy_vocabulary import VOCABULARY, packed
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.examples import Seq2SeqExample
from firth.tasks.replay import TextReplay, make_objective_batch
from firth.tasks.seq2seq import Seq2SeqTask
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import attach_head, drop_language_head
from firth.training.run_directory import read_metrics
from firth.utils.errors import InputError, MismatchError
from tests.jobs.finetuning.toys import TINY, coloured

OBJECTIVES = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "denoising"}


def replay(model: Model, text: Path, length: int = 24) -> TextReplay:
    return TextReplay(
        text, InputTemplate(model.require_tokenizer(), model.config, length), 4, seed=1
    )


@pytest.mark.parametrize("architecture", OBJECTIVES)
def test_batches_have_the_objective_of_pretraining(
    architecture: str, models: dict[str, Path], stories: Path
) -> None:
    model = load(models[architecture])
    text = replay(model, stories / "dev.txt")
    batch = text.batch(3)
    assert list(batch.predictions) == [OBJECTIVES[architecture]]
    assert len(batch.inputs.lengths) == 4
    assert batch.inputs.lengths.max() <= 24
    again, other = text.batch(3), text.batch(4)
    assert again.inputs.tokens.tolist() == batch.inputs.tokens.tolist()
    assert other.inputs.tokens.tolist() != batch.inputs.tokens.tolist()


def test_a_prefix_lm_is_trained_as_it_generates(models: dict[str, Path], stories: Path) -> None:
    model = load(models["decoder"])
    model.network.config = replace(model.config, prefix_lm=True)
    assert list(replay(model, stories / "dev.txt").batch(3).predictions) == ["prefix"]
    template = InputTemplate(model.require_tokenizer(), model.config, 64)
    task, examples = Seq2SeqTask(), [Seq2SeqExample(source="the sea", target="calm")]
    items = task.encode(examples, template, task.metadata(examples, 64, {}))
    assert task.inputs(items, model.config).prefix.tolist() == [len(items[0].rows[0].tokens)]
    assert task.inputs(items, replace(model.config, prefix_lm=False)).prefix.tolist() == [0]


def test_denoising_adds_the_end_token_once(models: dict[str, Path], stories: Path) -> None:
    model = load(models["encoder-decoder"])
    vocabulary = model.require_tokenizer().vocabulary
    batch = replay(model, stories / "dev.txt").batch(3)
    first = vocabulary.id("cls")
    assert first not in batch.inputs.tokens
    ends = [int(tokens[-1]) for tokens in np.split(batch.inputs.tokens, batch.inputs.starts[1:-1])]
    assert set(ends) == {vocabulary.id("sep")}
    assert int((batch.inputs.tokens == ends[0]).sum()) == len(ends)


def test_denoising_without_sentinels_uses_masks() -> None:
    plain = replace(VOCABULARY, sentinels=VOCABULARY.sentinels[:0])
    batch = make_objective_batch(
        packed("the dog barked . a fox jump ##s over it ."), "denoising", plain
    )
    assert plain.id("mask") in batch.inputs.tokens


def test_every_token_of_the_text_is_kept(models: dict[str, Path], stories: Path) -> None:
    model = load(models["decoder"])
    text, tokenizer = replay(model, stories / "dev.txt"), model.require_tokenizer()
    special = tokenizer.vocabulary.special
    held = [id for row in text.rows for id in row.tokens.tolist() if not special[id]]
    plain = tokenizer.encode((stories / "dev.txt").read_text(encoding="utf-8"))
    assert held == plain


def test_the_loss_equals_a_manual_computation(models: dict[str, Path], tmp_path: Path) -> None:
    model = load(models["decoder"])
    path = tmp_path / "text.txt"
    path.write_text("the dog ran\n\nthe river rose in the morning\n", encoding="utf-8")
    text = replay(model, path)
    losses = []
    with torch.no_grad():
        for row in text.rows:
            tokens = torch.from_numpy(row.tokens)
            hidden = model.network(tokens, Mask.causal([len(tokens)]))
            shares = model.network.logits(hidden).log_softmax(-1)
            losses += [-float(shares[i, tokens[i + 1]]) for i in range(len(tokens) - 1)]
    assert text.loss(model.network) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("strategy", ["full", "freeze:2", "gradual"])
def test_text_is_replayed_after_every_second_step(
    strategy: str, models: dict[str, Path], stories: Path, tmp_path: Path
) -> None:
    """Three epochs of sixteen examples, four at a time: twelve steps, and six on the text."""
    train, dev = coloured(tmp_path, counts=(16, 8))
    files = {"train": train, "dev": dev, "out": tmp_path / "run", "replay": stories / "dev.txt"}
    overrides = TINY | {"batch_size": 4, "epochs": 3, "replay_every": 2, "log_every": 1}
    options = {"task": "classify", "strategy": strategy, "overrides": overrides}
    tuned = finetune(models["encoder"], **options, **files)
    steps = [line for line in read_metrics(tuned.path) if line["kind"] == "step"]
    kinds = ["masked" if "masked" in line else "label" for line in steps]
    assert kinds == ["label", "label", "masked"] * 6
    assert tuned.steps == 18
    assert steps[-1]["epoch"] == 3
    tokens = np.diff([line["tokens"] for line in steps])
    assert max(tokens) <= 4 * 32  # four sequences in each batch, also of the text


def test_invalid_texts_and_models(models: dict[str, Path], tmp_path: Path) -> None:
    model = load(models["encoder"])
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"empty\.txt has no text"):
        replay(model, empty)
    (tmp_path / "text.txt").write_text("the dog ran\n", encoding="utf-8")
    text = replay(model, tmp_path / "text.txt")
    metadata = TaskMetadata(task="classify", labels=("x", "y"))
    attach_head(model.network, "classify", metadata, {}, seed=0)
    drop_language_head(model.network)
    with pytest.raises(MismatchError, match="no language head"):
        text.loss(model.network)
