"""Study: which architecture and objective of T5's table is best?

Five architectures are pre-trained with denoising and with language modelling on the same documents
in the same order, and fine-tuned on the same tasks as text-to-text models (Raffel et al. 2020,
section 3.2, table 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from firth.study.cells.finetuning_cells import finetuned
from firth.study.cells.input_cells import (
    TEST_SEED,
    pretraining_text,
    split_task_data,
    stories,
    task_data,
)
from firth.study.cells.pretraining_cells import MODEL, pretrained
from firth.study.cells.text_to_text_cells import measured_model, text_to_text
from firth.study.engine.cell import Cell
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.t5_findings import (
    collect,
    compare_models,
    lecture_table,
    result_row,
    result_table,
    score_bars,
)
from firth.study.t5_models import ARCHITECTURES, MODELS, OBJECTIVES, Model
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

STORY_TASKS = {  # task of the stories: its kind and its file
    "topic": ("classify", "topic/train.tsv"),
    "sentiment": ("classify", "sentiment/train.tsv"),
    "entailment": ("pair", "entailment/train.tsv"),
    "questions": ("span", "questions/train.json"),
}


@dataclass(frozen=True, kw_only=True)
class T5Settings:
    """Settings of the study."""

    layers: Annotated[int, Doc("Layers of each stack, an even number.", min=1)] = 2
    hidden_size: Annotated[int, Doc("Hidden size.", min=1)] = 64
    num_heads: Annotated[int, Doc("Number of attention heads.", min=1)] = 2
    ffn_size: Annotated[int, Doc("Size of the feed-forward layers.", min=1)] = 176
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 1000
    words: Annotated[int, Doc("Words of the stories, unless --text is given.", min=1)] = 300_000
    tokens: Annotated[int, Doc("Tokens of each pre-training run.", min=1)] = 100_000
    # Gives lower validation losses of both objectives than the recipe's 4e-3 after so few steps.
    pretraining_learning_rate: Annotated[
        float, Doc("Peak learning rate of pre-training.", min=0)
    ] = 8e-3
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 512
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    tasks: Annotated[
        tuple[str, ...], Doc("Tasks of the stories: topic, sentiment, entailment, questions.")
    ] = ("topic",)
    steps: Annotated[int, Doc("Optimizer steps of fine-tuning.", min=1)] = 150
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    learning_rate: Annotated[float, Doc("Peak learning rate of fine-tuning.", min=0)] = 3e-3
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 200
    loss_tokens: Annotated[int, Doc("Tokens of the validation text.", min=1)] = 16_384


def run_t5_table(run: StudyRun) -> StudyAnalysis:
    """Pre-train and fine-tune the ten models of the table."""
    settings: T5Settings = run.settings
    if settings.layers < 2 or settings.layers % 2:
        raise UsageError(f"layers must be even and at least 2, not {settings.layers}.")
    tasks = _tasks(run)
    text = pretraining_text(run.inputs, words=settings.words, vocab_size=settings.vocab_size)
    run.require(text, *tasks.values())
    models = {model: _pretrained(run, model, text) for model in MODELS}
    run.run(cell for cells in models.values() for cell in cells)
    measured = {model: _measured(run, model, cells, text) for model, cells in models.items()}
    tuned = {
        (model, task): _finetuned(run, model, cells, task, data)
        for model, cells in models.items()
        for task, data in tasks.items()
    }
    results = run.run([*_flat(measured), *_flat(tuned)])
    found = {
        model: collect(results, model, measured[model], tuned, list(tasks)) for model in MODELS
    }
    complete = {model: one for model, one in found.items() if one is not None}
    return StudyAnalysis(
        rows=[
            result_row(model, one, results.first_error([*measured[model], *_of(tuned, model)]))
            for model, one in found.items()
        ],
        findings=compare_models({model: one.score for model, one in complete.items()}),
        figures=(score_bars(complete), result_table(complete), lecture_table()),
        notes=_notes(settings, list(tasks)),
    )


def _of(tuned: Mapping[tuple[Model, str], Sequence[Cell]], model: Model) -> list[Cell]:
    return [cell for (name, _), cells in tuned.items() if name == model for cell in cells]


def _flat(grid: Mapping[Any, Sequence[Cell]]) -> list[Cell]:
    return [cell for cells in grid.values() for cell in cells]


# ---- cells --------------------------------------------------------------------------------------


def _tasks(run: StudyRun) -> dict[str, Cell]:
    """Return the tasks as pairs of texts: the user's, or those of the stories."""
    size = run.settings.test_size
    if run.inputs.data is not None:
        data = task_data(run.inputs, test_size=size)
        return {run.inputs.data.stem: Cell(text_to_text, {"data": data}, name="text-to-text data")}
    found = {}
    for name in run.settings.tasks:
        if name not in STORY_TASKS:
            raise UsageError(f"There is no task {name!r}; there are {', '.join(STORY_TASKS)}.")
        kind, file = STORY_TASKS[name]
        settings = {
            "task": kind,
            "data": stories() / file,
            "test": stories(first_seed=TEST_SEED) / file,
            "test_size": size,
            "columns": {},
        }
        data = Cell(split_task_data, settings, name=f"{name} data")
        found[name] = Cell(text_to_text, {"data": data}, name=f"{name} as text-to-text")
    return found


