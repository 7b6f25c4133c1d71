"""Study: does the text on both sides of a blank predict its word better than the text before it?

The same words are removed from the same texts. A model that reads both sides also predicts them
with the right side hidden, which separates what it sees from how it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from firth.jobs.fill_comparison import prompted_model
from firth.metrics.bootstrap import to_json
from firth.model import load
from firth.models.language_model import predicts_tokens
from firth.study.cells.blank_cells import (
    BOTH,
    LEFT,
    LEFT_WORDS,
    accuracy_from,
    predicted_words,
    removed_words,
)
from firth.study.cells.input_cells import File, model_path, stories
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Scores, difference, holm, metric_texts
from firth.study.engine.study import Finding, Study, StudyAnalysis, StudyRun, decided
from firth.utils.config_fields import Doc
from firth.utils.errors import InputError, UsageError
from firth.utils.figures import Bar, BarChart, DataTable, LineChart, Point

MODELS = ("stories-encoder", "stories-decoder")  # trained on the same text for as many tokens
ACCURACY, LOG_PROB = "accuracy", "log-probability"

Condition = tuple[str, str]  # the name of a model, and what it sees
Found = Mapping[Condition, Mapping[str, Scores]]


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """Settings of the study."""

    texts: Annotated[int, Doc("Held-out texts.", min=1)] = 400
    blanks: Annotated[
        int, Doc("Words removed from each text, one at a time; other words for each seed.", min=1)
    ] = 2
    max_words: Annotated[int, Doc("Maximum number of words of a text.", min=1)] = 40
    one_token: Annotated[bool, Doc("Remove only words that are one token for all models.")] = True


def run_context(run: StudyRun) -> StudyAnalysis:
    """Predict the same removed words from both sides, and from the left side only."""
    models = {Path(name).name: model_path(name) for name in run.inputs.models or MODELS}
    if len(models) < len(run.inputs.models):
        raise UsageError("Two models have the same name; give the folders different names.")
    conditions = [(name, sees) for name, path in models.items() for sees in _contexts(path)]
    if not any(sees == BOTH for _, sees in conditions):
        raise InputError(
            "None of the models reads both sides of a blank; add an encoder, such as "
            "--model stories-encoder."
        )
    removed = [_removed(run, models.values(), seed) for seed in run.seeds]
    run.run(removed)
    grid = {
        (name, sees): [
            Cell(
                predicted_words,
                {"model": models[name], "blanks": blanks, "sees": sees},
                name=f"{name}, {sees}, seed {seed}",
            )
            for seed, blanks in zip(run.seeds, removed, strict=True)
        ]
        for name, sees in conditions
    }
    results = run.run(cell for cells in grid.values() for cell in cells)
    found = _scores(results, grid)
    return StudyAnalysis(
        rows=_rows(results, grid, found),
        findings=_findings(found),
        figures=(_bars(found), _lines(results, grid, found), _table(found), _examples(grid, run)),
        notes=_notes(run, removed),
    )


def _contexts(path: Path) -> list[str]:
    """Return what a model can see of a text with a blank."""
    model = load(path)
    if not predicts_tokens(model.network):
        raise InputError(f"{path} has no language head and predicts no words; use another model.")
    prompted_model(model)  # raises an error for models that cannot fill a blank
    return [LEFT] if model.reads_left_context_only else [BOTH, LEFT]


def _removed(run: StudyRun, models: Any, seed: int) -> Cell:
    settings: ContextSettings = run.settings
    text: File = run.inputs.text or stories() / "dev.txt"
    values = {
        "text": text,
        "tokenizers": list(models),
        "texts": settings.texts,
        "blanks": settings.blanks,
        "max_words": settings.max_words,
        "one_token": settings.one_token,
    }
    return Cell(removed_words, values, seed=seed, name=f"removed words, seed {seed}")


def _scores(results: Results, grid: Mapping[Condition, Sequence[Cell]]) -> Found:
    names = (ACCURACY, LOG_PROB, *map(accuracy_from, LEFT_WORDS))
    return {
        key: {name: scores for name in names if (scores := results.scores(cells, name))}
        for key, cells in grid.items()
        if results.values_of(cells)
    }


def _rows(
    results: Results, grid: Mapping[Condition, Sequence[Cell]], found: Found
) -> list[dict[str, Any]]:
    rows = []
    for (model, sees), cells in grid.items():
        row: dict[str, Any] = {"model": model, "context": sees}
        for name, scores in found.get((model, sees), {}).items():
            row[name] = to_json(scores.metric())
        rows.append(row if len(row) > 2 else {**row, "error": results.first_error(cells)})
    return rows


@dataclass(frozen=True)
class ContextComparison:
    """Two conditions that are compared by one metric, and the name of the finding."""

    name: str
    first: Condition
    second: Condition
    metric: str = ACCURACY

    @property
    def claim(self) -> str:
        """What holds if the first condition scores higher."""
        model, other = self.first[0], self.second[0]
        if self.first[1] == LEFT:
            return f"from the left side alone, {model} predicts more words than {other}"
        predicts = (
            "predicts more of the removed words"
            if self.metric == ACCURACY
            else "gives the removed words a higher log-probability"
        )
        than = "with the right side hidden" if model == other else f"{other} from the left side"
        return f"from both sides, {model} {predicts} than {than}"


def _findings(found: Found) -> list[Finding]:
    """Compare the contexts; the p-values of all comparisons are corrected (Holm)."""
    pairs = _comparisons(found)
    if not pairs:
        return [Finding(name="context", text="No two contexts have a result.", holds=None)]
    compared = {
        pair: difference(found[pair.first][pair.metric], found[pair.second][pair.metric])
        for pair in pairs
    }
    units = {ACCURACY: ("points", 100.0), LOG_PROB: ("nats per word", 1.0)}
    findings = []
    for pair, one in holm(compared).items():
        unit, scale = units[pair.metric]
        findings.append(decided(pair.name, pair.claim, one, unit=unit, scale=scale))
    return findings


def _comparisons(found: Found) -> list[ContextComparison]:
    """Compare both sides with the left side: of the other models, and of the same model.

    The last comparison is of models on the left side alone: what the training for it gains.
    """
    both = next((key for key in found if key[1] == BOTH), None)
    if both is None:
        return []
    own, lefts = (both[0], LEFT), [key for key in found if key[1] == LEFT]
    others = [key for key in lefts if key != own]
    others.sort(key=lambda key: (key[0], BOTH) in found)  # models of the left side alone first
    names = {key: f"context:{key[0]}" if place else "context" for place, key in enumerate(others)}
    names |= {own: "context-hidden"} if own in lefts else {}
    pairs = [
        ContextComparison(f"{name}{suffix}", both, key, metric)
        for key, name in names.items()
        for metric, suffix in ((ACCURACY, ""), (LOG_PROB, "-log-prob"))
    ]
    if own in lefts and others:
        pairs.append(ContextComparison("context-left", others[0], own))
    return pairs


def _bars(found: Found) -> BarChart:
    bars = []
    for (model, sees), scores in found.items():
        metric = scores[ACCURACY].metric()
        bars.append(Bar(f"{model}, {sees}", metric.value, metric.low, metric.high))
    return BarChart(
        "Accuracy at the same blanks",
        tuple(bars),
        caption="Fraction of removed words that the model predicts as the most probable. The "
        "intervals resample seeds (other words) and texts.",
    )


def _lines(results: Results, grid: Mapping[Condition, Sequence[Cell]], found: Found) -> LineChart:
    lines = {}
    for (model, sees), scores in found.items():
        means = results.values_of(grid[model, sees])[0]["left_words"]
        points = []
        for name, mean in means.items():
            if mean is not None:
                metric = scores[name].metric()
                points.append(Point(mean, metric.value, metric.low, metric.high))
        lines[f"{model}, {sees}"] = tuple(points)
    return LineChart(
        "Accuracy by position",
        "words before the blank",
        ACCURACY,
        lines,
        caption="A model that sees the left side only needs enough of it.",
    )


def _table(found: Found) -> DataTable:
    rows = []
    for (model, sees), scores in found.items():
        accuracy, log_prob = scores[ACCURACY].metric(), scores[LOG_PROB].metric()
        rows.append(
            (model, sees, *metric_texts(accuracy, 100, 1), *metric_texts(log_prob, digits=2))
        )
    interval = "95 % interval"
    columns = ("model", "context", "accuracy (%)", interval, "log-probability (nats)", interval)
    return DataTable("", columns, tuple(rows))


def _examples(grid: Mapping[Condition, Sequence[Cell]], run: StudyRun) -> DataTable:
    """Show blanks with the probability that each model gives to the right word."""
    firsts = {key: run.cells[cells[0]].values for key, cells in grid.items()}
    shown = [values["examples"] for values in firsts.values() if values]
    columns = ("text", "word", *(f"{m}, {s}" for (m, s), values in firsts.items() if values))
    rows = tuple(
        (same[0]["text"], same[0]["answer"], *(f"{one['probability']:.3f}" for one in same))
        for same in zip(*shown, strict=True)
    )
    return DataTable("Probability of the right word at some blanks", columns, rows, texts=True)


def _notes(run: StudyRun, removed: Sequence[Cell]) -> list[str]:
    counts = run.cells[removed[0]].values
    words = "words that are one token for all models" if run.settings.one_token else "words"
    notes = [
        f"{counts.get('blanks', 0):,} {words} were removed from {counts.get('texts', 0):,} texts, "
        "other words for each seed."
    ]
    if not run.settings.one_token:
        notes.append(
            "A masked model is given the number of tokens of the word, which a decoder is not."
        )
    return notes


STUDY = Study(
    name="context",
    question="Do both sides of a blank predict its word better than the text before it?",
    settings=ContextSettings,
    run=run_context,
    takes=("text", "models"),
    several_models=True,
    medium={"texts": 1000, "max_words": 60},
    large={"texts": 4000, "max_words": 100},
)
