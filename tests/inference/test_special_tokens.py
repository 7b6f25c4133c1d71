"""Special tokens of a checkpoint: ids outside the vocabulary, several EOS tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

import firth
from firth import Tokenizer
from firth.tasks.ensembles import resolve_task, task_template
from firth.tokenizers.special_tokens import special_tokens_around, with_special_tokens
from tests.inference.conftest import MakeModel


def set_values(file: Path, **values: Any) -> None:
    """Change fields of a JSON file."""
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**known, **values}))


def test_ids_outside_the_vocabulary_are_ignored(
    gpt: Path, lines: Path, verb: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """GPT-2's config has 50256 by default, whatever the size of the vocabulary."""
    ids = dict(bos_token_id=50256, eos_token_id=50256, pad_token_id=-1)
    for name in ("config.json", "generation_config.json"):
        set_values(gpt / name, **ids)
    done = verb("generate", gpt, "The sea", "--max-new-tokens", 3, "--json")
    assert done.exit_code == 0, done.output
    assert all(fact in caplog.text for fact in ("50256", "config.json", "400"))
    assert verb("evaluate", gpt, "--task", "lm", "--data", lines).exit_code == 0
    model = firth.load(gpt)
    assert model.config.special_token_ids == {}
    expected = firth.load(gpt).generate("The sea", max_new_tokens=3)
    assert json.loads(done.stdout)["completions"][0]["text"] == expected


def test_every_eos_token_ends_a_text(gpt: Path) -> None:
    """Those of the generation config, also if config.json has one of them only."""
    free = firth.load(gpt).completions(["The sea"], max_new_tokens=12)[0].completions[0]
    first, second = list(dict.fromkeys(free.tokens))[1:3]
    set_values(gpt / "generation_config.json", eos_token_id=[second, first])
    for options in ({}, {"method": "sample", "top_k": 1}, {"repetition_penalty": 1.0000001}):
        model = firth.load(gpt)
        [done] = model.completions(["The sea"], max_new_tokens=12, **options)[0].completions
        assert done.finish_reason == "end"
        assert done.tokens == free.tokens[: free.tokens.index(first)]
        assert "".join(model.stream("The sea", max_new_tokens=12, **options)) == done.text
    set_values(gpt / "config.json", eos_token_id=[0, second])
    assert firth.load(gpt).config.eos_token_ids == (second, first)
    (gpt / "generation_config.json").unlink()
    assert firth.load(gpt).config.eos_token_ids == (0, second)


def test_the_generation_config_is_kept(gpt: Path, tmp_path: Path) -> None:
    kept = dict(eos_token_id=[2, 0], temperature=0.6, top_p=0.9, do_sample=True, my_own={"a": [1]})
    (gpt / "generation_config.json").write_text(json.dumps(kept))
    firth.load(gpt).save(tmp_path / "saved")
    firth.export(tmp_path / "saved", tmp_path / "exported")
    for folder in ("saved", "exported"):
        assert json.loads((tmp_path / folder / "generation_config.json").read_text()) == kept
        assert json.loads((tmp_path / folder / "config.json").read_text())["eos_token_id"] == [0, 2]
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "exported")
    assert (theirs.eos_token_id, theirs.temperature) == ([2, 0], 0.6)


@pytest.mark.parametrize("begins", [False, True])
def test_prompts_equal_transformers(
    make_model: MakeModel, tokenizers: dict[str, Tokenizer], begins: bool, tmp_path: Path
) -> None:
    """The tokenizer adds BOS or not; GPT-2's config has one, but its tokenizer adds none."""
    made = make_model("gpt2", "bpe", bos_token_id=2, eos_token_id=0, tie_embeddings=True)
    tokenizer = with_special_tokens(tokenizers["bpe"], [2] if begins else [], [])
    firth.Model(made.network, tokenizer).save(tmp_path)
    model = firth.load(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)("The sea", return_tensors="pt")
    written = theirs.generate(**encoded, max_new_tokens=8, do_sample=False)
    size = encoded["input_ids"].shape[1]
    [done] = model.completions(["The sea"], max_new_tokens=8)[0].completions
    assert list(done.tokens) == [id for id in written[0, size:].tolist() if id != 0]
    assert model.tokens("The sea") == encoded.tokens()
    assert model.completions([""], max_new_tokens=2)[0].completions  # begins with BOS
    assert model.score("The sea", context="") == pytest.approx(model.score("The sea"))


@pytest.mark.parametrize("begins", [False, True])
def test_decoders_are_fine_tuned_on_texts_that_begin_like_their_prompts(
    make_model: MakeModel, tokenizers: dict[str, Tokenizer], begins: bool, tmp_path: Path
) -> None:
    """What is generated ends with EOS; labels are predicted of texts between BOS and EOS."""
    made = make_model("gpt2", "bpe", bos_token_id=2, eos_token_id=0, tie_embeddings=True)
    before = [2] if begins else []
    base = firth.Model(made.network, with_special_tokens(tokenizers["bpe"], before, []))
    train: dict[str, Any] = {"lm": ["the sea"] * 4, "seq2seq": [("the sea", "a boat")] * 4}
    train["classify"] = [("the sea", "x"), ("a boat", "y")] * 4
    for task, rows in train.items():
        out = tmp_path / task
        firth.finetune(base, task=task, train=rows, dev=rows, out=out, overrides={"steps": 1})
        model = firth.load(out)
        row, metadata = resolve_task(model, None)
        template = task_template(model, row, metadata)
        learned = [2] if task == "classify" else before
        assert special_tokens_around(template.tokenizer) == (learned, [0])
        [item] = row.encode([row.example("the sea")], template, metadata)
        if task != "classify":
            prompt = model.text_generator(max_new_tokens=1).encode_prompt("the sea").ids
            assert tuple(item.rows[0].tokens[: len(prompt)]) == prompt


@pytest.mark.parametrize("values", [{"eos_token_id": ["a"]}, {"bos_token_id": [1]}, ["no object"]])
def test_an_invalid_generation_config(gpt: Path, values: Any) -> None:
    (gpt / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(firth.InputError, match=r"generation_config\.json"):
        firth.load(gpt)
