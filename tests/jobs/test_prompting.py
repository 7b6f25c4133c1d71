"""Prompting over files and at the command line: figures by hand, bad input, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend

from firth import FirthError, InputError, MismatchError, Model, Tokenizer, UsageError, prompt
from firth.models.masks import Mask
from firth.tasks.task import TaskMetadata
from tests.inference.conftest import MakeModel, bert, make_model, tokenizers, verb

__all__ = ["bert", "make_model", "tokenizers", "verb"]

GPT = dict(name="gpt2", tokenizer="bpe", max_positions=256, bos_token_id=1, eos_token_id=2)
ROWS = [("The sea was calm.", "good"), ("It rained all day.", "bad"), ("A boat!", "good")]


def table(path: Path, rows: list[tuple[str, ...]], *columns: str) -> Path:
    lines = ["\t".join(row) for row in [columns, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def gpt(make_model: MakeModel) -> Model:
    return make_model(**GPT)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    rows = [(f"Sentence number {i} was far.", "good" if i % 3 else "bad") for i in range(12)]
    return table(tmp_path / "train.tsv", rows, "text", "label")


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    return table(tmp_path / "dev.tsv", ROWS * 4, "text", "label")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [("boat", "bateau"), ("sea", "mer"), ("far", "loin"), ("day", "jour")]
    return table(tmp_path / "pairs.tsv", rows, "source", "target")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- what comes out


def test_figures_are_those_of_the_answers(
    gpt: Model, train: Path, dev: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    options: dict[str, Any] = dict(task="classify", examples=train, data=dev, shots=2, draws=3)
    made = prompt(gpt, **options, out=out)
    answers = lines(out)
    assert len(answers) == 3 * 12
    of_draws = []
    for number, draw in enumerate(made.demonstration_sets):
        own = [answer for answer in answers if answer["draw"] == number]
        assert [answer["line"] for answer in own] == list(range(2, 14))
        of_draws.append(np.mean([answer["label"] == answer["gold"] for answer in own]))
        assert draw.metrics["accuracy"].value == pytest.approx(of_draws[-1])
        assert sorted(r["label"] for r in _rows(train, draw.shown)) == ["bad", "good"]
    assert len({tuple(draw.shown) for draw in made.demonstration_sets}) == 3
    assert made.metrics["accuracy"].value == pytest.approx(np.mean(of_draws))
    values = made.values()
    assert values["metrics"]["accuracy"]["deviation"] == pytest.approx(np.std(of_draws, ddof=1))
    assert {"value", "low", "high", "deviation"} == set(values["metrics"]["accuracy"])
    assert (values["task"], values["n"], values["guess"]) == ("classify", 12, pytest.approx(2 / 3))
    assert values["prompt"].count("Sentence number") == 2
    assert json.loads(json.dumps(values)) == values
    assert prompt(gpt, **options).values() == values
    assert (
        prompt(gpt, **options, seed=1).demonstration_sets[0].shown
        != made.demonstration_sets[0].shown
    )


def _rows(path: Path, numbers: list[int]) -> list[dict[str, str]]:
    text = path.read_text().splitlines()
    return [dict(zip(("text", "label"), text[i - 1].split("\t"), strict=True)) for i in numbers]


def test_zero_one_and_the_nearest_examples(gpt: Model, train: Path, dev: Path) -> None:
    none = prompt(gpt, task="classify", data=dev, template="{text} => {label}")
    assert (none.prompt, none.shots) == ("The sea was calm. =>", 0)
    one = prompt(
        gpt, task="classify", data=dev, examples=train, shots=1, template="{text}: {label}"
    )
    assert len(one.prompt.splitlines()) == 2
    query = "Sentence number 7 was near."
    near = prompt(
        gpt, query, task="classify", examples=train, shots=3, pick="nearest", instruction="Say!"
    )
    assert near.prompt.startswith("Say!\n\n")
    shown = [line for line in near.prompt.splitlines() if "Sentence" in line]
    assert "number 7 was far." in shown[-2]  # nearest to the question


def test_nearest_by_the_vectors_of_another_model(
    gpt: Model, train: Path, make_model: MakeModel
) -> None:
    other = make_model("bert-tiny")
    query = "Sentence number 7 was near."
    made = prompt(gpt, query, task="classify", examples=train, shots=1, near=other)
    texts = [row.split("\t")[0] for row in train.read_text().splitlines()[1:]]
    vectors = other.embed([query, *texts], normalize=True)
    assert texts[int((vectors[1:] @ vectors[0]).argmax())] in made.prompt


def test_words_for_labels_are_what_is_scored(gpt: Model, dev: Path) -> None:
    words = {"bad": "rain", "good": "sea"}
    template = r"{text}\n{labels}? {label}"
    made = prompt(gpt, "The boat.", task="classify", labels=words, template=template)
    plain = prompt(gpt, "The boat.", task="classify", labels=["rain", "sea"], template=template)
    assert made.prompt == "The boat.\nrain or sea?"
    own, other = made.answers[0], plain.answers[0]
    assert own["scores"]["bad"] == pytest.approx(other["scores"]["rain"], rel=1e-5)
    assert own["word"] == other["label"]
    listed = prompt(gpt, "The boat.", task="classify", labels="rain, sea", template=template)
    assert listed.answers == plain.answers


def test_labels_of_several_tokens_are_scored_by_their_mean_and_it_says_so(
    gpt: Model, dev: Path
) -> None:
    labels = ["sea", "a very long answer indeed"]
    options: dict[str, Any] = dict(task="classify", labels=labels, calibrate=False)
    by_mean = prompt(gpt, "The boat.", **options)
    assert "mean" in by_mean.notes[0]
    assert prompt(gpt, "x", **options, mean=False).notes == []
    sums = prompt(gpt, "The boat.", **options, mean=False).answers[0]
    assert sums["label"] == "sea"  # of random weights, every token costs as much
    assert by_mean.answers[0]["scores"]["sea"] < sums["scores"]["sea"]


def test_choices_by_sum_and_by_character(gpt: Model, tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    rows = [
        {"text": "The boat was", "choices": ["far", "calm and far away from the sea"], "label": 0},
        {"text": "It rained", "choices": ["all day long, they said", "far"], "label": 0},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    made = prompt(gpt, task="choice", data=file, out=tmp_path / "out.jsonl")
    assert gpt.tokenizer is not None
    hits: dict[str, list[bool]] = {"accuracy": [], "accuracy_norm": []}
    for row in rows:
        context = gpt.tokenizer.encode(str(row["text"]))
        sums = []
        for choice in row["choices"]:
            ids = gpt.tokenizer.encode(f" {choice}")
            tokens = torch.tensor([1, *context, *ids])
            with torch.no_grad():
                hidden = gpt.network(tokens, Mask.causal([len(tokens)]))
                logs = gpt.network.logits(hidden).log_softmax(-1)
            places = range(len(context), len(tokens) - 1)
            sums.append(sum(float(logs[p, tokens[p + 1]]) for p in places))
        sizes = [len(choice) for choice in row["choices"]]
        hits["accuracy"].append(int(np.argmax(sums)) == row["label"])
        hits["accuracy_norm"].append(int(np.argmax(np.divide(sums, sizes))) == row["label"])
    assert {name: metric.value for name, metric in made.metrics.items()} == {
        name: np.mean(found) for name, found in hits.items()
    }
    assert made.guess == 0.5
    one = prompt(gpt, ["The boat was", "far", "near"], task="choice").answers[0]
    assert one["text"] in ("far", "near")
    assert sum(one["scores"]) == pytest.approx(1)


def test_pairs_of_texts(gpt: Model, make_model: MakeModel) -> None:
    for model in (gpt, make_model("bert-tiny")):
        made = prompt(model, ["It rained.", "It was wet."], task="pair", labels=["yes", "no"])
        assert "It rained." in made.prompt
        assert "It was wet." in made.prompt
        assert sum(made.answers[0]["scores"].values()) == pytest.approx(1)


def test_a_hybrid_decoder_fills_the_blank_of_a_template_and_else_goes_on(
    make_model: MakeModel,
) -> None:
    model = make_model("gpt2", bos_token_id=2, eos_token_id=3)
    model.objective = "hybrid"
    options: dict[str, Any] = dict(task="classify", labels=["sea", "far"], calibrate=False)
    blank = prompt(model, "A boat.", **options, template="[MASK]: {text}")
    assert blank.prompt == "[MASK]: A boat."
    with pytest.raises(UsageError, match="causal"):
        prompt(model, "A boat.", **options, template="{label}: {text}")
    filled, gone_on = (
        prompt(model, "A boat.", **options, template=template).answers[0]["scores"]["sea"]
        for template in ("{text} [MASK].", "{text} {label}.")
    )
    assert filled != pytest.approx(gone_on, rel=1e-3)


def test_written_answers_are_compared(gpt: Model, pairs: Path, tmp_path: Path) -> None:
    asked = ["boat", "sea"]
    said = prompt(gpt, asked, examples=[("day", "jour")], max_new_tokens=4)
    assert said.prompt == "day => jour\nboat =>"
    texts = [answer["text"] for answer in said.answers]
    file = table(
        tmp_path / "q.tsv", [("boat", f" {texts[0].upper()}. "), ("sea", "?!")], "source", "target"
    )
    options: dict[str, Any] = dict(examples=[("day", "jour")], max_new_tokens=4)
    made = prompt(gpt, data=file, out=tmp_path / "out.jsonl", **options)
    assert made.metrics["exact"].value == 0.5
    assert [row["text"] for row in lines(tmp_path / "out.jsonl")] == texts
    assert [row["exact"] for row in lines(tmp_path / "out.jsonl")] == [True, False]


def test_a_file_without_answers_is_answered_into_another(gpt: Model, tmp_path: Path) -> None:
    file = table(tmp_path / "q.tsv", [("The sea.",), ("A boat.",)], "text")
    out = tmp_path / "out.jsonl"
    made = prompt(gpt, task="classify", labels=["bad", "good"], data=file, out=out)
    assert (made.metrics, made.guess, len(lines(out))) == ({}, None, 2)
    with pytest.raises(InputError, match=r"q\.tsv line 1 has no column 'label'"):
        prompt(gpt, task="classify", labels=["bad", "good"], data=file)


def test_prompts_too_long_say_so_once(make_model: MakeModel, train: Path, dev: Path) -> None:
    small = make_model(**{**GPT, "max_positions": 48})
    made = prompt(small, task="classify", data=dev, examples=train, template="{text} => {label}")
    told = [note for note in made.notes if "prompts" in note or "truncated" in note]
    assert len(told) == 1
    assert told[0].startswith("12 of 12 prompts")
    assert "48 tokens" in told[0]


def test_examples_that_are_questions_too_are_told(gpt: Model, dev: Path) -> None:
    made = prompt(gpt, task="classify", data=dev, examples=dev)
    assert "12 of the 12 queries" in made.notes[0]


def test_numbers_as_labels_are_told(gpt: Model, tmp_path: Path) -> None:
    file = table(tmp_path / "n.tsv", [("Good.", "1"), ("Bad.", "0")], "text", "label")
    assert "--labels 0=WORD,1=WORD" in prompt(gpt, task="classify", data=file).notes[0]


def test_a_limit_keeps_the_shares_of_labels(gpt: Model, dev: Path) -> None:
    made = prompt(gpt, task="classify", data=dev, limit=6)
    assert (made.n, made.guess) == (6, pytest.approx(2 / 3))


def test_labels_are_calibrated_unless_something_else_is_said(
    gpt: Model, train: Path, dev: Path
) -> None:
    def shares(query: str, **options: Any) -> Any:
        options = dict(task="classify", labels=["bad", "good"], mean=False) | options
        return np.array(list(prompt(gpt, query, **options).answers[0]["scores"].values()))

    assert shares("A boat!").tolist() == shares("A boat!", calibrate=True).tolist()
    assert shares("A boat!") != pytest.approx(shares("A boat!", calibrate=False), rel=1e-3)
    near: dict[str, Any] = dict(examples=train, shots=2, pick="nearest")
    assert shares("A boat!", **near).tolist() == shares("A boat!", **near, calibrate=False).tolist()


# --- what cannot be


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (dict(task="tag"), "classify, pair, choice, seq2seq, not 'tag'"),
        (dict(queries=()), "Give either texts or a file"),
        (dict(task="pair", queries=["one"]), "give two texts"),
        (dict(task="choice", queries=["text", "one"]), "a text and at least two choices"),
        (dict(shots=3), "`shots` 3 needs examples"),
        (dict(shots=-1), "`shots` .*-1"),
        (dict(examples=[("a", "b")], shots=2), "`shots` is 2, but `examples` has only 1"),
        (dict(task="classify"), "at least two labels"),
        (dict(task="classify", labels={"a": "x", "b": "x"}), "Two labels have the word 'x'"),
        (dict(labels=["a", "b"]), "`labels` .*seq2seq"),
        (dict(calibrate=True), "`calibrate` .*seq2seq"),
        (dict(mean=True), "seq2seq has none"),
        (dict(draws=2), "`draws` .*`data`"),
        (dict(draws=0), "`draws` .* 0"),
        (dict(pick="best"), "not 'best'"),
        (dict(pick="balanced"), "`pick` balanced .*seq2seq"),
        (dict(pick="random", near="x"), "`near`"),
        (dict(max_new_tokens=0), "`max_new_tokens`"),
        (dict(template="{source}"), "no field for the answer"),
        (dict(template="{target}: {source}"), "causal"),
        (dict(examples=[("a", "")]), "`examples` row 1: 'target' is empty"),
        (dict(task="pair", queries=["a", "b"], examples=[("a", "b")]), "row 1 has 2 values"),
    ],
)
def test_calls_that_cannot_be_right(gpt: Model, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((UsageError, InputError), match=complaint) as caught:
        prompt(gpt, **{"queries": ["boat"], **options})
    assert str(caught.value).count(".") <= 2


def test_files_that_cannot_be_right(gpt: Model, train: Path, dev: Path, tmp_path: Path) -> None:
    def complaint(**options: Any) -> str:
        with pytest.raises(FirthError) as caught:
            prompt(gpt, **{"task": "classify", "data": dev, **options})
        return str(caught.value)

    empty = table(tmp_path / "empty.tsv", [], "text", "label")
    assert f"{empty} has no examples" in complaint(data=empty)
    assert f"{empty} has no examples" in complaint(examples=empty)
    named = complaint(labels={"good": "fine"}, data=dev)
    assert all(fact in named for fact in (f"{dev} line 3", "'bad'", "`labels`"))
    assert f"{train} has only 12 examples" in complaint(examples=train, shots=13)
    assert "nosuch.tsv" in complaint(data=tmp_path / "nosuch.tsv")
    latin = tmp_path / "latin.tsv"
    latin.write_bytes("text\tlabel\nfine\tgood\ncafé\tbad\n".encode("latin-1"))
    assert "latin.tsv line 3: byte" in complaint(data=latin, strict=True)
    several = tmp_path / "several.jsonl"
    several.write_text('{"text": "x", "label": ["a", "b"]}\n')
    assert "several.jsonl line 1 has several labels" in complaint(data=several)
    assert "All draws are the same without examples" in complaint(draws=2)
    again = dict(examples=train, pick="nearest", draws=2)
    assert "All draws are the same with the nearest" in complaint(**again)


def test_tables_in_memory_equal_files(gpt: Model, train: Path, dev: Path, tmp_path: Path) -> None:
    """A DataFrame is drawn from, like a file; a list is shown in its order. Labels are numbers."""
    pandas = pytest.importorskip("pandas")
    tables = [pandas.read_csv(path, sep="\t") for path in (train, dev)]
    for one in tables:
        one["label"] = (one["label"] == "good").astype(int)
    options: dict[str, Any] = dict(task="classify", shots=2, draws=2)
    rows = [one[["text", "label"]].values.tolist() for one in tables]
    labels = {"0": "bad", "1": "good"}
    made = prompt(gpt, data=tables[1], examples=tables[0], labels=labels, **options)
    expected = prompt(gpt, data=dev, examples=train, **options)
    assert made.metrics == expected.metrics
    assert len(made.answers) == len(rows[1])
    records = [one.to_dict("records") for one in tables]
    out = tmp_path / "answers.jsonl"
    found = prompt(gpt, data=records[1], examples=records[0], labels=labels, out=out, **options)
    assert found.metrics == expected.metrics
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["draw"] for line in written] == sorted([0, 1] * len(rows[1]))
    assert [line["line"] for line in written[:2]] == [1, 2]
    for shots in (None, 3):  # tuples: in the given order
        pairs: dict[str, Any] = {"examples": rows[0][:4], "labels": labels, "shots": shots}
        listed = prompt(gpt, "fine", task="classify", **pairs)
        assert listed.demonstration_sets[0].shown == [1, 2, 3, 4][:shots]
    with pytest.raises(InputError, match="`data` row 1: the label '1' has no word"):
        prompt(gpt, task="classify", data=[("fine", 1)], labels=["good", "bad"])


def test_models_that_cannot_be_prompted(make_model: MakeModel, gpt: Model) -> None:
    plain = make_model("bert-tiny")
    with pytest.raises(MismatchError, match=r"cannot generate.*`task` classify"):
        prompt(plain, "boat")
    del plain.network.heads["language"]
    with pytest.raises(MismatchError, match="no language head"):
        prompt(plain, "boat", task="classify", labels=["a", "b"])
    plain.task = TaskMetadata(task="tag")
    with pytest.raises(MismatchError, match="fine-tuned on tag; use `firth predict`"):
        prompt(plain, "boat", task="classify", labels=["a", "b"])
    words = make_model("bert-tiny")
    with pytest.raises(
        MismatchError, match=r"'日本' is not in the vocabulary.*`labels={'x': 'WORD'}`"
    ):
        prompt(words, "boat", task="classify", labels={"x": "日本", "y": "boat"})
    assert gpt.tokenizer is not None
    gpt.tokenizer = Tokenizer(Backend.from_str(gpt.tokenizer.to_json()), gpt.tokenizer.config)
    gpt.tokenizer.lowercase()
    with pytest.raises(MismatchError, match="'Boat' and 'boat' are the same tokens"):
        prompt(gpt, "sea", task="classify", labels={"x": "Boat", "y": "boat"})


# --- the command line


def test_the_verb_answers_scores_and_shows(
    verb: Callable[..., Any], gpt: Model, train: Path, dev: Path, tmp_path: Path
) -> None:
    gpt.save(tmp_path / "gpt")
    options = ("--task", "classify", "--examples", train, "--data", dev, "--shots", 2)
    done = verb("prompt", "gpt", *options, "--draws", 2, "--show")
    assert done.exit_code == 0, done.output
    facts = ("mean", "±", "12 questions with 2 demonstrations", "Sentence number", "66.7%")
    assert all(fact in done.output for fact in facts)
    values = json.loads(verb("prompt", "gpt", *options, "--json").stdout)
    assert set(values["metrics"]["accuracy"]) == {"value", "low", "high"}
    said = verb("prompt", "gpt", "sea", "--example", "boat => bateau", "--show")
    assert "boat => bateau\nsea => …" in said.output
    assert "sea → " in said.output
    scored = verb("prompt", "gpt", "A boat.", "--task", "classify", "--labels", "0=bad,1=good")
    assert scored.output.count("%") == 2
    wrong = verb("prompt", "gpt", "sea", "--example", "boat")
    assert (wrong.exit_code, "TEXT=>ANSWER" in wrong.output) == (2, True)


def test_a_bad_row_is_told_and_the_others_are_answered(
    verb: Callable[..., Any], gpt: Model, tmp_path: Path
) -> None:
    gpt.save(tmp_path / "gpt")
    file = tmp_path / "q.tsv"
    file.write_bytes(b"source\ttarget\nboat\tbateau\ncaf\xe9\tx\n\tnothing\nsea\tmer\n")
    done = verb("prompt", "gpt", "--data", file, "--out", "a.jsonl", "--max-new-tokens", 2)
    assert done.exit_code == 0
    assert "q.tsv line 3: byte 29 of the file is not UTF-8" in done.output
    assert "q.tsv line 4: 'source' is empty" in done.output
    assert "2 questions" in done.output
    assert [row["line"] for row in lines(tmp_path / "a.jsonl")] == [2, 5]
