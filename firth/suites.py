"""Several measurements that belong together, and the average that papers print of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firth.asking import Progress, open_model
from firth.errors import FirthError, InputError, Misuse
from firth.evaluation import Evaluation, evaluate
from firth.metrics.bootstrap import Figure, plain_figures
from firth.metrics.language import mean_of
from firth.model import Model
from firth.tasks.scoring import Parts
from firth.text.readers import Reading, Source, find_sources

# GLUE (Wang et al. 2019): the figures of each task whose mean is its score.
GLUE: dict[str, tuple[str, ...]] = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
UNCOUNTED = ("wnli",)  # as in BERT's table and those after it: its dev set is adversarial
DEV = re.compile(r"(dev|valid)")
# What the name of a file says about how it is measured; the first that fits.
KINDS = (
    (re.compile("lambada"), "last-word", ""),
    (re.compile(r"wikitext|wiki\.(test|valid|train)"), "lm", "wikitext"),
    (re.compile(r"ptb|penn"), "lm", "ptb"),
    (re.compile("enwik8|text8"), "lm", "enwik8"),
    (re.compile(""), "lm", ""),
)
PSEUDO = "pseudo_perplexity"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    measure: str  # what its figure is
    figure: Figure
    n: int
    figures: Mapping[str, Figure]  # all there are

    def values(self) -> dict[str, Any]:
        """The line as plain JSON values."""
        score = {"measure": self.measure, "score": asdict(self.figure)}
        metrics = plain_figures(self.figures)
        return {"name": self.name, "n": self.n, **score, "metrics": metrics}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A table, and what its lines say together."""

    name: str
    rows: list[Row]
    averages: dict[str, Figure]  # the one that papers print first
    averaged: list[str]  # the lines that count
    seconds: float
    missing: list[str] = field(default_factory=list)
    groups: dict[str, Parts] = field(default_factory=dict)  # of minimal pairs, by larger kinds
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """The table as plain JSON values."""
        return {
            "suite": self.name,
            "rows": [row.values() for row in self.rows],
            "averages": plain_figures(self.averages),
            "averaged": self.averaged,
            "missing": self.missing,
            "groups": {
                kind: {part: plain_figures(row) for part, row in parts.items()}
                for kind, parts in self.groups.items()
            },
            "seconds": self.seconds,
            "notes": self.notes,
        }


def evaluate_suite(
    model: str | Path | Model,
    name: str,
    *,
    data: str | Path,
    limit: int = 0,
    by_word: bool = False,
    device: str | None = None,
    progress: Progress = lambda what, done, there: None,
) -> Suite:
    """Measure a model on everything in a folder: `glue`, `lm` or `blimp`.

    For `glue`, the model is a folder with a run for each task (`runs/sst2`, `runs/cola`, …), and
    the data a folder with a folder for each (`data/sst2/dev.tsv`, …).
    """
    if name not in SUITES:
        raise Misuse(f"There is no suite {name!r}; there are {', '.join(SUITES)}.")
    if by_word and name != "blimp":
        raise Misuse("--by-word is for minimal pairs: --suite blimp.")
    folder = Path(data)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --suite {name} measures all that is in one.")
    begun = time.monotonic()
    options = {"limit": limit, "device": device, "progress": progress}
    if by_word:
        options["by_word"] = True
    found = SUITES[name](model, folder, options)
    return Suite(name=name, seconds=time.monotonic() - begun, **found)


# ---- GLUE ---------------------------------------------------------------------------------------


