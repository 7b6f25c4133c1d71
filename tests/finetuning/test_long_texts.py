"""Texts longer than a network reads: cut, or read through windows, with exact characters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors

from firth.evaluation import evaluate
from firth.finetuning import Tuned
from firth.models.config import ModelConfig
from firth.models.presets import preset
from firth.prediction import predict
from firth.tasks.frame import Frame
from firth.tasks.lm import Continue
from firth.tasks.reading.examples import Answer, Passage, Question, Tagged, Turn
from firth.tasks.span import Ask, best_span, windowed
from firth.tasks.tag import Tag
from firth.tasks.task import Facts
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer

from .toys import WORDS, coloured, table

SPAN = Facts(task="span", length=40, options={"unanswered": False, "threshold": 0.0})


def config_for(tokenizer: Tokenizer, architecture: str = "encoder") -> ModelConfig:
    ids = tokenizer.special_ids
    row = preset(f"{architecture}-tiny").config
    roles = {"begin_id": ids.get("cls"), "end_id": ids.get("sep"), "padding_id": ids.get("pad")}
    return replace(row, vocabulary=len(tokenizer), context=128, **roles)


def question(context: str, answer: str, start: int | None = None) -> Question:
    found = Answer(text=answer, start=context.index(answer) if start is None else start)
    return Question(id="1", question="who ?", context=context, answers=(found,))


def said(example: Question, frame: Frame, facts: Facts = SPAN) -> dict[str, object]:
    """The answer of a network that is sure of exactly what it was taught."""
    task = Ask()
    (item,) = task.encode([example], frame, facts)
    scores = np.zeros((item.size, 2))
    at = 0
    for row, (first, last) in zip(item.rows, item.target, strict=True):
        if first:
            scores[at + first, 0] = scores[at + last, 1] = 5.0
        at += len(row.tokens)
    return task.answers([example], [item], [scores], facts, frame)[0]


# ---- questions ----------------------------------------------------------------------------------


def test_an_answer_in_the_last_window(tokenizer: Tokenizer) -> None:
    frame = Frame(tokenizer, config_for(tokenizer), 40)
    words = [WORDS[i % len(WORDS)] for i in range(150)]
    context = " ".join([*words, "anna", "slept"])
    example = question(context, "anna slept")
    (item,) = Ask().encode([example], frame, SPAN)
    assert len(item.rows) > 3
    assert all(len(row.tokens) <= 40 for row in item.rows)
    assert [bool(first) for first, _ in item.target] == [*[False] * (len(item.rows) - 1), True]
    answer = said(example, frame)
    assert answer["answer"] == "anna slept"
    assert (answer["begin"], answer["end"]) == (len(context) - len("anna slept"), len(context))


def test_windows_lose_nothing(tokenizer: Tokenizer) -> None:
    """Every token of the text stands in a window, with its own characters."""
    frame = Frame(tokenizer, config_for(tokenizer), 24)
    context = " ".join(WORDS * 9)
    (item,) = Ask().encode([question(context, "dog")], frame, SPAN)
    (text,) = frame.texts([context], places=True)
    seen = [span for window in item.detail for span in window.spans]
    assert list(dict.fromkeys(seen)) == list(text.spans)
    for row, window in zip(item.rows, item.detail, strict=True):
        inside = row.tokens[window.begin : window.begin + len(window.spans)]
        begin = text.spans.index(window.spans[0])
        assert inside.tolist() == text.tokens[begin : begin + len(inside)].tolist()


@pytest.mark.parametrize(("tokens", "room"), [(1, 1), (7, 3), (200, 30), (31, 30), (1000, 255)])
def test_windows_overlap_by_half_at_most(tokens: int, room: int) -> None:
    parts = windowed(tokens, room)
    assert parts[0][0] == 0
    assert parts[-1][1] == tokens
    assert all(end - begin <= room for begin, end in parts)
    overlaps = [before[1] - after[0] for before, after in pairwise(parts)]
    assert all(overlap == min(128, room // 2) for overlap in overlaps)


# An accent that is a character of its own, one that is not, emoji of one and of several
# characters, letters without case, a text that ends with an accent.
STRANGE = (
    "Zoe\u0308 ate cafe\u0301s, \u00e9clairs and \U0001f389\U0001f1eb\U0001f1f7 at \u6771\u4eac "
    "with Andre\u0301"
)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "bpe with space", "unigram", "char"])
def strange_tokenizer(request: pytest.FixtureRequest, stories: Path) -> Tokenizer:
    """One of each kind; GPT-2's counts the space before a word among its characters."""
    kind, _, space = request.param.partition(" ")
    size = 60 if kind == "char" else 400
    options = {"kind": kind, "vocab_size": size, "lowercase": kind == "wordpiece"}
    made = train_tokenizer([stories / "dev.txt"], workers=1, **options)[0]
    if space:
        made.backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


