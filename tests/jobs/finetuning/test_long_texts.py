"""Texts longer than the context: truncated, or split into windows, with exact offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors

from firth.data.windows import window_spans
from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult
from firth.jobs.prediction import predict
from firth.models.presets import preset
from firth.models.transformer_config import TransformerConfig
from firth.tasks.inputs import InputTemplate
from firth.tasks.lm import LanguageModelTask
from firth.tasks.readers.examples import (
    AnswerSpan,
    PassageExample,
    QuestionExample,
    TaggedExample,
    Turn,
)
from firth.tasks.span import SpanTask, best_span
from firth.tasks.tag import TagTask
from firth.tasks.task import TaskMetadata
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from tests.jobs.finetuning.toys import WORDS, coloured, table

SPAN = TaskMetadata(task="span", max_length=40, options={"unanswered": False, "threshold": 0.0})


def config_for(tokenizer: Tokenizer, architecture: str = "encoder") -> TransformerConfig:
    ids = tokenizer.special_ids
    row = preset(f"{architecture}-tiny").config
    names = dict(bos_token_id="cls", eos_token_id="sep", pad_token_id="pad")
    roles = {name: ids.get(role) for name, role in names.items()}
    return replace(row, vocab_size=len(tokenizer), max_positions=128, **roles)


def question(context: str, answer: str, start: int | None = None) -> QuestionExample:
    found = AnswerSpan(text=answer, start=context.index(answer) if start is None else start)
    return QuestionExample(id="1", question="who ?", context=context, answers=(found,))


def said(
    example: QuestionExample, template: InputTemplate, metadata: TaskMetadata = SPAN
) -> dict[str, object]:
    """Return the answer if the scores are highest at the target."""
    task = SpanTask()
    (item,) = task.encode([example], template, metadata)
    scores = np.zeros((item.size, 2))
    at = 0
    for row, (first, last) in zip(item.rows, item.target, strict=True):
        if first:
            scores[at + first, 0] = scores[at + last, 1] = 5.0
        at += len(row.tokens)
    return task.answers([example], [item], [scores], metadata)[0]


# ---- questions


def test_an_answer_in_the_last_window(tokenizer: Tokenizer) -> None:
    template = InputTemplate(tokenizer, config_for(tokenizer), 40)
    words = [WORDS[i % len(WORDS)] for i in range(150)]
    context = " ".join([*words, "anna", "slept"])
    example = question(context, "anna slept")
    (item,) = SpanTask().encode([example], template, SPAN)
    assert len(item.rows) > 3
    assert all(len(row.tokens) <= 40 for row in item.rows)
    assert [bool(first) for first, _ in item.target] == [*[False] * (len(item.rows) - 1), True]
    answer = said(example, template)
    assert answer["answer"] == "anna slept"
    assert (answer["begin"], answer["end"]) == (len(context) - len("anna slept"), len(context))


def test_windows_have_every_token(tokenizer: Tokenizer) -> None:
    template = InputTemplate(tokenizer, config_for(tokenizer), 24)
    context = " ".join(WORDS * 9)
    (item,) = SpanTask().encode([question(context, "dog")], template, SPAN)
    (text,) = template.tokenize([context], offsets=True)
    seen = [span for window in item.detail for span in window.spans]
    assert list(dict.fromkeys(seen)) == list(text.spans)
    for row, window in zip(item.rows, item.detail, strict=True):
        inside = row.tokens[window.begin : window.begin + len(window.spans)]
        begin = text.spans.index(window.spans[0])
        assert inside.tolist() == text.tokens[begin : begin + len(inside)].tolist()


@pytest.mark.parametrize(("tokens", "room"), [(1, 1), (7, 3), (200, 30), (31, 30), (1000, 255)])
def test_windows_overlap_by_half_at_most(tokens: int, room: int) -> None:
    overlap = min(128, room // 2)
    parts = window_spans(tokens, room, room - overlap)
    assert parts[0][0] == 0
    assert parts[-1][1] == tokens
    assert all(end - begin <= room for begin, end in parts)
    assert all(before[1] - after[0] == overlap for before, after in pairwise(parts))


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
    size = 58 if kind == "char" else 400
    options = {"kind": kind, "vocab_size": size}
    options |= dict.fromkeys(("lowercase", "strip_accents"), kind == "wordpiece")  # as BERT
    made = train_tokenizer([stories / "dev.txt"], workers=1, **options)[0]
    if space:
        made.backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


@pytest.mark.parametrize("word", STRANGE.replace(",", "").split())
def test_offsets_of_unusual_characters(word: str, strange_tokenizer: Tokenizer) -> None:
    template = InputTemplate(strange_tokenizer, config_for(strange_tokenizer), 128)
    start = STRANGE.index(word)
    answer = said(question(STRANGE, word), template)
    assert (answer["begin"], answer["end"]) == (start, start + len(word))
    assert answer["answer"] == word


def test_the_best_span_equals_exhaustive_search() -> None:
    draw = np.random.default_rng(0)
    for size in (1, 5, 29, 30, 31, 90):
        begins, ends = draw.normal(size=size), draw.normal(size=size)
        pairs = [(i, j) for i in range(size) for j in range(i, min(size, i + 30))]
        best = max(pairs, key=lambda pair: begins[pair[0]] + ends[pair[1]])
        score, first, last = best_span(begins, ends)
        assert (first, last) == best
        assert score == pytest.approx(begins[first] + ends[last])


def test_no_answer_wins_by_more_than_the_threshold(tokenizer: Tokenizer) -> None:
    template = InputTemplate(tokenizer, config_for(tokenizer), 40)
    example = question("anna slept", "anna")
    (item,) = SpanTask().encode([example], template, SPAN)
    scores = np.zeros((item.size, 2))
    (first, last), none = item.target[0], 1.5  # the answer scores 2, that there is none 3
    scores[first, 0], scores[last, 1], scores[0] = 1.0, 1.0, none
    for threshold, answered in ((0.9, False), (1.1, True)):
        options = {"unanswered": True, "threshold": threshold}
        metadata = TaskMetadata(task="span", max_length=40, options=options)
        (answer,) = SpanTask().answers([example], [item], [scores], metadata)
        assert (answer["answer"] == "anna") is answered
        assert answer["otherwise"] == "anna"
        assert answer["none"] - answer["score"] == pytest.approx(1.0)


def test_an_empty_context(tokenizer: Tokenizer) -> None:
    template = InputTemplate(tokenizer, config_for(tokenizer), 40)
    example = QuestionExample(id="1", question="who ?", context=" ")
    (item,) = SpanTask().encode([example], template, SPAN)
    (answer,) = SpanTask().answers([example], [item], [np.zeros((item.size, 2))], SPAN)
    assert answer["answer"] == ""
    assert np.isfinite(float(answer["score"]))


# ---- tags


def test_every_word_is_tagged_once_in_any_window(tokenizer: Tokenizer) -> None:
    metadata = TaskMetadata(task="tag", labels=("O", "B-X"), options={"entities": True})
    words = ("dog", "river" * 9, "unbelievably", "anna", "internationalisation" * 2, "book") * 3
    example = TaggedExample(words=words, tags=("O",) * len(words))
    for length in (5, 6, 8, 13, 40, 200):
        template = InputTemplate(tokenizer, config_for(tokenizer), length)
        (item,) = TagTask().encode([example], template, metadata)
        assert all(len(row.tokens) <= length for row in item.rows)
        numbers = np.concatenate([aligned.words for aligned in item.detail.rows])
        assert numbers.tolist() == list(range(len(words)))
        firsts = [
            row.tokens[place]
            for row, aligned in zip(item.rows, item.detail.rows, strict=True)
            for place in aligned.places
        ]
        assert firsts == [tokenizer.encode(word)[0] for word in words]


# ---- dialogues


def targets_of(turns: list[tuple[str, str]], tokenizer: Tokenizer, length: int = 64) -> list[str]:
    """Return the targets of a dialogue for a decoder."""
    spoken = tuple(Turn(role=role, content=content) for role, content in turns)
    text = "\n".join(f"{role}: {content}" for role, content in turns)
    config = config_for(tokenizer, "decoder")
    template, task = InputTemplate(tokenizer, config, length), LanguageModelTask()
    metadata = TaskMetadata(task="lm")
    items = task.encode([PassageExample(text=text, turns=spoken)], template, metadata)
    wanted = task.batch(items, metadata, config).predictions["causal"].targets
    return [str(tokenizer.backend.id_to_token(int(id))) for id in wanted]


def test_only_turns_of_the_assistant_are_targets(tokenizer: Tokenizer) -> None:
    said = targets_of([("user", "dog"), ("assistant", "book"), ("user", "river")], tokenizer)
    assert said == ["book"]
    said = targets_of([("user", "dog"), ("assistant", "book")], tokenizer)
    assert said == ["book", "[SEP]"]


def test_a_turn_may_occur_in_the_name_of_its_role(tokenizer: Tokenizer) -> None:
    said = targets_of([("user", "s"), ("assistant", "a")], tokenizer)
    assert said == ["a", "[SEP]"]


def test_the_end_token_is_a_target_once(tokenizer: Tokenizer) -> None:
    """At the end of a passage, not at that of a window."""
    words = " ".join(WORDS * 4)
    config = config_for(tokenizer, "decoder")
    template, metadata = InputTemplate(tokenizer, config, 10), TaskMetadata(task="lm")
    items = LanguageModelTask().encode([PassageExample(text=words)], template, metadata)
    assert len(items[0].rows) == 4
    wanted = LanguageModelTask().batch(items, metadata, config).predictions["causal"].targets
    assert (wanted == tokenizer.special_ids["sep"]).sum() == 1
    assert len(wanted) == len(WORDS) * 4 + 1


# ---- truncation


def test_truncated_examples_are_counted(
    tune: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path)
    long = table(tmp_path / "long.tsv", "text label", [(" ".join(WORDS * 9), "x"), ("red", "y")])
    with train.open("a", encoding="utf-8") as file:
        file.write(" ".join(WORDS * 9) + "\tx\n")
    overrides = {"max_length": 16}
    tuned = tune("encoder", "classify", "", train=train, dev=dev, limit=0, overrides=overrides)
    assert any(note.startswith("1 of 65 examples") and "49 tokens" in note for note in tuned.notes)
    for result in (evaluate(tuned.path, data=long), predict(tuned.path, data=long)):
        (note,) = result.notes
        assert note.startswith("1 of 2 examples")


@pytest.mark.parametrize(
    "task", ["classify", "tag", pytest.param("span", marks=pytest.mark.nightly), "lm"]
)
def test_metrics_do_not_depend_on_the_batch_size(
    task: str, tune: Callable[..., FinetuneResult], stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"classify": "sentiment", "tag": "entities", "span": "questions", "lm": ""}
    ends = {"classify": "tsv", "tag": "conll", "span": "json", "lm": "txt"}
    tuned = tune("decoder", task, folders[task], overrides={"steps": 1})
    data = stories / folders[task] / f"dev.{ends[task]}"
    whole = evaluate(tuned.path, data=data).metrics
    for module in ("firth.training.losses", "firth.tasks.lm"):
        monkeypatch.setattr(f"{module}.INFERENCE_BATCH_TOKENS", 60)
    parts = evaluate(tuned.path, data=data).metrics
    assert whole.keys() == parts.keys()
    for name, metric in whole.items():
        assert parts[name].value == pytest.approx(metric.value, rel=1e-5)
