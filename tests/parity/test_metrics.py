"""Every metric equals the field's library, and so does every resample behind its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from firth.metrics.bootstrap import Bootstrap, Metric, resample
from firth.metrics.classification import (
    accuracy,
    classification_metrics,
    multilabel_metrics,
    regression_metrics,
)
from firth.metrics.entities import (
    entity_metrics,
    entity_metrics_by_type,
    read_entities,
    token_accuracy,
)
from firth.metrics.language_modelling import perplexity
from firth.metrics.question_answering import normalise_answer, squad_metrics
from firth.metrics.rouge import rouge_metrics
from firth.metrics.translation import tokenize_13a, translation_metrics

seqeval = pytest.importorskip("seqeval.metrics")
sacrebleu = pytest.importorskip("sacrebleu.metrics")
rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
torchmetrics = pytest.importorskip("torchmetrics.functional.text")
sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

FEW = Bootstrap(resamples=5)
few_examples = settings(max_examples=5, deadline=None)
one_label = pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")


def expect(
    figures: dict[str, Metric],
    reference: Callable[..., dict[str, float]],
    *columns: Sequence[Any],
    within: float = 1e-9,
    proportions: Sequence[str] = (),
    scale: float = 1.0,
) -> None:
    """Compare figures with the library's, on the examples and on each resample, written out.

    The interval of few successes or failures in `proportions` is compared with SciPy's.
    """
    theirs = reference(*columns)
    rows = np.concatenate(list(resample(len(columns[0]), FEW))).astype(int)
    drawn = [np.repeat(np.arange(len(row)), row) for row in rows]
    samples = [reference(*([column[i] for i in places] for column in columns)) for places in drawn]
    assert set(figures) == set(theirs)
    for name, value in theirs.items():
        low, high = np.percentile([sample[name] for sample in samples], [2.5, 97.5])
        low, high = min(low, value), max(high, value)
        figure, count = figures[name], len(columns[0])
        if name in proportions and _is_rare(reference, columns, name, value, scale):
            exact = stats.binomtest(round(value / scale * count), count)
            low, high = (scale * end for end in exact.proportion_ci(method="wilson"))
        assert figure.value == pytest.approx(value, abs=within), name
        if figure.low is None or figure.high is None:
            assert low == pytest.approx(high, abs=max(within, 1e-6)), name
        else:
            assert (figure.low, figure.high) == pytest.approx(
                (low, high), abs=max(within, scale * 1e-6)
            ), name


def _is_rare(
    reference: Callable[..., dict[str, float]],
    columns: Sequence[Sequence[Any]],
    name: str,
    value: float,
    scale: float,
) -> bool:
    """Whether all examples score 0 or `scale`, and fewer than 10 of them score one of these."""
    scores = [reference(*([one] for one in row))[name] for row in zip(*columns, strict=True)]
    binary = np.isclose([min(score, scale - score) for score in scores], 0).all()
    return bool(binary) and min(value, scale - value) / scale * len(scores) < 10 - 1e-9


def paired(examples: st.SearchStrategy[Any], most: int = 12) -> st.SearchStrategy[Any]:
    """Two columns of the same length."""
    return st.lists(st.tuples(examples, examples), min_size=1, max_size=most).map(
        lambda rows: tuple(map(list, zip(*rows, strict=True)))
    )


# --- labels -------------------------------------------------------------------------------------


ACCURACIES = ["accuracy", "micro_f1"]


def their_classification(gold: list[Any], said: list[Any]) -> dict[str, float]:
    scores = {"zero_division": 0.0}
    return {
        "accuracy": sklearn.accuracy_score(gold, said),
        "macro_f1": sklearn.f1_score(gold, said, average="macro", **scores),
        "micro_f1": sklearn.f1_score(gold, said, average="micro", **scores),
        "matthews": sklearn.matthews_corrcoef(gold, said),
    }


@one_label
@few_examples
@given(paired(st.integers(0, 1)))
@example(([0, 0], [0, 0]))  # no positive one
def test_two_labels(columns: tuple[list[int], list[int]]) -> None:
    def theirs(gold: list[int], said: list[int]) -> dict[str, float]:
        f1 = sklearn.f1_score(gold, said, labels=[1], average="macro", zero_division=0.0)
        return {**their_classification(gold, said), "f1": f1}

    expect(
        classification_metrics(*columns, [0, 1], bootstrap=FEW),
        theirs,
        *columns,
        proportions=ACCURACIES,
    )
    share = {"accuracy": sklearn.accuracy_score(*columns)}
    assert {name: figure.value for name, figure in accuracy(*columns, FEW).items()} == share


@one_label
@few_examples
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcxy")), min_size=1, max_size=9)
)
@example([("a", "a")])  # one label only
@example([("a", "a"), ("b", "a"), ("c", "a")])  # constant
@example([("a", "b"), ("a", "b")])
def test_labels_and_predictions_that_are_none(rows: list[tuple[str, str]]) -> None:
    def theirs(gold: list[str], said: list[str]) -> dict[str, float]:
        seen = sorted({*gold, *said} & set("abc"))
        found = their_classification(gold, said)
        for kind in ("macro", "micro"):
            found[f"{kind}_f1"] = sklearn.f1_score(
                gold, said, labels=seen, average=kind, zero_division=0.0
            )
        return found

    columns = tuple(map(list, zip(*rows, strict=True)))
    found = classification_metrics(*columns, "abc", bootstrap=FEW)
    only_labels = set(columns[1]) <= set("abc")  # then micro_f1 is the accuracy
    expect(found, theirs, *columns, proportions=ACCURACIES if only_labels else ["accuracy"])


@few_examples
@given(paired(st.frozensets(st.integers(0, 3))))
@example(([frozenset()], [frozenset()]))
def test_sets_of_labels(columns: tuple[list[frozenset[int]], list[frozenset[int]]]) -> None:
    def theirs(gold: list[frozenset[int]], said: list[frozenset[int]]) -> dict[str, float]:
        tables = [
            np.array([[label in labels for label in range(4)] for labels in side], dtype=int)
            for side in (gold, said)
        ]
        return {
            "exact": sklearn.accuracy_score(*tables),
            "macro_f1": sklearn.f1_score(*tables, average="macro", zero_division=0.0),
            "micro_f1": sklearn.f1_score(*tables, average="micro", zero_division=0.0),
        }

    found = multilabel_metrics(*columns, range(4), FEW)
    expect(found, theirs, *columns, proportions=["exact"])


# --- numbers ------------------------------------------------------------------------------------


def their_regression(gold: list[float], said: list[float]) -> dict[str, float]:
    constant = len({*gold}) == 1 or len({*said}) == 1
    return {
        "pearson": 0.0 if constant else stats.pearsonr(gold, said).statistic,
        "spearman": 0.0 if constant else stats.spearmanr(gold, said).statistic,
        "rmse": sklearn.root_mean_squared_error(gold, said),
    }


@few_examples
@given(paired(st.integers(-3, 3)))
@example(([1, 2, 3], [5, 5, 5]))
def test_numbers_with_ties(columns: tuple[list[int], list[int]]) -> None:
    expect(regression_metrics(*columns, FEW), their_regression, *columns)


@few_examples
@given(st.integers(0, 2**32), st.integers(2, 60), st.floats(-3, 3), st.floats(-1e6, 1e6))
def test_numbers(seed: int, examples: int, slope: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    gold = rng.standard_cauchy(examples)  # with outliers
    said = (slope * gold + rng.normal(size=examples) + offset).tolist()
    expect(regression_metrics(gold, said, FEW), their_regression, gold.tolist(), said, within=1e-6)


# --- entities -----------------------------------------------------------------------------------

TAGS = ["O", "B", "I", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC", "x-y"))]


@st.composite
def tagged(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences whose tags are right, wrong, illegal or absent."""
    sizes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=6))
    tags = st.sampled_from(draw(st.sampled_from([TAGS, TAGS[:6], ["O"], ["O", "I-PER", "I-LOC"]])))
    gold = [draw(st.lists(tags, min_size=n, max_size=n)) for n in sizes]
    said = [
        list(true) if draw(st.booleans()) else draw(st.lists(tags, min_size=n, max_size=n))
        for true, n in zip(gold, sizes, strict=True)
    ]
    return gold, said