@pytest.mark.parametrize("word", STRANGE.replace(",", "").split())
def test_exact_characters(word: str, strange_tokenizer: Tokenizer) -> None:
    frame = Frame(strange_tokenizer, config_for(strange_tokenizer), 128)
    start = STRANGE.index(word)
    answer = said(question(STRANGE, word), frame)
    assert (answer["begin"], answer["end"]) == (start, start + len(word))
    assert answer["answer"] == word


def test_the_best_span_of_all() -> None:
    """Against trying every pair."""
    draw = np.random.default_rng(0)
    for size in (1, 5, 29, 30, 31, 90):
        begins, ends = draw.normal(size=size), draw.normal(size=size)
        pairs = [(i, j) for i in range(size) for j in range(i, min(size, i + 30))]
        best = max(pairs, key=lambda pair: begins[pair[0]] + ends[pair[1]])
        score, first, last = best_span(begins, ends)
        assert (first, last) == best
        assert score == pytest.approx(begins[first] + ends[last])


def test_no_answer_wins_by_more_than_the_threshold(tokenizer: Tokenizer) -> None:
    frame = Frame(tokenizer, config_for(tokenizer), 40)
    example = question("anna slept", "anna")
    (item,) = Ask().encode([example], frame, SPAN)
    scores = np.zeros((item.size, 2))
    (first, last), none = item.target[0], 1.5  # the answer scores 2, that there is none 3
    scores[first, 0], scores[last, 1], scores[0] = 1.0, 1.0, none
    for threshold, answered in ((0.9, False), (1.1, True)):
        options = {"unanswered": True, "threshold": threshold}
        facts = Facts(task="span", length=40, options=options)
        (answer,) = Ask().answers([example], [item], [scores], facts, frame)
        assert (answer["answer"] == "anna") is answered
        assert answer["otherwise"] == "anna"
        assert answer["none"] - answer["score"] == pytest.approx(1.0)


def test_a_text_with_nothing_in_it(tokenizer: Tokenizer) -> None:
    frame = Frame(tokenizer, config_for(tokenizer), 40)
    example = Question(id="1", question="who ?", context=" ")
    (item,) = Ask().encode([example], frame, SPAN)
    (answer,) = Ask().answers([example], [item], [np.zeros((item.size, 2))], SPAN, frame)
    assert answer["answer"] == ""
    assert np.isfinite(float(answer["score"]))


# ---- tags ---------------------------------------------------------------------------------------


def test_every_word_is_tagged_once_in_any_window(tokenizer: Tokenizer) -> None:
    facts = Facts(task="tag", labels=("O", "B-X"), options={"entities": True})
    words = ("dog", "river" * 9, "unbelievably", "anna", "internationalisation" * 2, "book") * 3
    example = Tagged(words=words, tags=("O",) * len(words))
    for length in (5, 6, 8, 13, 40, 200):
        frame = Frame(tokenizer, config_for(tokenizer), length)
        (item,) = Tag().encode([example], frame, facts)
        assert all(len(row.tokens) <= length for row in item.rows)
        numbers = np.concatenate([aligned.words for aligned in item.detail.rows])
        assert numbers.tolist() == list(range(len(words)))
        firsts = [
            row.tokens[place]
            for row, aligned in zip(item.rows, item.detail.rows, strict=True)
            for place in aligned.places
        ]
        assert firsts == [tokenizer.encode(word)[0] for word in words]


