"""Previews of the objectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firth.data.shards import Shards
from firth.jobs.objective_examples import show_objectives
from firth.jobs.preparation import prepare
from firth.objectives.preview import ObjectivePreview
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import InputError, UsageError
from tests.conftest import Result
from tests.nightly import mostly_nightly


def test_every_objective_has_a_preview(shards: Path) -> None:
    examples, reasons = show_objectives(Shards(shards))
    assert [example.objective for example in examples] == list(OBJECTIVES)
    assert not reasons
    by_name = {example.objective: example for example in examples}
    masked = by_name["masked"]
    hidden = [word for word in masked.reads if word.role in ("hidden", "changed", "kept")]
    assert len(hidden) == len(masked.predicts["masked"])
    assert masked.reads[0].role == "special"
    assert set(by_name["masked-nsp"].predicts) == {"masked", "next sentence"}
    spans = by_name["span-corruption"]
    assert next(w.token for w in spans.reads if w.role == "hidden") == "<extra_id_0>"
    replaced = by_name["replaced"]
    changed = sum(word.role == "changed" for word in replaced.reads)
    assert changed == replaced.predicts["replaced"].count("replaced")


def test_missing_tokens_are_reported(sample: Path, tmp_path: Path) -> None:
    train_tokenizer([sample], kind="bpe", vocab_size=400)[0].save(tmp_path / "gpt2")
    out = tmp_path / "shards"
    prepare([sample], tokenizer=tmp_path / "gpt2", out=out, valid_fraction=0)
    examples, reasons = show_objectives(Shards(out))
    able = ["causal", "prefix", "bilm", "causal-seq2seq", "prefix-seq2seq"]
    assert [example.objective for example in examples] == able
    assert "has no cls or bos" not in reasons["masked"]  # <|endoftext|> is the bos token
    assert "mask token" in reasons["masked"]
    assert "--sentinels 100" in reasons["span-corruption"]
    with pytest.raises(UsageError, match="mask token"):
        show_objectives(Shards(out), ["masked"])


def test_command_line(shards: Path, firth_here: Callable[..., Result]) -> None:
    listed = firth_here("objectives").stdout
    assert all(name in listed for name in OBJECTIVES)
    values = firth_here("objectives", "--data", shards, "--objective", "masked", "--json").json
    (example,) = values["examples"]
    assert example["objective"] == "masked"
    shown = firth_here("objectives", "--data", shards)
    assert "[MASK]" in shown.stdout
    unknown = firth_here("objectives", "--data", shards, "--objective", "magic")
    assert (unknown.returncode, "magic" in unknown.error) == (2, True)
    short = firth_here("objectives", "--data", shards, "--objective", "masked", "--length", 1)
    assert short.returncode == 2
    assert "no room for text" in short.error


PAIR = "The weather is nice. Let us go for a walk."  # of the lectures


def joined(example: ObjectivePreview) -> str:
    return " ".join(word.token for word in example.reads)


def test_every_objective_on_a_text() -> None:
    """The lectures' exercise: one of five words is selected, with three outcomes."""
    text = "The quick brown fox jumps"
    examples, reasons = show_objectives(text, tokenizer="words", seed=2)
    assert set(reasons) == {"masked-nsp", "masked-sop"}  # one sentence has no pair
    by_name = {example.objective: example for example in reversed(examples)}
    assert set(by_name) | set(reasons) == set(OBJECTIVES)
    mask, other, same = (e for e in examples if e.objective == "masked")
    (position,), (word,) = mask.positions["masked"], mask.predicts["masked"]
    assert joined(same) == "[CLS] The quick brown fox jumps [SEP]"
    assert joined(mask).split()[position] == "[MASK]" != word == joined(same).split()[position]
    assert joined(other).split()[position] not in ("[MASK]", word)
    assert other.positions == same.positions == mask.positions
    causal = by_name["causal"]
    words = joined(causal).split()
    assert [words[i + 1] for i in causal.positions["causal"]] == causal.predicts["causal"]
    spans = by_name["span-corruption"]
    decoder = [word.token for word in spans.decoder]
    assert decoder[1:] == spans.predicts["denoising"][:-1]
    denoising = by_name["prefix-denoising"]
    assert denoising.reads[denoising.prefix - 1].token == "[SEP]"  # of the corrupted text
    assert len(denoising.reads) == denoising.prefix + len(denoising.predicts["denoising"])
    assert not causal.prefix
    kinds = {e.variant for e in examples if e.objective == "hybrid"}
    assert kinds == {"masked", "causal"}


@pytest.mark.parametrize("seed", mostly_nightly(range(5), always=[0]))
def test_something_is_always_hidden(seed: int) -> None:
    examples, _ = show_objectives(PAIR, tokenizer="words", seed=seed)
    assert examples == show_objectives(PAIR, tokenizer="words", seed=seed)[0]
    for example in examples:
        hides = {word.role for word in example.reads} & {"hidden", "changed"}
        shown = (
            set(example.predicts) <= {"causal", "prefix", "forward", "backward"}
            or "unchanged" in example.variant
        )
        assert hides or shown, example
    pairs = {e.variant for e in examples if e.objective in ("masked-nsp", "masked-sop")}
    assert pairs == {"follows", "does not follow", "kept", "swapped"}


def test_missing_tokens_are_added_to_show_a_text(sample: Path) -> None:
    tokenizer = train_tokenizer([sample], kind="bpe", vocab_size=400)[0]
    size = len(tokenizer)
    examples, reasons = show_objectives(PAIR, tokenizer=tokenizer, mask_prob=0.5)
    assert not reasons
    assert len(tokenizer) == size
    masked = next(e for e in examples if e.objective == "masked")
    assert "<mask>" in joined(masked)
    assert "<mask>" in masked.note
    tokens = [word for word in masked.reads if word.role != "special"]
    assert len(masked.predicts["masked"]) == round(len(tokens) / 2)


def test_texts_that_cannot_be_shown(sample: Path) -> None:
    tokenizer = train_tokenizer([sample], kind="wordpiece", vocab_size=100)[0]
    with pytest.raises(InputError, match="tokenizer"):
        show_objectives("\u4e2d\u6587", tokenizer=tokenizer)
    with pytest.raises(InputError, match="empty"):
        show_objectives(" ")
    with pytest.raises(UsageError, match="two sentences"):
        show_objectives("One.", ["masked-sop"])
    with pytest.raises(UsageError, match="mask_prob"):
        show_objectives("One.", mask_prob=0)
    assert "two tokens" in show_objectives("fox", tokenizer="words")[1]["span-corruption"]


def test_text_on_the_command_line(firth_here: Callable[..., Result], sample: Path) -> None:
    train_tokenizer([sample], kind="wordpiece", vocab_size=100)[0].save("wordpiece")
    text = "--text", "The quick brown fox jumps"
    shown = firth_here("objectives", *text, "--tokenizer", "words").stdout
    assert "causal" in firth_here("objectives", *text).stdout  # with the default tokenizer
    assert "[MASK]" in shown
    assert "<extra_id_0>" in shown
    values = firth_here(
        "objectives", *text, "--tokenizer", "wordpiece", "--objective", "masked", "--json"
    ).json
    assert [e["objective"] for e in values["examples"]] == ["masked"] * 3
    assert values["examples"][0]["reads"][0] == {"token": "[CLS]", "role": "special", "id": 2}
    assert firth_here("objectives", *text, "--data", "shards").returncode == 2
    assert firth_here("objectives", "--mask-prob", 0.2).returncode == 2
