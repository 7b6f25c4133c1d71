"""The peer of `finetune_quality.py`: `Trainer` of transformers, as its documentation uses it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from finetune_job import BATCH, EPOCHS, LENGTH, MODEL, Job, Run, counted, rows, score
from numpy.typing import NDArray
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

IGNORED = -100  # the label of what is not asked


def run_trainer(job: Job, seed: int, out: Path, device: str) -> Run:
    """From the files to the dev answers and the saved model."""
    started = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    train, dev = (encoded(job, file, tokenizer) for file in (job.train, job.dev))
    right = job.gold()

    def worth(found: Any) -> dict[str, float]:
        return {"score": float(score(counted(right, _answers(job, found))))}

    transformers.set_seed(seed)
    trainer = Trainer(
        model=opened(job),
        args=_arguments(job, seed, out, device),
        train_dataset=train,
        eval_dataset=dev,
        data_collator=collator(job, tokenizer),
        compute_metrics=worth,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    answers = _answers(job, trainer.predict(dev))
    trainer.save_model(str(out))
    return Run(answers, time.perf_counter() - started)


def _arguments(job: Job, seed: int, out: Path, device: str) -> TrainingArguments:
    """What `run_firth` has by default is said here, where this side has another default."""
    return TrainingArguments(
        output_dir=str(out),
        learning_rate=job.data.rate,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=4 * BATCH,
        weight_decay=0.01,
        warmup_steps=0.1,  # of all
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        seed=seed,
        use_cpu=device == "cpu",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )


def opened(job: Job) -> Any:
    """MiniLM with a new head."""
    kind = AutoModelForTokenClassification if job.tags else AutoModelForSequenceClassification
    return kind.from_pretrained(MODEL, num_labels=len(job.labels), dtype=torch.float32)


def collator(job: Job, tokenizer: Any) -> Any:
    """What makes a batch of examples."""
    return (DataCollatorForTokenClassification if job.tags else DataCollatorWithPadding)(tokenizer)


def encoded(job: Job, file: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """The examples of a file in tokens; of a word, the first one has its tag."""
    index, lines = {label: id for id, label in enumerate(job.labels)}, rows(file)
    names = {"tag": ("words",), "pair": ("text_a", "text_b")}.get(job.data.task, ("text",))
    found = tokenizer(
        *([line[name] for line in lines] for name in names),
        is_split_into_words=job.tags,
        truncation=True,
        max_length=LENGTH,
    )
    examples = [{name: found[name][i] for name in found} for i in range(len(lines))]
    for i, (example, line) in enumerate(zip(examples, lines, strict=True)):
        if job.tags:
            tags = [index[tag] for tag in line["tags"]]
            example["labels"] = _on_first(tags, found.word_ids(i))
        else:
            example["label"] = index[line["label"]]
    return examples


def _on_first(tags: Sequence[int], words: Sequence[int | None]) -> list[int]:
    """A tag for the first token of each word."""
    before = (None, *words[:-1])
    return [
        IGNORED if word is None or word == last else tags[word]
        for word, last in zip(words, before, strict=True)
    ]


def _answers(job: Job, found: Any) -> list[Any]:
    """What scores say, in words; the labels say which tokens were asked."""
    best: NDArray[Any] = found.predictions.argmax(-1)
    if not job.tags:
        return [job.labels[id] for id in best]
    return [
        [job.labels[id] for id in said[asked != IGNORED]]
        for said, asked in zip(best, found.label_ids, strict=True)
    ]
