"""Generated text: stop strings, streams, long and empty prompts; in Python and on the command
line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers

import firth
from firth import MismatchError, Model, Tokenizer, UsageError, load
from firth.inference.generation.detokenization import REPLACEMENT, Detokenizer, TextStreamer
from firth.inference.generation.text_generation import BATCH_TOKENS
from tests.conftest import SAMPLE
from tests.inference.conftest import KINDS, UNUSUAL, MakeModel

Verb = Callable[..., Any]
SEQ2SEQ = dict(num_decoder_layers=2, decoder_start_token_id=0, eos_token_id=3)


# --- text


def test_a_prompt_gives_a_text_and_several_give_several(decoder: Model) -> None:
    prompts = ["The sea", "A boat was on the water", "the"]
    one = decoder.generate(prompts[0], max_new_tokens=6)
    several = decoder.generate(prompts, max_new_tokens=6)
    assert isinstance(one, str)
    assert several[0] == one
    assert several == [decoder.generate(prompt, max_new_tokens=6) for prompt in prompts]
    rich = decoder.completions(prompts, max_new_tokens=6, beams=3, n=2)
    assert [done.prompt for done in rich] == prompts
    assert all(len(done.completions) == 2 for done in rich)
    assert all(done.completions[0].score >= done.completions[1].score for done in rich)


def test_completions_do_not_depend_on_the_batch(
    decoder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [" ".join(SAMPLE.split()[i : i + 1 + i % 7]) for i in range(12)]
    settings: dict[str, Any] = dict(temperature=1.0, max_new_tokens=6, seed=5)
    whole = decoder.completions(prompts, **settings)
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 30)
    parts = decoder.completions(prompts, **settings)
    assert [done.completions[0].tokens for done in whole] == [
        done.completions[0].tokens for done in parts
    ]
    assert len({done.completions[0].tokens for done in whole}) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "A boat"])
def test_pieces_of_a_stream_are_the_text(
    kinds: dict[str, Tokenizer], kind: str, prompt: str
) -> None:
    tokenizer = kinds[kind]
    detokenizer = Detokenizer(tokenizer=tokenizer, prompt=tuple(tokenizer.encode(prompt)))
    ids = tokenizer.encode(UNUSUAL)
    stream = TextStreamer(detokenizer)
    pieces = [stream.add(id) for id in ids]
    assert sum(map(bool, pieces)) > 5
    assert REPLACEMENT not in "".join(pieces)
    assert "".join([*pieces, stream.finish()]) == detokenizer.text(ids)


def test_prompt_plus_completion_is_the_decoded_text(kinds: dict[str, Tokenizer]) -> None:
    """Also for SentencePiece, whose decoder drops the first space of a text."""
    unigram = kinds["unigram"]
    ids = unigram.encode("The sea was calm.")
    detokenizer = Detokenizer(tokenizer=unigram, prompt=tuple(ids[:2]))
    assert unigram.decode(ids[:2]) + detokenizer.text(ids[2:]) == unigram.decode(ids)
    assert detokenizer.text(unigram.encode("sea")) == " sea"
    assert unigram.decode(unigram.encode("sea")) == "sea"


def test_a_character_of_several_tokens_is_streamed_at_once(kinds: dict[str, Tokenizer]) -> None:
    tokenizer = kinds["bpe"]
    ids = tokenizer.encode("é🙂!")
    assert len(ids) > 5  # bytes
    stream = TextStreamer(Detokenizer(tokenizer=tokenizer))
    pieces = [stream.add(id) for id in ids]
    assert [piece for piece in pieces if piece] == ["é", "🙂", "!"]
    broken = TextStreamer(Detokenizer(tokenizer=tokenizer))
    assert "".join(broken.add(id) for id in ids[:-2]) == "é"
    assert broken.finish().startswith(REPLACEMENT)  # what stays half is shown at the end


def test_a_partial_stop_string_is_not_streamed(kinds: dict[str, Tokenizer]) -> None:
    tokenizer = kinds["char"]
    stream = TextStreamer(Detokenizer(tokenizer=tokenizer), ["calm!", "was calm."])
    pieces = [stream.add(id) for id in tokenizer.encode("The sea was cal, was calm.")]
    assert "".join([*pieces, stream.finish()]) == "The sea was cal, "
    assert pieces[8:15] == ["", "", "", "", "", "", ""]
    assert pieces[15] == "was cal,"


def test_a_text_ends_before_a_stop_string(decoder: Model) -> None:
    settings: dict[str, Any] = dict(temperature=1.5, seed=4, max_new_tokens=30)
    [whole] = decoder.completions(["The sea"], **settings)[0].completions
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 3]
    tokens = [decoder.tokenizer.decode([id]) for id in whole.tokens]  # type: ignore[union-attr]
    assert stop not in tokens  # it stands across tokens
    [cut] = decoder.completions(["The sea"], **settings, stop=[stop, "never"])[0].completions
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert len(cut.tokens) < 30
    assert "".join(decoder.stream("The sea", **settings, stop=[stop])) == cut.text
    assert decoder.completions(["The sea"], **settings, stop=stop)[0].completions == (cut,)


def test_a_stop_string_in_the_prompt_is_ignored(decoder: Model) -> None:
    settings: dict[str, Any] = dict(max_new_tokens=6)
    [plain] = decoder.completions(["The sea"], **settings)[0].completions
    [same] = decoder.completions(["The sea"], **settings, stop=["sea"])[0].completions
    assert "sea" not in plain.text
    assert same.text == plain.text
    assert same.score == pytest.approx(plain.score, rel=1e-6)  # another kernel adds the logits


def test_beams_stop_too(decoder: Model) -> None:
    [plain] = decoder.completions(["The sea"], beams=3, max_new_tokens=12)[0].completions
    stop = plain.text[3:6]
    done = decoder.completions(["The sea"], beams=3, n=3, max_new_tokens=12, stop=[stop])[0]
    assert all(stop not in one.text for one in done.completions)
    assert "stop" in {one.finish_reason for one in done.completions}


def test_a_prompt_that_is_too_long_keeps_its_end(decoder: Model) -> None:
    words = " ".join(SAMPLE.split()[:200])
    tokenizer = decoder.tokenizer
    assert tokenizer is not None
    [done] = decoder.completions([words], max_new_tokens=10)
    size, kept = len(tokenizer.encode(words)), 64 - 10
    [note] = done.notes
    assert all(fact in note for fact in (f"{size:,} tokens", "64", "last 54"))
    end = tokenizer.decode(tokenizer.encode(words)[-kept:])
    [same] = decoder.completions([end], max_new_tokens=10)
    assert same.completions == done.completions
    assert same.notes == ()
    [little] = decoder.completions([end], max_new_tokens=20)
    assert "10 of 20 new tokens" in little.notes[0]
    assert len(little.completions[0].tokens) == 10


def test_a_long_source_keeps_its_end(make_model: MakeModel) -> None:
    model = make_model("t5-small", **SEQ2SEQ)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    words = " ".join(SAMPLE.split()[:200])
    [done] = model.completions([words], max_new_tokens=5)
    assert "last 63" in done.notes[0]  # and the end
    asked = model.text_generator(max_new_tokens=5).encode_prompt(words)
    assert list(asked.ids) == [*tokenizer.encode(words)[-63:], 3]


def test_empty_prompts(decoder: Model, make_model: MakeModel) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        decoder.generate("")
    begins = make_model("gpt2", "bpe", bos_token_id=0, eos_token_id=0)
    assert isinstance(begins.generate(""), str)


def test_models_that_cannot_generate(make_model: MakeModel) -> None:
    with pytest.raises(MismatchError, match=r"encoder cannot generate.*`firth fill`"):
        make_model("bert-tiny").generate("The sea")
    model = make_model("gpt2", "bpe")
    del model.network.heads["language"]
    with pytest.raises(MismatchError, match=r"no language head.*`firth predict`"):
        model.generate("The sea")


@pytest.mark.parametrize("name", ["t5-small", "bart-base"])
def test_explained_tokens(make_model: MakeModel, name: str) -> None:
    """One forward pass gives the probabilities of cached decoding."""
    model = make_model(name, **SEQ2SEQ)
    for settings in ({}, {"top_k": 7, "temperature": 0.8}, {"beams": 3}):
        generator = replace(model.text_generator(max_new_tokens=7, **settings), explain=True)
        [one] = next(generator.complete(["The sea was calm"])).completions
        logs = [math.log(step.probability) for step in one.steps]
        assert sum(logs) == pytest.approx(one.logprob, abs=1e-3)
        assert len(one.steps) == len(one.tokens) + (one.finish_reason == "end")
        for step in one.steps:
            assert step.alternatives[0].probability >= step.probability
            assert (step.rank == 1) == (step.alternatives[0].id == step.id)
            assert (step.drawn is not None) == ("top_k" in settings)
            assert step.drawn is None or step.drawn >= step.probability


def test_long_prompts_are_logged(decoder: Model, caplog: pytest.LogCaptureFixture) -> None:
    long = " ".join(SAMPLE.split()[:200])
    for call in (decoder.generate, partial(firth.generate, decoder)):
        caplog.clear()
        assert call([long, "The sea", long], max_new_tokens=2)
        [record] = caplog.records
        assert "only the last 62 are used. (first of 2 notes" in record.message
    caplog.clear()
    assert decoder.generate("The sea", max_new_tokens=2)
    assert not caplog.records


def test_encoder_inputs_equal_transformers(make_model: MakeModel, tmp_path: Path) -> None:
    """BART's input has begin and end tokens, T5's only the end token."""
    ids = dict(bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, pad_token_id=0)
    bart = make_model("bart-base", "wordpiece", num_decoder_layers=2, **ids)
    assert bart.tokenizer is not None
    bart.save(tmp_path / "bart")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "bart")
    assert (
        list(bart.text_generator().encode_prompt("The sea").ids) == theirs("The sea")["input_ids"]
    )
    t5 = make_model(
        "t5-small", "wordpiece", num_decoder_layers=2, **{**ids, "decoder_start_token_id": 0}
    )
    assert list(t5.text_generator().encode_prompt("The sea").ids) == [
        *bart.tokenizer.encode("The sea"),
        3,
    ]


# --- the command line


def test_one_prompt(verb: Verb, gpt: Path) -> None:
    expected = load(gpt).generate("The sea", max_new_tokens=7)
    shown = verb("generate", gpt, "The sea", "--max-new-tokens", 7)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == expected + "\n"
    assert (
        verb("generate", gpt, "The sea", "--max-new-tokens", 7, "--stream").stdout == shown.stdout
    )
    values = json.loads(verb("generate", gpt, "The sea", "--max-new-tokens", 7, "--json").stdout)
    assert values["prompt"] == "The sea"
    assert values["notes"] == []
    done = verb("generate", gpt, " ".join(SAMPLE.split()[:200]), "--max-new-tokens", 3)
    assert (done.exit_code, "last 61" in done.stderr) == (0, True)
    [one] = values["completions"]
    assert one["text"] == expected
    assert len(one["tokens"]) == 7
    assert one["score"] == pytest.approx(one["logprob"] / 7)
    assert one["finish_reason"] == "length"


def test_a_new_line_can_be_a_stop_string(verb: Verb, gpt: Path) -> None:
    model = load(gpt)
    for seed in range(20):
        text = model.generate("the", temperature=3.0, max_new_tokens=60, seed=seed)
        if "\n" in text.lstrip():
            break
    assert "\n" in text
    options = ("--temperature", 3.0, "--max-new-tokens", 60, "--seed", seed)
    cut = verb("generate", gpt, "the", *options, "--stop", "\\n").stdout
    assert cut == text.split("\n")[0] + "\n"


def test_several_completions(verb: Verb, gpt: Path) -> None:
    options = ("--top-k", 9, "--n", 3, "--seed", 2, "--max-new-tokens", 4)
    values = json.loads(verb("generate", gpt, "The sea", *options, "--json").stdout)
    assert len({tuple(one["tokens"]) for one in values["completions"]}) == 3
    shown = verb("generate", gpt, "The sea", *options).stdout
    assert shown.count("log P") == 3
    assert all(one["text"].strip() in shown for one in values["completions"])


def test_a_file_of_prompts(verb: Verb, gpt: Path, tmp_path: Path) -> None:
    prompts = ["The sea", "A boat", "the wind was"]
    (tmp_path / "p.txt").write_text("\n".join(prompts) + "\n")
    rows = "".join(json.dumps({"id": i, "ask": text}) + "\n" for i, text in enumerate(prompts))
    (tmp_path / "p.jsonl").write_text(rows)
    (tmp_path / "p.tsv").write_text("ask\tn\n" + "".join(f"{text}\t1\n" for text in prompts))
    options = ("--temperature", 1.0, "--max-new-tokens", 5)
    found = json.loads(verb("generate", gpt, "--file", "p.txt", *options, "--json").stdout)
    assert [row["prompt"] for row in found["results"]] == prompts
    assert found["bad"] == 0
    (tmp_path / "p.csv").write_text("prompt,n\n" + "".join(f"{text},1\n" for text in prompts))
    for file, *column in [("p.jsonl", "--column", "ask"), ("p.tsv", "--column", "ask"), ("p.csv",)]:
        how = ("--file", file, *column)
        done = verb("generate", gpt, *how, *options, "--out", "out.jsonl", "--overwrite")
        assert done.exit_code == 0, done.output
        assert "3 rows to out.jsonl" in done.stdout
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == found["results"]
    lines = verb("generate", gpt, "--file", "p.txt", *options, "--out", "-").stdout.splitlines()
    assert [json.loads(line) for line in lines] == found["results"]
    shown = verb("generate", gpt, "--file", "p.txt", *options).stdout.splitlines()
    assert [line.split("\t")[1] for line in shown] == prompts


def test_bad_rows_are_reported_and_others_finish(verb: Verb, gpt: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"The sea\n\nA b\xffat\nthe wind\n")
    done = verb("generate", gpt, "--file", "p.txt", "--max-new-tokens", 3, "--json")
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    prompts = [row and row["prompt"] for row in values["results"]]
    assert prompts == ["The sea", None, None, "the wind"]
    assert values["notes"] == done.stderr.splitlines()
    assert values["bad"] == 2
    first, second, last = done.stderr.splitlines()
    assert "p.txt line 2" in first
    assert "p.txt line 3: byte 12" in second
    assert "UTF-8" in second
    assert last.startswith("2 rows")
    rows = '{"text": "The sea"}\n{"text": 3}\n{"txt": "a"}\n{nothing\n{"text": "the wind"}\n'
    (tmp_path / "p.jsonl").write_text(rows)
    done = verb("generate", gpt, "--file", "p.jsonl", "--out", "out.jsonl", "--json")
    assert done.exit_code == 0
    notes = done.stderr.splitlines()
    assert json.loads(done.stdout) == {"out": "out.jsonl", "n": 2, "bad": 3, "notes": notes}
    for error, fact in zip(done.stderr.splitlines(), ("int", "'txt'", "JSON"), strict=False):
        assert all(part in error for part in ("p.jsonl line", fact))
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row is None for row in written] == [False, True, True, True, False]
    (tmp_path / "p.jsonl").write_text("".join(rows.splitlines(keepends=True)[1:4]))
    done = verb("generate", gpt, "--file", "p.jsonl")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "p.jsonl line 1: 'text' is not text" in done.stderr


def test_steps_are_a_table(verb: Verb, gpt: Path) -> None:
    options = ("--max-new-tokens", 4, "--explain", "--repetition-penalty", 3.0)
    shown = verb("generate", gpt, "The sea", *options)
    assert shown.exit_code == 0, shown.output
    assert "most probable" in shown.stdout
    assert "P sampled" not in shown.stdout
    [one] = json.loads(verb("generate", gpt, "The sea", *options, "--json").stdout)["completions"]
    assert [step["id"] for step in one["steps"]] == one["tokens"]
    assert all(len(step["alternatives"]) == 5 for step in one["steps"])
    assert (
        REPLACEMENT in one["text"] or "".join(step["token"] for step in one["steps"]) == one["text"]
    )
    drawn = verb("generate", gpt, "The sea", *options, "--top-k", 3)
    assert "P sampled" in drawn.stdout


def test_strategies_are_side_by_side(verb: Verb, gpt: Path) -> None:
    options = ("--show-strategies", "--max-new-tokens", 5)
    shown = verb("generate", gpt, "The sea", *options).stdout
    names = ["greedy", "temperature 0.5", "temperature 1.0", "temperature 2.0", "4 beams"]
    assert all(name in shown for name in names)
    values = json.loads(verb("generate", gpt, "The sea", *options, "--json").stdout)
    assert [row["strategy"] for row in values["strategies"]] == names
    plain = load(gpt).generate("The sea", max_new_tokens=5)
    assert values["strategies"][0]["text"] == plain
    logs = {row["strategy"]: row["logprob"] for row in values["strategies"]}
    assert logs["4 beams"] >= logs["temperature 2.0"]


INVALID: list[tuple[tuple[Any, ...], list[str]]] = [
    ((), ["PROMPT", "--file"]),
    (("x", "--file", "p.txt"), ["PROMPT", "--file"]),
    (("x", "--temperature", -1), ["--temperature", "at least 0", "-1"]),
    (("x", "--beams", 3, "--min-p", 0.1), ["--min-p", "--beams"]),
    (("x", "--n", 2), ["--temperature 1.0", "--beams 2"]),
    (("x", "--show-strategies", "--beams", 2), ["--show-strategies"]),
    (("x", "--out", "a.jsonl"), ["--out", "--file"]),
    (("--file", "x", "--out", "a.csv"), ["--out", "a.jsonl"]),
    (("x", "--beams", 2, "--stream"), ["--stream", "PROMPT"]),
    (("", "--max-new-tokens", 3), ["prompt is empty"]),
]


@pytest.mark.parametrize(("words", "facts"), INVALID, ids=str)
def test_invalid_options_exit_with_2(
    verb: Verb, gpt: Path, words: tuple[Any, ...], facts: list[str]
) -> None:
    refused = verb("generate", gpt, *words)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("firth: ")
    assert all(fact in refused.stderr for fact in facts)
    assert refused.stdout == ""


def test_prompts_are_cut_to_the_encoder_context(
    make_model: MakeModel, tokenizers: dict[str, Tokenizer]
) -> None:
    """A separate encoder has its own tokenizer, and may have a shorter context."""
    reader = make_model("bert-tiny", max_positions=16).config
    marks = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=3)
    model = make_model("t5-small", "bpe", encoder=reader, num_decoder_layers=2, **marks)
    model.encoder_tokenizer = tokenizers["wordpiece"]
    asked = model.text_generator().encode_prompt("The sea " * 30)
    [note] = asked.notes
    assert all(number in note for number in ("62", "16", "14"))
    assert len(asked.ids) == 16
