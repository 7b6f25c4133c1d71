"""Chapter: search by meaning with the vectors of the encoder."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from firth.demo.chapter_labels import interval, table_rows
from firth.demo.workspace import ENCODER, Findings, Workspace, command
from firth.inference.embedding.semantic_search import SearchHit
from firth.metrics.bootstrap import Metric, means, to_json
from firth.utils.figures import Bar, BarChart, DataTable, Figure, KeyNumber, KeyNumbers, Paragraph

# None of these occurs in the stories.
QUERIES = (
    "They mixed flour, eggs and butter, and soon the cake was in the oven.",
    "The guitarist tuned the strings, and then the whole band began to play.",
    "Dark clouds came up, and all night long the storm shook the trees.",
)
NUM_HITS = 3


def meaning_search(workspace: Workspace) -> Findings:
    """Embed passages of stories, and find those nearest to other passages."""
    count, measured = workspace.budget.searched, workspace.budget.search_queries
    folder = workspace.folder / "topic"
    passages, tests = table_rows(folder / "train.tsv")[:count], table_rows(folder / "test.tsv")
    file = workspace.out / "passages.txt"
    file.write_text("".join(f"{text}\n" for text, _ in passages), encoding="utf-8")
    model = workspace.model(ENCODER)
    index = model.index(file)
    hits = {query: model.search(index, query, top=NUM_HITS) for query in QUERIES}
    topics = [topic for _, topic in passages]
    right = [
        sum(topics[hit.row - 1] == topic for hit in model.search(index, text, top=NUM_HITS))
        / NUM_HITS
        for text, topic in tests[:measured]
    ]
    precision = means({"precision": right})["precision"]
    chance = _chance(topics, [topic for _, topic in tests[:measured]])
    facts = KeyNumbers(
        (
            KeyNumber(f"{len(passages):,}", "passages of stories, each stored as one vector"),
            KeyNumber(f"{index.vectors.shape[1]}", "numbers in a vector"),
            KeyNumber("1.00", "the highest similarity: two vectors with the same direction"),
        )
    )
    figures: list[Figure] = [
        facts,
        *(_table(query, found) for query, found in hits.items()),
        *_measured(precision, chance, len(right)),
    ]
    values = {
        "passages": len(passages),
        "hits": {query: [asdict(hit) for hit in found] for query, found in hits.items()},
        "same_topic": to_json(precision),
        "chance": chance,
    }
    return Findings(figures, values, [command("search", ENCODER, file, QUERIES[0], top=NUM_HITS)])


def _chance(topics: list[str], wanted: list[str]) -> float:
    """Return the fraction of random passages that have the topic of a query."""
    counts = Counter(topics)
    return sum(counts[topic] for topic in wanted) / (len(topics) * len(wanted))


def _table(query: str, hits: list[SearchHit]) -> DataTable:
    rows = tuple((f"{hit.score:.2f}", hit.text) for hit in hits)
    return DataTable(f"“{query}”", ("similarity", "passage"), rows, texts=True)


def _measured(precision: Metric, chance: float, queries: int) -> list[Figure]:
    """Compare the topics of the nearest passages with those of random ones."""
    chart = BarChart(
        f"Do the {NUM_HITS} nearest passages have the topic of the query?",
        (
            Bar("nearest passages", precision.value, precision.low, precision.high),
            Bar("random passages", chance),
        ),
        caption=f"For {queries} passages of unseen stories; a story is about cooking, music, sport "
        "and so on. Topics were not used in training.",
    )
    if (precision.low if precision.low is not None else precision.value) > chance:
        return [chart]
    warning = (
        "This run contradicts the lesson: the nearest passages have the same topic no more often "
        f"than random ones (95 % interval {interval(precision)})."
    )
    return [chart, Paragraph(warning, warning=True)]
