"""Recurrent task-specific models: fine-tuned from random weights, stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import firth
from firth.jobs.finetuning import FinetuneResult
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from tests.jobs.finetuning.toys import sums
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at

ROWS = [(f"{name} saw a {other}", f"a {other} was seen by {name}")
        for name in ("Ann", "Bob", "Cid") for other in ("cat", "dog", "fox")]  # fmt: skip
SIX = dict(steps=6, batch_size=4, max_length=16, checkpoint_every=2, precision="fp32")


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer([" ".join(row) for row in ROWS] * 2, kind="word")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mostly_nightly(["rnn-seq2seq", "pointer-generator"], always=["pointer-generator"])
)
def test_a_resumed_run_ends_with_the_same_bits(name: str, words: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in [("source", "target"), *ROWS]))

    def tune(out: str, **options: Any) -> FinetuneResult:
        return firth.finetune(
            name,
            task="seq2seq",
            train=file,
            dev=file,
            out=tmp_path / out,
            scratch=True,
            tokenizer=words,
            overrides=SIX,
            **options,
        )

    whole = tune("whole")
    with pytest.raises(Killed):
        tune("stopped", callbacks=kill_at(3))
    again = tune("stopped", resume=True)
    assert sums(again.path) == sums(whole.path) != {}
    model = firth.load(again.path)
    [answer] = model.predict(["Ann saw a fox"])
    assert isinstance((answer or {})["text"], str)