def their_entities(gold: list[list[str]], said: list[list[str]]) -> dict[str, float]:
    scores = {"zero_division": 0}
    return {
        "precision": seqeval.precision_score(gold, said, **scores),
        "recall": seqeval.recall_score(gold, said, **scores),
        "f1": seqeval.f1_score(gold, said, **scores),
    }


@few_examples
@given(tagged())
@example(([["I-PER", "I-LOC", "E-LOC", "E-LOC"]], [["S-PER", "B-LOC", "I-LOC", "I-LOC"]]))
def test_entities(columns: tuple[list[list[str]], list[list[str]]]) -> None:
    gold, said = columns
    for tags in gold + said:
        found = [(kind, begin, end - 1) for kind, begin, end in read_entities(tags)]
        assert found == seqeval.sequence_labeling.get_entities(tags)
    expect(entity_metrics(gold, said, FEW), their_entities, gold, said)
    letters = str.maketrans("ES", "LU")  # BIOES and BILOU
    bilou = [
        [[tag[0].translate(letters) + tag[1:] for tag in tags] for tags in side]
        for side in (gold, said)
    ]
    assert entity_metrics(*bilou, FEW) == entity_metrics(gold, said, FEW)
    if any(gold):
        found = token_accuracy(gold, said, FEW)["accuracy"].value
        assert found == pytest.approx(seqeval.accuracy_score(gold, said))
    table = entity_metrics_by_type(gold, said, FEW)
    if not table:  # the report of nothing is an error there
        return
    theirs = seqeval.classification_report(gold, said, output_dict=True, zero_division=0)
    assert set(table) == {kind for kind in theirs if not kind.endswith(" avg")}
    for kind, row in table.items():
        for name, column in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score")):
            assert row[name].value == pytest.approx(theirs[kind][column])


