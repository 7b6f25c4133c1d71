"""Study: does a model work on another domain, and does pre-training on its text help?

Train on the labels of a source domain, test on source and target. Domain-adaptive pre-training
(Gururangan et al. 2020) continues on unlabelled text of the target before fine-tuning; its control
continues for as many tokens on the text that the model knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from firth.data.stories.reviews import SUBJECTS
from firth.study.cells.baseline_cells import tfidf
from firth.study.cells.domain_cells import (
    GENERAL,
    SOURCE_ROWS,
    TARGET,
    TARGET_ROWS,
    joined_domains,
    review_domains,
    training_texts,
)
from firth.study.cells.finetuning_cells import finetuned, metric_of
from firth.study.cells.input_cells import File, model_path, prepared_text, split_task_data
from firth.study.cells.pretraining_cells import MODEL, pretrained
from firth.study.domain_figures import domain_bars, domain_row, domain_table
from firth.study.domain_findings import (
    ADAPTED,
    CONTROL,
    PRETRAINED,
    SCRATCH,
    TARGET_LABELS,
    TFIDF,
    DomainScores,
    domain_findings,
)
from firth.study.engine.cell import Cell
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

METHODS = (TFIDF, SCRATCH, PRETRAINED, CONTROL, ADAPTED, TARGET_LABELS)


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """Settings of the study; up to hidden_size they are for the stories' reviews only."""

    source: Annotated[
        tuple[str, ...], Doc("Subjects of the stories' reviews in the source domain.")
    ] = ("book", "film")
    target: Annotated[
        tuple[str, ...], Doc("Subjects of the stories' reviews in the target domain.")
    ] = ("meal",)
    texts: Annotated[int, Doc("Unlabelled reviews of each domain.", min=1)] = 6000
    rows: Annotated[int, Doc("Labelled reviews of each domain, test examples included.", min=1)] = (
        1200
    )
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 1200
    pretrain_tokens: Annotated[int, Doc("Tokens of pre-training, once for all seeds.", min=1)] = (
        2_000_000
    )
    num_layers: Annotated[int, Doc("Number of layers.", min=1)] = 2
    hidden_size: Annotated[int, Doc("Hidden size.", min=1)] = 64
    methods: Annotated[tuple[str, ...], Doc("Methods that are compared.")] = METHODS
    adapt_tokens: Annotated[int, Doc("Tokens of domain-adaptive pre-training.", min=1)] = 300_000
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    labels: Annotated[int, Doc("Labelled training examples.", min=1)] = 300
    steps: Annotated[int, Doc("Optimizer steps of fine-tuning.", min=1)] = 60
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300


@dataclass(frozen=True, kw_only=True)
class DomainPlan:
    """The data of the two domains and their unlabelled text."""

    task: str
    names: tuple[str, str]  # source, target
    source: Cell  # of `joined_domains`: trained on the source
    target: Cell  # the same, trained on the target
    known_text: File  # for the control: more of what the model knows, or the source's task text
    target_text: File | None


def run_domain_shift(run: StudyRun) -> StudyAnalysis:
    """Train on one domain and test on both, with and without pre-training on the other."""
    _check(run)
    plan = _own_plan(run) if run.inputs.data is not None else _review_plan(run)
    run.require(plan.source, plan.target)
    sizes = run.cache.run(plan.source).values
    grid = {name: _cells(run, plan, name) for name in _methods(run, plan, sizes["multi_label"])}
    results = run.run(cell for cells in grid.values() for cell in cells)
    metric = metric_of(plan.task, run.cache.files(plan.source) / "test.jsonl")
    found = {
        name: DomainScores.of(scores, sizes["source_test"])
        for name, cells in grid.items()
        if (scores := results.scores(cells, metric)) is not None
    }
    errors = {name: results.first_error(cells) for name, cells in grid.items()}
    return StudyAnalysis(
        rows=[domain_row(name, found.get(name), errors[name], metric) for name in grid],
        findings=domain_findings(found),
        figures=(domain_bars(found, plan.names, metric), domain_table(found, metric)),
        notes=(
            f"Source: {plan.names[0]}; target: {plan.names[1]}. {run.settings.labels:,} labels of "
            f"the source ({TARGET_LABELS}: of the target), {run.settings.steps} steps.",
        ),
    )


def _check(run: StudyRun) -> None:
    inputs, settings = run.inputs, run.settings
    if (inputs.data is None) != (inputs.test is None):
        raise UsageError("Give --data SOURCE and --test TARGET: labelled examples of two domains.")
    if inputs.data is None and (inputs.text or inputs.models or inputs.task):
        raise UsageError("--text, --model and --task belong to --data SOURCE and --test TARGET.")
    for kind in (*settings.source, *settings.target):
        if kind not in SUBJECTS:
            raise UsageError(f"There are no reviews of {kind!r}; there are {', '.join(SUBJECTS)}.")
    if set(settings.source) & set(settings.target):
        raise UsageError("source and target must be different kinds of reviews.")
    for name in settings.methods:
        if name not in METHODS:
            raise UsageError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")


def _methods(run: StudyRun, plan: DomainPlan, multi_label: bool) -> list[str]:
    left_out = [ADAPTED, CONTROL] if plan.target_text is None else []
    if plan.task != "classify" or multi_label:
        left_out.append(TFIDF)
        run.note(f"{TFIDF} does not fit the task, and was left out.")
    if plan.target_text is None:
        run.note("Without --text TARGET_TEXT there is no domain-adaptive pre-training.")
    return [name for name in run.settings.methods if name not in left_out]


