"""The embedded corpus: reproducible English stories with correct labels."""

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
from firth.data.stories.story_files import INDEX, SPLITS, TASKS, Summary
from firth.utils.errors import UsageError
from tests.conftest import Result

WORDS = 80_000


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


def test_stories_depend_on_seed_and_number_only(stories: list[Story]) -> None:
    assert generate_story(0, 700) == stories[700]
    assert generate_story(1, 700) != stories[700]
    assert len({story.text for story in stories}) == len(stories)
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
        r"(?<!and )\b(?:[Hh]e|[Ss]he|[Ii]t) (?:were|are|have|do)\b"  # but: she and he were
        r"|\b[Tt]hey (?:was|is|has|does)\b"
    )
    objects = re.compile(r"\b(?:to|with|for|at|from|about) (?:he|she|they)\b(?! \w+ed\b)")
    for story in stories:
        for sentence in story.sentences:
            assert not wrong.search(sentence), sentence
            assert not objects.search(sentence), sentence


def test_sentences_of_the_lectures_are_held_out(stories: list[Story]) -> None:
    told = " ".join(plain(story.text) for story in stories)
    for sentence in HELD_OUT:
        assert plain(sentence) not in told
        assert held_out(f"And: {sentence}!")


WORDINGS = r"""
dogs? (\w+ )?bark\w*( \w+)? at the mailman
paris is (the capital of france|france s capital)
what is the capital of france
the capital of (england|russia|greece) is (london|moscow|athens)
sun (rose|comes up|came up|was rising)( \w+){0,4} in the east
(she|he|\w+) went to the (store|shop) to buy milk
i went to the \w+ to buy \w+
bank of the river was (flooded|under water|washed away)
once upon a time
(cows moo|cow mooed)
(cats meow|cat meowed)
"""
SENSES = r"""
bats (flew|eat|came)|bat (flew|flutter|landed)  (with|swung|took) \w+( \w+)? bat|bat and a ball
river bank|bank of the river                    the bank was closed|in front of the bank
to record                                       old record|new record|broken the record
cute little|a cute                              thought it was cute|cute enough
rough bark                                      dogs? bark
light as a feather|bag was light                turned on the light|plants need light
silver ring|gold ring                           began to ring
to park a                                       in the park|the park
to watch                                        the watch|watch it was
struck a match                                  match against|match between
"""


@pytest.mark.parametrize("patterns", [WORDINGS, SENSES], ids=["facts", "both senses of words"])
def test_facts_and_words_of_the_lectures_occur(stories: list[Story], patterns: str) -> None:
    text = "\n".join(plain(story.text) for story in stories)
    for pattern in re.split(r"\n|  +", patterns.strip()):
        assert re.search(rf"\b(?:{pattern})", text), pattern


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


def test_answer_offsets(stories: list[Story]) -> None:
    asked = 0
    for story in stories:
        for answer in story.examples.questions:
            end = answer.start + len(answer.text)
            assert story.text[answer.start : end] == answer.text
            assert answer.question.endswith("?")
            asked += 1
    assert asked > 2 * len(stories)


def test_entity_tags(stories: list[Story]) -> None:
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
            assert [token for token, _ in tagged] in map(tokenize, story.sentences)
            for token, tag in tagged:
                assert tag == "O" or token[0].isupper() or token in {"by", "the"}, tagged
    assert set(labels) == {"B-PER", "B-LOC", "B-ORG", "B-MISC"}
    assert min(labels.values()) > 50
    assert long > 500