def _glue(model: str | Path | Model, data: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The table of GLUE's dev sets: one run for each task."""
    if isinstance(model, Model) or not Path(model).is_dir():
        raise Misuse(
            "--suite glue takes a folder with a run for each task, such as runs/sst2 and "
            "runs/cola, which `firth finetune` writes."
        )
    runs, sets = _folders(Path(model)), _folders(data)
    rows, missing, notes = [], [], []
    for task, names in GLUE.items():
        where = [kind for kind, there in (("run", runs), ("data", sets)) if task not in there]
        if where:
            missing.append(task)
            if len(where) == 1:
                notes.append(f"{task} is left out: there is no {where[0]} for it.")
            continue
        try:
            found = evaluate(runs[task], data=_dev(sets[task]), **options)
            rows.append(_row(task, names, found))
        except FirthError as error:
            missing.append(task)
            notes.append(f"{task} is left out: {error}")
    if not rows:
        raise InputError(
            " ".join(notes)
            or f"{model} and {data} have no folder of the same task of GLUE: {', '.join(GLUE)}."
        )
    counted = [row.name for row in rows if row.name not in UNCOUNTED]
    lacking = [task for task in missing if task not in UNCOUNTED]
    if lacking:
        notes.append(f"The average is without {', '.join(lacking)}: it is not that of all of GLUE.")
    averages = _averages(rows, counted, "score")
    return _table(rows, averages, counted) | {"missing": missing, "notes": notes}


def _folders(place: Path) -> dict[str, Path]:
    """The folders of tasks, however they are spelt: SST-2, sts_b."""
    found = {re.sub(r"[-_ ]", "", path.name.lower()): path for path in sorted(place.iterdir())}
    return {name: path for name, path in found.items() if name in GLUE and path.is_dir()}


def _dev(folder: Path) -> str:
    """The file of a task that figures are of."""
    sources, _ = find_sources([folder], Reading())
    for source in sources:
        if DEV.match(Path(source.name).name.lower()):
            return source.name
    raise InputError(f"{folder} has no file whose name begins with dev or valid.")


def _row(name: str, measures: tuple[str, ...], found: Evaluation) -> Row:
    """A task's score: a figure, or the mean of two of the same examples."""
    if absent := [measure for measure in measures if measure not in found.figures]:
        raise InputError(f"its run gives {', '.join(found.figures)}, and not {absent[0]}.")
    chosen = [found.figures[measure] for measure in measures]
    value, low, high = (
        sum(getattr(figure, part) for figure in chosen) / len(chosen)
        for part in ("value", "low", "high")
    )
    figure = Figure(value=value, low=low, high=high)
    words = " and ".join(measures)
    measure = f"mean of {words}" if len(measures) > 1 else words
    return Row(name=name, measure=measure, figure=figure, n=found.n, figures=found.figures)


# ---- texts --------------------------------------------------------------------------------------


def _lm(model: str | Path | Model, data: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Every text of a folder, counted as its name says."""
    opened = open_model(model, options["device"])
    rows, notes = [], []
    sources, skipped = find_sources([data], Reading())
    for source, task, convention in _kinds(sources):
        given: dict[str, Any] = {"convention": convention} if convention else {}
        found = evaluate(opened, data=source.name, task=task, **given, **options)
        first = next(iter(found.figures))
        name = str(Path(source.name).relative_to(data))
        said = f"{convention or task}: {first}"
        figures = found.figures
        rows.append(Row(name=name, measure=said, figure=figures[first], n=found.n, figures=figures))
        notes += [note for note in found.notes if note not in notes]
    if skipped:
        notes.append(
            f"{skipped:,} files were passed over: their endings do not say what they hold."
        )
    of = next((m for m in ("bits_per_byte", PSEUDO) if any(m in row.figures for row in rows)), "")
    counted = [row.name for row in rows if of in row.figures]
    averages = {of: mean_of([r.figures[of] for r in rows if of in r.figures])} if of else {}
    return _table(rows, averages, counted) | {"notes": notes}


def _kinds(sources: list[Source]) -> Iterator[tuple[Source, str, str]]:
    """Each file with its task and convention.

    >>> files = [Source(name, "txt") for name in ("lambada_test.txt", "wiki.test.txt", "notes.txt")]
    >>> [kind for _, *kind in _kinds(files)]
    [['last-word', ''], ['lm', 'wikitext'], ['lm', '']]
    """
    for source in sources:
        name = Path(source.name).name.lower()
        yield next((source, task, how) for what, task, how in KINDS if what.search(name))


def _blimp(model: str | Path | Model, data: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Every set of minimal pairs, and their plain mean."""
    found = evaluate(model, data=data, task="minimal-pairs", **options)
    sizes = found.details["sizes"]
    rows = [
        Row(name=name, measure="accuracy", figure=row["accuracy"], n=sizes[name], figures=row)
        for name, row in found.parts.items()
    ]
    averages = {
        measure: mean_of([row.figures[measure] for row in rows]) for measure in found.figures
    }
    rest = {"groups": found.groups, "notes": found.notes}
    return _table(rows, averages, [row.name for row in rows]) | rest


def _averages(rows: list[Row], counted: list[str], name: str) -> dict[str, Figure]:
    figures = [row.figure for row in rows if row.name in counted]
    return {name: mean_of(figures)} if figures else {}


def _table(rows: list[Row], averages: dict[str, Figure], counted: list[str]) -> dict[str, Any]:
    return {"rows": rows, "averages": averages, "averaged": counted}


SUITES: dict[str, Callable[..., dict[str, Any]]] = {"glue": _glue, "lm": _lm, "blimp": _blimp}