# ---- data


def _review_plan(run: StudyRun) -> DomainPlan:
    """Compare reviews of different things, which the generator of the stories writes."""
    settings: DomainSettings = run.settings
    written = {name: getattr(settings, name) for name in ("source", "target", "texts", "rows")}
    domains = Cell(review_domains, written, name="reviews of two domains")
    source, target = (
        _split(run, "classify", domains / name) for name in (SOURCE_ROWS, TARGET_ROWS)
    )
    names = tuple(f"reviews of {', '.join(kinds)}" for kinds in (settings.source, settings.target))
    return DomainPlan(
        task="classify",
        names=(names[0], names[1]),
        **_joined(source, target),
        known_text=domains / GENERAL,
        target_text=domains / TARGET,
    )


def _own_plan(run: StudyRun) -> DomainPlan:
    """Compare the user's files."""
    inputs, task = run.inputs, run.inputs.task or "classify"
    assert inputs.data is not None
    assert inputs.test is not None
    source, target = (_split(run, task, file) for file in (inputs.data, inputs.test))
    run.note("A third of each file, at most test_size examples, is held out as its test set.")
    return DomainPlan(
        task=task,
        names=(inputs.data.name, inputs.test.name),
        **_joined(source, target),
        known_text=Cell(training_texts, {"data": source}, name="source text") / GENERAL,
        target_text=inputs.text,
    )


def _split(run: StudyRun, task: str, file: File) -> Cell:
    columns = dict(run.inputs.columns or {})
    sizes = {"test": None, "test_size": run.settings.test_size, "columns": columns}
    return Cell(split_task_data, {"task": task, "data": file, **sizes}, name=f"{task} data")


def _joined(source: Cell, target: Cell) -> dict[str, Any]:
    both = {"source": source, "target": target}
    return {
        name: Cell(joined_domains, {**both, "train_on": name}, name=f"trained on the {name}")
        for name in both
    }


# ---- runs


def _cells(run: StudyRun, plan: DomainPlan, method: str) -> list[Cell]:
    settings: DomainSettings = run.settings
    data = plan.target if method == TARGET_LABELS else plan.source
    if method == TFIDF:
        return run.with_seeds(tfidf, method, data=data, labels=settings.labels)
    options = {
        "strategy": "full",
        "scratch": method == SCRATCH,
        "batch_size": settings.batch_size,
        "overrides": {"steps": settings.steps},
    }
    shared = {"task": plan.task, "data": data, "labels": settings.labels, "options": options}
    return [
        Cell(
            finetuned,
            {"model": _model(run, plan, method, seed), **shared},
            seed=seed,
            name=f"{method}, seed {seed}",
        )
        for seed in run.seeds
    ]


def _model(run: StudyRun, plan: DomainPlan, method: str, seed: int) -> File:
    """Return the model to fine-tune: pre-trained, or trained further on known or target text."""
    settings: DomainSettings = run.settings
    base, tokenizer, options = _base(run, plan)
    text = {ADAPTED: plan.target_text, CONTROL: plan.known_text}.get(method)
    if text is None:
        return base
    shards = {"text": text, "valid": None, "tokenizer": tokenizer, "vocab_size": 0}
    more = {
        "data": Cell(prepared_text, shards, name="shards"),
        "source": base,
        "options": {"tokens": settings.adapt_tokens, **options},
    }
    return Cell(pretrained, more, seed=seed, name=f"{method}, pre-training, seed {seed}") / MODEL


def _base(run: StudyRun, plan: DomainPlan) -> tuple[File, File, dict[str, Any]]:
    """Return the model that is pre-trained on general text, its tokenizer, and training options."""
    settings: DomainSettings = run.settings
    if run.inputs.data is not None:
        own = model_path(run.inputs.models[0] if run.inputs.models else "stories-encoder")
        return own, own, {"max_length": settings.max_length}
    options = {"batch_tokens": settings.batch_tokens, "max_length": settings.max_length}
    text = {"text": plan.known_text, "valid": None, "tokenizer": None}
    data = Cell(prepared_text, {**text, "vocab_size": settings.vocab_size}, name="general text")
    tokens = {"preset": "encoder-tiny", "tokens": settings.pretrain_tokens}
    size = {
        "model.num_layers": settings.num_layers,
        "model.hidden_size": settings.hidden_size,
        "model.num_heads": max(1, settings.hidden_size // 32),
        "model.ffn_size": 2 * settings.hidden_size,
    }
    first = {"data": data, "options": {**tokens, **options, "overrides": size}}
    # Pre-trained once, as a published model is: seeds vary what follows.
    cell = Cell(pretrained, first, name="pre-training on general text")
    return cell / MODEL, data / "tokenizer", options


STUDY = Study(
    name="domain-shift",
    question="Does a model work on another domain, and does pre-training on its text help?",
    settings=DomainSettings,
    run=run_domain_shift,
    takes=("data", "test", "task", "text", "models"),
    medium={
        "pretrain_tokens": 10_000_000,
        "adapt_tokens": 2_000_000,
        "texts": 20_000,
        "steps": 300,
    },
    large={
        "pretrain_tokens": 100_000_000,
        "adapt_tokens": 20_000_000,
        "texts": 100_000,
        "labels": 3000,
        "rows": 6000,
        "steps": 1000,
        "batch_tokens": 8192,
    },
)
