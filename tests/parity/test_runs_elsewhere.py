"""A run pre-trained here is used by the rest of the world as it lies on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from firth.data.stories import write_stories
from firth.inference.generation.token_generation import greedy_decode
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import predict
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.model import load
from firth.tokenizers.trainer import train_tokenizer

SMALL = {"model.hidden_size": 32, "model.num_heads": 2, "model.ffn_size": 48}
SMALL |= {"max_length": "32", "batch_tokens": "256", "precision": "fp32"}
TEXT = "The dog barked at the"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories and their shards."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_stories(folder / "stories", words=10_000, seed=0)
    train = folder / "stories/train.txt"
    options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 500, "lowercase": True}
    tokenizer, _ = train_tokenizer([train], workers=1, **options)
    tokenizer.save(folder / "tokenizer")
    shards = folder / "shards"
    prepare([train], tokenizer=folder / "tokenizer", out=shards, valid_fraction=0, workers=1)
    return folder


def run(place: Path, name: str) -> Path:
    out = place / name
    if not out.exists():
        pretrain(preset=name, data=place / "shards", out=out, steps=3, overrides=SMALL)
    return out


@pytest.mark.parametrize("name", ["bert-tiny", "encoder-tiny"])
def test_an_encoder_fills_masks_in_a_pipeline(place: Path, name: str) -> None:
    path = run(place, name)
    ask = transformers.pipeline("fill-mask", model=str(path), device="cpu")
    theirs = ask("the [MASK] barked .", top_k=3)
    ours = load(path).fill("the [MASK] barked .", top=3)[0]
    assert [guess["token_str"] for guess in theirs] == [guess.token for guess in ours]
    for guess, own in zip(theirs, ours, strict=True):
        assert guess["score"] == pytest.approx(own.score, abs=1e-5)


@pytest.mark.parametrize("name", ["decoder-tiny", "gpt2"])
def test_a_decoder_generates(place: Path, name: str) -> None:
    path = run(place, name)
    model, tokenizer = load(path), transformers.AutoTokenizer.from_pretrained(path)
    ids = tokenizer(TEXT, return_tensors="pt", add_special_tokens=False).input_ids
    network = transformers.AutoModelForCausalLM.from_pretrained(path)
    theirs = network.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    ours = greedy_decode(
        model.network, [ids[0].tolist()], max_new_tokens=8, eos_token_id=model.config.eos_token_id
    )[0]
    assert theirs[: len(ours)] == ours


def test_their_trainer_learns_on(place: Path, tmp_path: Path) -> None:
    """One step of `transformers.Trainer` on a run of ours."""
    path = run(place, "encoder-tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    network = transformers.AutoModelForMaskedLM.from_pretrained(path)
    rows = [tokenizer("the dog barked at the mailman .") for _ in range(4)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    options = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, report_to=[], use_cpu=True, save_strategy="no"
    )
    before = [parameter.clone() for parameter in network.parameters()]
    trainer = transformers.Trainer(network, options, data_collator=collator, train_dataset=rows)
    assert torch.isfinite(torch.tensor(trainer.train().training_loss))
    pairs = zip(before, network.parameters(), strict=True)
    assert any(not torch.equal(old, new.detach()) for old, new in pairs)


def test_a_classifier_in_a_pipeline(place: Path) -> None:
    """A model fine-tuned here says the same there, labels and all."""
    path, out = run(place, "bert-tiny"), place / "sentiment"
    train = place / "stories/sentiment/train.tsv"
    overrides = {"steps": 3, "max_length": 48, "precision": "fp32"}
    tuned = finetune(path, task="classify", train=train, out=out, limit=40, overrides=overrides)
    ask = transformers.pipeline("text-classification", model=str(out), device="cpu", top_k=None)
    text = "it was wonderful ."
    theirs = {row["label"]: row["score"] for row in ask([text])[0]}
    data = place / "one.txt"
    data.write_text(text, encoding="utf-8")
    ours = predict(tuned.path, data=data).answers[0]["scores"]
    assert ours == pytest.approx(theirs, abs=1e-5)
