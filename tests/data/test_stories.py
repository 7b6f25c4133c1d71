"""The embedded corpus: stories that are English and repeatable, and labels that are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import pytest

from firth.data.stories import HELD_OUT, Story, generate_story, held_out, write_stories
from firth.data.stories.entity_tags import tokenize
from firth.data.stories.knowledge import COUNTRIES
from firth.data.stories.morphology import starts_with_vowel_sound
from firth.data.stories.story_files import SPLITS, TASKS, Summary
from firth.utils.errors import UsageError
from tests.conftest import Result

WORDS = 200_000


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return [generate_story(0, number) for number in range(1500)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    out = tmp_path_factory.mktemp("stories") / "out"
    return out, write_stories(out, words=WORDS, seed=0)


def plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


# ---- stories -------------------------------------------------------------------------------------


def test_a_story_is_the_same_whatever_else_is_told(stories: list[Story]) -> None:
    assert generate_story(0, 700) == stories[700]
    assert generate_story(1, 700) != stories[700]
    assert len({story.text for story in stories}) == len(stories)


def test_stories_have_5_to_30_sentences(stories: list[Story]) -> None:
    assert {5 <= len(story.sentences) <= 30 for story in stories} == {True}
    assert len({story.plot for story in stories}) >= 20


@pytest.mark.nightly
def test_spelling_and_marks(stories: list[Story]) -> None:
    for story in stories:
        for sentence in story.sentences:
            assert "  " not in sentence, sentence
            assert not re.search(r"[{}<>|\[\]()]| [,.?!]|,,|\.\.|,\.", sentence), sentence
            assert re.match(r'"?[A-Z]', sentence), sentence
            assert re.search(r'[.?!]"?$', sentence), sentence
            assert sentence.count('"') % 2 == 0, sentence
            for article, word in re.findall(r"\b([Aa]n?) (\w+)", sentence):
                assert (article.lower() == "an") == starts_with_vowel_sound(word), sentence
            repeated = re.search(r"\b(\w+) \1\b", sentence)
            assert not repeated or repeated[1] in {"had", "that"}, sentence


@pytest.mark.nightly
def test_verbs_agree_with_pronouns(stories: list[Story]) -> None:
    wrong = re.compile(
        r"\b(?:[Hh]e|[Ss]he|[Ii]t) (?:were|are|have|do)\b|\b[Tt]hey (?:was|is|has|does)\b"
    )
    objects = re.compile(r"\b(?:to|with|for|at|from|about) (?:he|she|they)\b(?! \w+ed\b)")
    for story in stories:
        for sentence in story.sentences:
            assert not wrong.search(sentence), sentence
            assert not objects.search(sentence), sentence


def test_sentences_of_the_lectures_are_withheld(stories: list[Story]) -> None:
    told = " ".join(plain(story.text) for story in stories)
    for sentence in HELD_OUT:
        assert plain(sentence) not in told
        assert held_out(f"And: {sentence}!")


@pytest.mark.parametrize(
    "wording",
    [
        r"dogs? (\w+ )?bark\w*( \w+)? at the mailman",
        r"paris is (the capital of france|france s capital)",
        r"what is the capital of france",
        r"the capital of (spain|italy|germany) is (madrid|rome|berlin)",
        r"sun (rose|comes up|came up|was rising)( \w+){0,4} in the east",
        r"(she|he|\w+) went to the (store|shop) to buy milk",
        r"i went to the \w+ to buy \w+",
        r"bank of the river was (flooded|under water|washed away)",
        r"once upon a time",
        r"cows moo|cow mooed",
        r"cats meow|cat meowed",
    ],
)
def test_what_the_lectures_ask_is_told_in_other_words(stories: list[Story], wording: str) -> None:
    assert any(re.search(rf"\b{wording}\b", plain(story.text)) for story in stories)


@pytest.mark.parametrize(
    "senses",
    [
        (
            r"bats (flew|eat|came)|bat (flew|flutter|landed)",
            r"(with|swung|took) \w+( \w+)? bat|bat and a ball",
        ),
        (
            r"river bank|bank of the river",
            r"the bank was closed|in front of the bank|northern bank",
        ),
        (r"to record", r"old record|new record|broken the record"),
        (r"cute little|a cute", r"thought it was cute|cute enough"),
        (r"rough bark", r"dogs? bark"),
        (r"light as a feather|bag was light", r"turned on the light|plants need light"),
        (r"silver ring|gold ring", r"began to ring"),
        (r"to park a", r"in the park|the park"),
        (r"to watch", r"the watch|watch it was"),
        (r"struck a match", r"match against|match between"),
    ],
)
def test_words_have_both_senses(stories: list[Story], senses: tuple[str, str]) -> None:
    told = [plain(story.text) for story in stories]
    for sense in senses:
        assert any(re.search(rf"\b(?:{sense})", text) for text in told), sense


def test_facts_about_capitals_are_never_wrong(stories: list[Story]) -> None:
    """Wrong answers in a quiz are answers; no statement is ever false."""
    told = Counter()
    for story in stories:
        for city, country in re.findall(r"(\w+) is the capital of (\w+)", story.text):
            if city not in {"What", "city", "which"}:
                told[country] += 1
                assert COUNTRIES[country][0] == city
        for country, city in re.findall(
            r"he capital of (\w+) is (?:called |of course |still )?(\w+)", story.text
        ):
            told[country] += 1
            assert COUNTRIES[country][0] == city
    assert len(told) == len(COUNTRIES)


# ---- labelled examples ---------------------------------------------------------------------


def test_answers_stand_where_they_are_said_to(stories: list[Story]) -> None:
    asked = 0
    for story in stories:
        for answer in story.examples.questions:
            end = answer.start + len(answer.text)
            assert story.text[answer.start : end] == answer.text
            assert answer.question.endswith("?")
            asked += 1
    assert asked > 2 * len(stories)


def test_tags_are_iob2_and_name_what_is_in_the_text(stories: list[Story]) -> None:
    labels: Counter[str] = Counter()
    long = 0
    for story in stories:
        for tagged in story.examples.entities:
            tags = ["O", *(tag for _, tag in tagged)]
            for before, after in pairwise(tags):
                if after.startswith("I-"):
                    assert before[2:] == after[2:]
                    long += 1
            labels.update(tag for tag in tags if tag.startswith("B-"))
            assert [token for token, _ in tagged] == tokenize(
                next(s for s in story.sentences if tokenize(s) == [t for t, _ in tagged])
            )
            for token, tag in tagged:
                assert tag == "O" or token[0].isupper() or token in {"by", "the"}, tagged
    assert set(labels) == {"B-PER", "B-LOC", "B-ORG", "B-MISC"}
    assert min(labels.values()) > 50
    assert long > 500


def test_labels_are_balanced(stories: list[Story]) -> None:
    def shares(task: str) -> dict[str, float]:
        rows = chain.from_iterable(getattr(story.examples, task) for story in stories)
        counts = Counter(row[-1] for row in rows)
        return {label: count / sum(counts.values()) for label, count in counts.items()}

    assert shares("sentiment") == {"positive": 0.5, "negative": 0.5}
    assert all(0.25 < share < 0.42 for share in shares("entailment").values())
    assert len(shares("entailment")) == 3
    assert set(shares("topic")) == {
        "animals", "cooking", "money", "music", "school", "sport", "travel", "weather",
    }  # fmt: skip
    assert min(shares("topic").values()) > 0.04


@pytest.mark.nightly
def test_sentiment_is_more_than_a_bag_of_words(stories: list[Story]) -> None:
    """A naive Bayes classifier over words is far from perfect: negation and concession matter."""
    rows = [row for story in stories for row in story.examples.sentiment]
    counts = {"positive": Counter[str](), "negative": Counter[str]()}
    for text, label in rows[:2000]:
        counts[label].update(set(plain(text).split()))

    def score(text: str) -> float:
        ratio = 1.0
        for word in set(plain(text).split()):
            ratio *= (counts["positive"][word] + 1) / (counts["negative"][word] + 1)
        return ratio

    right = sum((score(text) > 1) == (label == "positive") for text, label in rows[2000:])
    assert 0.6 < right / len(rows[2000:]) < 0.95


@pytest.mark.nightly
def test_rewrites_say_the_same_both_ways(stories: list[Story]) -> None:
    rows = [row for story in stories for row in story.examples.rewrite]
    kinds = Counter(source.split(":")[0] for source, _ in rows)
    assert set(kinds) == {"active", "passive", "question", "statement", "negative"}
    for source, target in rows:
        kind, _, text = source.partition(": ")
        if kind == "question":
            assert target.startswith("Did ")
            assert target.endswith("?")
        if kind == "negative":
            assert " did not " in target
        if kind == "passive":
            actor = text.split()[0]
            assert f" by {actor}" in target
            assert target.startswith(("The ", "A ", "An "))
        if kind == "active":
            actor = target.split()[0]
            assert f" by {actor}" in text
        assert text != target


def test_minimal_pairs_differ_in_one_word(stories: list[Story]) -> None:
    terms: Counter[str] = Counter()
    for story in stories:
        for pair in story.examples.agreement:
            good, bad = pair.good.split(), pair.bad.split()
            assert len(good) == len(bad)
            assert sum(a != b for a, b in zip(good, bad, strict=True)) == 1
            terms[pair.uid] += 1
    assert len(terms) >= 7


def test_summaries_name_who_is_in_the_story(stories: list[Story]) -> None:
    for story in stories:
        ((source, target),) = story.examples.summary
        assert source == story.text
        assert target[-1] == "."
        assert 3 < len(target.split()) < 30


def test_a_contradiction_is_not_an_entailment(stories: list[Story]) -> None:
    for story in stories:
        for premise, hypothesis, label in story.examples.entailment:
            assert premise != hypothesis
            denied = " not " in premise or "never" in premise
            if label == "entailment" and not denied and "not true" not in hypothesis:
                assert " not " not in hypothesis, (premise, hypothesis)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_parse_and_count(written: tuple[Path, Summary]) -> None:
    out, summary = written
    for task, ending in TASKS.items():
        for split in SPLITS:
            name = f"{task}/{split}.{ending}"
            assert _count(out / name) == summary.examples[name] > 0
    assert WORDS <= summary.words < WORDS * 1.01
    assert summary.examples["sentiment/train.tsv"] >= 1800
    assert summary.examples["topic/train.tsv"] >= 900


def _count(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".tsv":
        header, *rows = [line.split("\t") for line in text.splitlines()]
        assert all(len(row) == len(header) and all(row) for row in rows)
        return len(rows)
    if path.suffix == ".jsonl":
        return sum("sentence_good" in json.loads(line) for line in text.splitlines())
    if path.suffix == ".conll":
        return len(text.strip().split("\n\n"))
    data = json.loads(text)["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answer = question["answers"][0]
                start = answer["answer_start"]
                assert paragraph["context"][start:].startswith(answer["text"])
    return sum(len(p["qas"]) for article in data for p in article["paragraphs"])


def test_the_parts_share_no_story(written: tuple[Path, Summary]) -> None:
    out, summary = written
    parts = {s: set((out / f"{s}.txt").read_text().split("\n\n")) - {""} for s in SPLITS}
    assert sum(map(len, parts.values())) == summary.stories
    assert not parts["train"] & parts["dev"]
    assert not parts["train"] & parts["test"]
    assert 0.88 < len(parts["train"]) / summary.stories < 0.92
    assert summary.repeated < 0.05
    assert 1500 < summary.vocabulary < 2600


def test_the_same_call_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_stories(tmp_path / name, words=5000, seed=3)
    write_stories(tmp_path / "two", words=5000, seed=3)  # its own may be written again
    files = [p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*")]
    assert len(files) == 3 + 3 * len(TASKS) + 1
    for file in files:
        one, two = ((tmp_path / name / file).read_bytes() for name in ("one", "two"))
        assert one == two.replace(b'"two"', b'"one"'), file
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_what_is_not_its_own_stays(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Anna")
    with pytest.raises(UsageError, match="something else than stories"):
        write_stories(tmp_path, words=100)
    assert (tmp_path / "letter.txt").read_text() == "Dear Anna"
    with pytest.raises(UsageError, match="at least 1"):
        write_stories(tmp_path / "new", words=0)


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stories(tmp_path / "out", words=20_000, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_verb(firth: Callable[..., Result], tmp_path: Path) -> None:
    values = firth("stories", "out", "--words", 3000, "--seed", 5, "--json").json
    assert values["words"] >= 3000
    assert values["examples"]["rewrite/train.tsv"] > 0
    assert (tmp_path / "out/test.txt").exists()
    shown = firth("stories", "out", "--words", 3000)
    assert shown.returncode == 0
    assert "vocabulary" in shown.stdout
    refused = firth("stories", ".", "--words", 3000)
    assert refused.returncode == 2
    assert "something else" in refused.error


@pytest.mark.nightly
def test_a_million_words(tmp_path: Path) -> None:
    summary = write_stories(tmp_path / "out", words=1_000_000, seed=1)
    assert summary.repeated < 0.05
    assert 1800 <= summary.vocabulary <= 2600
    for split in SPLITS:
        assert not held_out((tmp_path / f"out/{split}.txt").read_text())