# --- text ---------------------------------------------------------------------------------------

PIECES = [" ", " ", " ", "\n", "-\n", "\r", "\t", "\u00a0", "\u2028", "\x00"]
PIECES += ". , .. ' - ? \" & &amp; &quot; &lt; &amp;quot; <skipped> 3 42 1.5 a the An".split()
PIECES += "cat cats mat x É é İ ß ς नम 中文 🙂 _ \\ ^ #".split()
words = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "\n", ","])
texts = st.lists(st.sampled_from(PIECES), max_size=15).map("".join) | st.lists(
    words, max_size=15
).map(" ".join)
several = st.lists(texts, min_size=1, max_size=3)
several_each = st.lists(st.tuples(several, texts), min_size=1, max_size=6)


BLEU, CHRF = sacrebleu.BLEU(force=True), sacrebleu.CHRF()


def their_translation(references: list[list[str]], said: list[str]) -> dict[str, float]:
    most = max(map(len, references))
    streams = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    return {
        "bleu": BLEU.corpus_score(said, streams).score,
        "chrf": CHRF.corpus_score(said, streams).score,
    }


@few_examples
@given(several_each)
@example([(["...", "!"], "?!."), (["a"], "")])  # punctuation alone, nothing at all
@example([([""], "a b c d e"), (["a b c d e f"], "a b c d e")])
def test_translations(rows: list[tuple[list[str], str]]) -> None:
    columns = tuple(map(list, zip(*rows, strict=True)))
    expect(translation_metrics(*columns, FEW), their_translation, *columns)


@settings(max_examples=60, deadline=None)
@given(texts | st.text())
def test_words(text: str) -> None:
    assert tokenize_13a(text) == BLEU._preprocess_segment(text).split()