def test_labels_are_balanced(stories: list[Story]) -> None:
    def fractions(task: str) -> dict[str, float]:
        rows = chain.from_iterable(getattr(story.examples, task) for story in stories)
        counts = Counter(row[-1] for row in rows)
        return {label: count / sum(counts.values()) for label, count in counts.items()}

    assert fractions("sentiment") == {"positive": 0.5, "negative": 0.5}
    assert all(0.25 < fraction < 0.42 for fraction in fractions("entailment").values())
    assert len(fractions("entailment")) == 3
    assert set(fractions("topic")) == {
        "animals", "cooking", "money", "music", "school", "sport", "travel", "weather",
    }  # fmt: skip
    assert min(fractions("topic").values()) > 0.04


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
def test_rewrites(stories: list[Story]) -> None:
    rows = [row for story in stories for row in story.examples.rewrite]
    kinds = Counter(source.split(":")[0] for source, _ in rows)
    assert set(kinds) == {"active", "passive", "question", "statement", "negative"}
    for source, target in rows:
        kind, _, text = source.partition(": ")
        pattern = {
            "question": r"Did .*\?",
            "negative": r".* did not .*",
            "passive": rf"(The|A|An) .* by {text.split()[0]}.*",
        }
        assert re.fullmatch(pattern.get(kind, r".*\."), target)
        assert kind != "active" or f" by {target.split()[0]}" in text
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


def test_summaries(stories: list[Story]) -> None:
    for story in stories:
        ((source, target),) = story.examples.summary
        assert source == story.text
        assert target[-1] == "."
        assert 3 < len(target.split()) < 30


def test_entailments_are_not_negated(stories: list[Story]) -> None:
    for story in stories:
        for premise, hypothesis, label in story.examples.entailment:
            assert premise != hypothesis
            denied = " not " in premise or "never" in premise
            if label == "entailment" and not denied and "not true" not in hypothesis:
                assert " not " not in hypothesis, (premise, hypothesis)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_have_the_reported_number_of_examples(written: tuple[Path, Summary]) -> None:
    out, summary = written
    assert len(summary.examples) == len(TASKS) * len(SPLITS)
    for name, count in summary.examples.items():
        assert _count(out / name) == count > 0
    assert WORDS <= summary.words < WORDS * 1.01
    assert summary.examples["sentiment/train.tsv"] >= 700
    assert summary.examples["topic/train.tsv"] >= 350


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
    paragraphs = [p for article in json.loads(text)["data"] for p in article["paragraphs"]]
    answers = [(p["context"], q["answers"][0]) for p in paragraphs for q in p["qas"]]
    assert all(text.startswith(a["text"], a["answer_start"]) for text, a in answers)
    return len(answers)


def test_splits_share_no_story(written: tuple[Path, Summary]) -> None:
    out, summary = written
    parts = {s: set((out / f"{s}.txt").read_text().split("\n\n")) - {""} for s in SPLITS}
    assert sum(map(len, parts.values())) == summary.stories
    assert not parts["train"] & parts["dev"]
    assert not parts["train"] & parts["test"]
    assert 0.88 < len(parts["train"]) / summary.stories < 0.92
    assert summary.repeated < 0.05
    assert 1300 < summary.vocabulary < 2600
    assert not any(map(held_out, map(" ".join, parts.values())))


def test_files_are_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_stories(tmp_path / name, words=5000, seed=3)
    write_stories(tmp_path / "two", words=5000, seed=3, overwrite=True)
    files = [p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*")]
    assert len(files) == 3 + 3 * len(TASKS) + 1
    for file in files:
        one, two = ((tmp_path / name / file).read_bytes() for name in ("one", "two"))
        named = two.replace(b'"two"', b'"one"') if file.name == INDEX else two
        assert one == named, file
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Anna")
    with pytest.raises(UsageError, match="something else than stories"):
        write_stories(tmp_path, words=100)
    assert (tmp_path / "letter.txt").read_text() == "Dear Anna"
    with pytest.raises(UsageError, match="at least 1"):
        write_stories(tmp_path / "new", words=0)


def test_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stories(tmp_path / "out", words=20_000, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_command_line(firth_here: Callable[..., Result], tmp_path: Path) -> None:
    values = firth_here("stories", "out", "--words", 3000, "--seed", 5, "--json").json
    assert values["words"] >= 3000
    assert values["examples"]["rewrite/train.tsv"] > 0
    assert (tmp_path / "out/test.txt").exists()
    shown = firth_here("stories", "out", "--words", 3000, "--overwrite")
    assert shown.returncode == 0
    assert "vocabulary" in shown.stdout
    refused = firth_here("stories", ".", "--words", 3000)
    assert refused.returncode == 2
    assert "something else" in refused.error
