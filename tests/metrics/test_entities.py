"""Tags and entities: the schemes, conversion and repair, counts by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.metrics.bootstrap import Metric
from firth.metrics.entities import (
    SCHEMES,
    Entity,
    convert_tags,
    entity_metrics,
    entity_metrics_by_type,
    read_entities,
    split_tag,
    token_accuracy,
    write_tags,
)
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError

# One sentence in every scheme: two persons side by side, a place, an organisation right behind it.
ENTITIES = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 4, 7), Entity("ORG", 7, 8)]
WRITTEN = {
    "IOB1": "I-PER I-PER B-PER O I-LOC I-LOC I-LOC I-ORG O",
    "IOB2": "B-PER I-PER B-PER O B-LOC I-LOC I-LOC B-ORG O",
    "BIOES": "B-PER E-PER S-PER O B-LOC I-LOC E-LOC S-ORG O",
    "BILOU": "B-PER L-PER U-PER O B-LOC I-LOC L-LOC U-ORG O",
}

any_tags = st.lists(
    st.sampled_from(
        ["O", "B", "I", *(f"{letter}-{type}" for letter in "BIESLU" for type in ("PER", "x-y"))]
    ),
    max_size=12,
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_says_the_same(scheme: str) -> None:
    tags = WRITTEN[scheme].split()
    assert read_entities(tags) == ENTITIES
    assert write_tags(ENTITIES, 9, scheme) == tags
    assert write_tags(reversed(ENTITIES), 9, scheme) == tags
    for other in SCHEMES:
        assert convert_tags(tags, other) == WRITTEN[other].split()


@given(any_tags, st.sampled_from(sorted(SCHEMES)))
def test_conversion_keeps_the_entities_and_repairs_the_tags(tags: list[str], scheme: str) -> None:
    converted = convert_tags(tags, scheme)
    assert read_entities(converted) == read_entities(tags)
    assert convert_tags(converted, scheme) == converted
    letters = {tag[0] for tag in converted}
    assert letters <= {*SCHEMES[scheme], "O", "B"}


def test_illegal_sequences_are_read_as_conlleval_reads_them() -> None:
    assert read_entities(["I-PER", "E-PER", "E-PER"]) == [Entity("PER", 0, 2), Entity("PER", 2, 3)]
    assert read_entities(["B-PER", "I-LOC"]) == [Entity("PER", 0, 1), Entity("LOC", 1, 2)]
    assert read_entities(["S-PER", "I-PER"]) == [Entity("PER", 0, 1), Entity("PER", 1, 2)]
    assert convert_tags(["O", "I-PER", "I-LOC"], "IOB2") == ["O", "B-PER", "B-LOC"]
    assert convert_tags(["I", "B", "O"], "BIOES") == ["S", "S", "O"]


@pytest.mark.parametrize(
    "tag", ["", "X-PER", "B_PER", "b-per", "B-", "O-PER", "PER", "BPER", "-PER"]
)
def test_malformed_tags_are_named(tag: str) -> None:
    with pytest.raises(InputError) as caught:
        read_entities(["O", tag])
    assert str(caught.value) == (
        f"The tag {tag!r} is neither O nor a letter B, I, E, S, L or U with a type, such as B-PER."
    )


def test_a_type_may_hold_hyphens() -> None:
    assert split_tag("I-work-of-art") == ("I", "work-of-art")


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (
            lambda: write_tags([], 3, "IOB3"),
            UsageError,
            "no tag scheme 'IOB3'; known are IOB1, IOB2",
        ),
        (lambda: write_tags([Entity("A", 0, 2), Entity("B", 1, 3)], 3), MismatchError, "overlaps"),
        (lambda: write_tags([Entity("A", 2, 4)], 3), MismatchError, "beyond the 3 tokens"),
        (lambda: write_tags([Entity("A", 1, 1)], 3), MismatchError, "begin=1, end=1"),
        (lambda: entity_metrics([["O"]], []), MismatchError, "1 gold values but 0 predictions"),
        (
            lambda: entity_metrics([[], ["O"]], [[], []]),
            MismatchError,
            "Sentence 2 has 1 gold tags but 0",
        ),
        (lambda: entity_metrics([], []), InputError, "no examples"),
        (lambda: token_accuracy([[]], [[]]), InputError, "no examples"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, error: type[FirthError], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        wrong()


def test_entities_by_hand() -> None:
    """Found: PER. Cut short: LOC. Of the wrong type: ORG. Invented: one more."""
    gold = ["B-PER I-PER O B-LOC I-LOC".split(), "B-ORG O".split()]
    said = ["B-PER I-PER O B-LOC O".split(), "B-PER B-ORG".split()]
    found = entity_metrics(gold, said)
    assert {name: metric.value for name, metric in found.items()} == pytest.approx(
        {"precision": 1 / 4, "recall": 1 / 3, "f1": 2 / 7}
    )
    table = entity_metrics_by_type(gold, said)
    assert list(table) == ["LOC", "ORG", "PER"]
    assert [row["f1"].value for row in table.values()] == pytest.approx([0, 0, 2 / 3])
    assert table["PER"]["precision"].value == 0.5
    assert table["PER"]["recall"].value == 1.0


def test_sentences_without_entities_score_0() -> None:
    nothing = Metric(value=0.0, low=0.0, high=0.0)
    found = entity_metrics([["O", "O"], []], [["O", "O"], []])
    assert found == {"precision": nothing, "recall": nothing, "f1": nothing}
    assert entity_metrics_by_type([["O"]], [["O"]]) == {}


def test_token_accuracy_by_hand() -> None:
    found = token_accuracy([["D", "N", "V"], ["N"], []], [["D", "V", "V"], ["N"], []])["accuracy"]
    assert found.value == 3 / 4
    assert (found.low, found.high) == pytest.approx((2 / 3, 1))
