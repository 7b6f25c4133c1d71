"""Tags and entities: tag schemes, and metrics counted by hand."""

from __future__ import annotations

import pytest

from firth.metrics.entities import (
    Entity,
    entity_metrics,
    entity_metrics_by_type,
    read_entities,
    split_tag,
    token_accuracy,
)
from firth.utils.errors import FirthError, InputError, MismatchError

# One sentence in every scheme: two adjacent persons, a place, an adjacent organisation.
ENTITIES = [Entity("PER", 0, 2), Entity("PER", 2, 3), Entity("LOC", 4, 7), Entity("ORG", 7, 8)]
WRITTEN = {
    "IOB1": "I-PER I-PER B-PER O I-LOC I-LOC I-LOC I-ORG O",
    "IOB2": "B-PER I-PER B-PER O B-LOC I-LOC I-LOC B-ORG O",
    "BIOES": "B-PER E-PER S-PER O B-LOC I-LOC E-LOC S-ORG O",
    "BILOU": "B-PER L-PER U-PER O B-LOC I-LOC L-LOC U-ORG O",
}


@pytest.mark.parametrize("scheme", WRITTEN)
def test_all_schemes_give_the_same_entities(scheme: str) -> None:
    assert read_entities(WRITTEN[scheme].split()) == ENTITIES


def test_illegal_sequences_are_read_as_conlleval_reads_them() -> None:
    assert read_entities(["I-PER", "E-PER", "E-PER"]) == [Entity("PER", 0, 2), Entity("PER", 2, 3)]
    assert read_entities(["B-PER", "I-LOC"]) == [Entity("PER", 0, 1), Entity("LOC", 1, 2)]
    assert read_entities(["S-PER", "I-PER"]) == [Entity("PER", 0, 1), Entity("PER", 1, 2)]
    assert read_entities(["I", "B", "O"]) == [Entity("_", 0, 1), Entity("_", 1, 2)]


@pytest.mark.parametrize(
    "tag", ["", "X-PER", "B_PER", "b-per", "B-", "O-PER", "PER", "BPER", "-PER"]
)
def test_malformed_tags_are_errors(tag: str) -> None:
    with pytest.raises(InputError) as caught:
        read_entities(["O", tag])
    assert repr(tag) in str(caught.value)


def test_entity_types_may_contain_hyphens() -> None:
    assert split_tag("I-work-of-art") == ("I", "work-of-art")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
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
def test_mismatched_inputs_are_errors(call, error: type[FirthError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_entity_metrics_by_hand() -> None:
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
    found = entity_metrics([["O", "O"], []], [["O", "O"], []])
    assert list(found) == ["precision", "recall", "f1"]
    assert all((metric.value, metric.low) == (0.0, None) for metric in found.values())
    assert entity_metrics_by_type([["O"]], [["O"]]) == {}


def test_token_accuracy_by_hand() -> None:
    found = token_accuracy([["D", "N", "V"], ["N"], []], [["D", "V", "V"], ["N"], []])["accuracy"]
    assert found.value == 3 / 4
    assert (found.low, found.high) == pytest.approx((2 / 3, 1))


def test_all_tags_right_have_the_wilson_interval_of_the_sentences() -> None:
    gold = [["D", "N", "V"]] * 20
    assert token_accuracy(gold, gold)["accuracy"].interval == "0.8389 to 1.0000"
    wrong = token_accuracy(gold, [["X"] * 3] * 20)["accuracy"]
    assert wrong.interval == "0.0000 to 0.1611"