# ---- dialogues ----------------------------------------------------------------------------------


def learned(turns: list[tuple[str, str]], tokenizer: Tokenizer, length: int = 64) -> list[str]:
    """The tokens of a dialogue that a decoder learns."""
    spoken = tuple(Turn(role=role, content=content) for role, content in turns)
    text = "\n".join(f"{role}: {content}" for role, content in turns)
    config = config_for(tokenizer, "decoder")
    frame, task, facts = Frame(tokenizer, config, length), Continue(), Facts(task="lm")
    items = task.encode([Passage(text=text, turns=spoken)], frame, facts)
    wanted = task.batch(items, facts, config).predictions["causal"].targets
    return [str(tokenizer.backend.id_to_token(int(id))) for id in wanted]


def test_only_the_assistant_is_learned(tokenizer: Tokenizer) -> None:
    said = learned([("user", "dog"), ("assistant", "book"), ("user", "river")], tokenizer)
    assert said == ["book"]
    said = learned([("user", "dog"), ("assistant", "book")], tokenizer)
    assert said == ["book", "[SEP]"]


def test_what_is_said_may_stand_in_who_says_it(tokenizer: Tokenizer) -> None:
    said = learned([("user", "s"), ("assistant", "a")], tokenizer)
    assert said == ["a", "[SEP]"]


def test_a_text_that_goes_on_has_not_ended(tokenizer: Tokenizer) -> None:
    """The end token is learned at the end of a passage, not at that of a window."""
    words = " ".join(WORDS * 4)
    config = config_for(tokenizer, "decoder")
    frame, facts = Frame(tokenizer, config, 10), Facts(task="lm")
    items = Continue().encode([Passage(text=words)], frame, facts)
    assert len(items[0].rows) == 4
    wanted = Continue().batch(items, facts, config).predictions["causal"].targets
    assert (wanted == tokenizer.special_ids["sep"]).sum() == 1
    assert len(wanted) == len(WORDS) * 4 + 1


# ---- cutting ------------------------------------------------------------------------------------


def test_what_is_cut_is_counted(tune: Callable[..., Tuned], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    long = table(tmp_path / "long.tsv", "text label", [(" ".join(WORDS * 9), "x"), ("red", "y")])
    with train.open("a", encoding="utf-8") as file:
        file.write(" ".join(WORDS * 9) + "\tx\n")
    changes = {"length": 16}
    tuned = tune("encoder", "classify", "", train=train, dev=dev, limit=0, changes=changes)
    assert (
        "1 of 65 examples are too long and were cut (49 tokens in all); a larger length keeps more."
        in tuned.notes
    )
    cut = "1 of 2 examples were longer than the model reads, and were cut."
    assert evaluate(tuned.path, data=long).notes == [cut]
    assert predict(tuned.path, data=long).notes == [cut]


@pytest.mark.parametrize("task", ["classify", "tag", "span", "lm"])
def test_read_in_parts_is_read_whole(
    task: str, tune: Callable[..., Tuned], stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few tokens are read at once, the answers are the same."""
    folders = {"classify": "sentiment", "tag": "entities", "span": "questions", "lm": ""}
    ends = {"classify": "tsv", "tag": "conll", "span": "json", "lm": "txt"}
    tuned = tune("decoder", task, folders[task], changes={"steps": 1})
    data = stories / folders[task] / f"dev.{ends[task]}"
    whole = evaluate(tuned.path, data=data).figures
    for module in ("firth.training.losses", "firth.tasks.lm"):
        monkeypatch.setattr(f"{module}.AT_ONCE", 60)
    parts = evaluate(tuned.path, data=data).figures
    assert whole.keys() == parts.keys()
    for name, figure in whole.items():
        assert parts[name].value == pytest.approx(figure.value, rel=1e-5)