def test_a_longer_translation() -> None:
    """Random sentences in which most of the reference is kept: all orders match."""
    rng = np.random.default_rng(0)
    vocabulary = np.array([*"the a cat dog sat ran , . 3.5 it's on mat (old) Röad".split()])
    gold = [" ".join(rng.choice(vocabulary, rng.integers(1, 30))) for _ in range(100)]
    said = [
        " ".join(word for word in text.split() if rng.random() < 0.9 or rng.random() < 0.5)
        for text in gold
    ]
    columns = [[text] for text in gold], said
    expect(translation_metrics(gold, said, FEW), their_translation, *columns)
    expect(rouge_metrics(gold, said, FEW), their_summaries, *columns, proportions=KINDS)


KINDS = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
SCORER = rouge_scorer.RougeScorer(KINDS)


def their_summaries(references: list[list[str]], said: list[str]) -> dict[str, float]:
    scores = [SCORER.score_multi(*row) for row in zip(references, said, strict=True)]
    return {kind: float(np.mean([score[kind].fmeasure for score in scores])) for kind in KINDS}


@few_examples
@given(several_each)
@example([(["the cat\nsat on\n\nthe mat"], "on the mat\nthe cat sat sat")])
def test_summaries(rows: list[tuple[list[str], str]]) -> None:
    columns = tuple(map(list, zip(*rows, strict=True)))
    expect(rouge_metrics(*columns, FEW), their_summaries, *columns)


lines = st.lists(st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join), max_size=5)


@settings(max_examples=60, deadline=None)
@given(lines.map("\n".join), lines.map("\n".join))
def test_summaries_of_several_lines(reference: str, said: str) -> None:
    """Which of several longest common subsequences is taken decides what the union is."""
    found = rouge_metrics([reference], [said], Bootstrap(resamples=1))
    theirs = their_summaries([[reference]], [said])
    assert {name: figure.value for name, figure in found.items()} == pytest.approx(theirs)


# --- answers ------------------------------------------------------------------------------------


def their_answers(gold: list[list[str]], said: list[str]) -> dict[str, float]:
    """As version 2.0 has it, a question without an answer has the answer ""."""
    found = torchmetrics.squad(
        [{"prediction_text": text, "id": str(i)} for i, text in enumerate(said)],
        [
            {"answers": {"text": list(texts) or [""], "answer_start": [0]}, "id": str(i)}
            for i, texts in enumerate(gold)
        ],
    )
    return {"exact": float(found["exact_match"]), "f1": float(found["f1"])}


@few_examples
@given(st.lists(st.tuples(st.lists(texts, max_size=3), texts), min_size=1, max_size=6))
@example([(["the cat", "a mat"], "Cat."), ([], ""), (["mat"], "")])
def test_answers(rows: list[tuple[list[str], str]]) -> None:
    gold, said = map(list, zip(*rows, strict=True))
    # Of such answers the two official scripts think differently, and the library has no filter.
    assume(all(normalise_answer(text) for answer in gold for text in answer))
    how: Any = {"within": 1e-3, "proportions": ["exact", "f1"], "scale": 100}  # single precision
    found = squad_metrics(gold, said, bootstrap=FEW)
    overall = {name: found[name] for name in ("exact", "f1")}
    expect(overall, their_answers, gold, said, **how)
    for part, chosen in (
        ("has_answer", [i for i, answer in enumerate(gold) if answer]),
        ("no_answer", [i for i, answer in enumerate(gold) if not answer]),
    ):
        if f"{part}_f1" in found:
            columns = [gold[i] for i in chosen], [said[i] for i in chosen]
            figures = {name: found[f"{part}_{name}"] for name in overall}
            expect(figures, their_answers, *columns, **how)
    assert ("no_answer_f1" in found) == (not all(gold))


def test_perplexity_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 9, 20, generator=generator)
    targets = torch.randint(0, 20, (4, 9), generator=generator)
    logs = scores.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    losses = (-logs.sum(1)).double().numpy()
    found = perplexity(losses, [9] * 4)["perplexity"]
    assert found.value == pytest.approx(float(torchmetrics.perplexity(scores, targets)), rel=1e-5)
    rows = np.concatenate(list(resample(4, Bootstrap())))
    ends = np.percentile(rows @ losses / 36, [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx(tuple(map(math.exp, ends)))