def _pretrained(run: StudyRun, model: Model, text: Cell) -> list[Cell]:
    settings: T5Settings = run.settings
    architecture = ARCHITECTURES[model[0]]
    overrides = {
        "model.hidden_size": settings.hidden_size,
        "model.num_heads": settings.num_heads,
        "model.ffn_size": settings.ffn_size,
        "model.num_layers": settings.layers // architecture.divisor,
        **({"model.share_encoder_decoder": True} if architecture.share else {}),
        "max_length": str(settings.max_length),
        "batch_tokens": str(settings.batch_tokens),
        "validate_every": 1.0,
        "validate_tokens": 2048,
    }
    options = {
        "preset": architecture.preset,
        "objective": architecture.objectives[OBJECTIVES.index(model[1])],
        "tokens": settings.tokens,
        "learning_rate": settings.pretraining_learning_rate,
        "overrides": overrides,
    }
    return run.with_seeds(
        pretrained, f"{', '.join(model)}: pre-trained", data=text, options=options
    )


def _measured(run: StudyRun, model: Model, cells: Sequence[Cell], text: Cell) -> list[Cell]:
    settings: T5Settings = run.settings
    return [
        Cell(
            measured_model,
            {
                "model": cell / MODEL,
                "data": text,
                "objective": model[1],
                "length": settings.max_length,
                "tokens": settings.loss_tokens,
            },
            name=f"{', '.join(model)}: loss, seed {seed}",
        )
        for cell, seed in zip(cells, run.seeds, strict=True)
    ]


def _finetuned(
    run: StudyRun, model: Model, cells: Sequence[Cell], task: str, data: Cell
) -> list[Cell]:
    settings: T5Settings = run.settings
    options = {
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "overrides": {"steps": settings.steps, "task.written": 16},
    }
    values = {"task": "seq2seq", "data": data, "options": options}
    return [
        Cell(
            finetuned,
            {"model": cell / MODEL, **values},
            seed=seed,
            name=f"{', '.join(model)}: {task}, seed {seed}",
        )
        for cell, seed in zip(cells, run.seeds, strict=True)
    ]


def _notes(settings: T5Settings, tasks: Sequence[str]) -> list[str]:
    return [
        f"Each model was pre-trained on {settings.tokens:,} tokens; T5's models on 34 billion.",
        "All models read the same documents in the same order with the same tokenizer, and are "
        f"fine-tuned as text-to-text models on {', '.join(tasks)}.",
        "The loss is in nats per target token; it is comparable between architectures, which "
        "predict the same targets, but not between objectives.",
        "FLOPs are those of the blocks per sequence, half of it input and half target, relative to "
        "the encoder-decoder; parameters of the shared encoder-decoder include cross-attention.",
    ]


STUDY = Study(
    name="t5-table",
    question="Which architecture and objective of T5's table is best?",
    settings=T5Settings,
    run=run_t5_table,
    takes=("data", "test", "task", "text"),
    medium={
        "layers": 4,
        "hidden_size": 128,
        "num_heads": 4,
        "ffn_size": 352,
        "vocab_size": 4000,
        "words": 1_000_000,
        "tokens": 3_000_000,
        "pretraining_learning_rate": 4e-3,
        "batch_tokens": 8192,
        "max_length": 128,
        "tasks": ("topic", "sentiment", "entailment"),
        "steps": 300,
        "learning_rate": 1e-3,
    },
    large={
        "layers": 12,
        "hidden_size": 512,
        "num_heads": 8,
        "ffn_size": 1376,
        "vocab_size": 16_000,
        "words": 3_000_000,
        "tokens": 100_000_000,
        "pretraining_learning_rate": 2e-3,
        "batch_tokens": 65_536,
        "max_length": 256,
        "tasks": ("topic", "sentiment", "entailment", "questions"),
        "steps": 2000,
        "learning_rate": 3e-4,
        "test_size": 1000,
    },
)
