"""Fine-tune with transformers' `Trainer`, as documented: the peer of `finetune_quality.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from finetune_job import (
    BATCH_SIZE,
    EPOCHS,
    MAX_LENGTH,
    MODEL,
    Job,
    Run,
    count_matches,
    read_rows,
    score,
)
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

IGNORED = -100  # the label of tokens without a loss


def run_trainer(job: Job, seed: int, out: Path, device: str) -> Run:
    """Fine-tune from the files to the dev predictions and the saved model."""
    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    train, dev = (encode_examples(job, file, tokenizer) for file in (job.train, job.dev))
    gold = job.gold_labels()

    def compute_metrics(output: Any) -> dict[str, float]:
        """Return the score of the dev predictions."""
        return {"score": float(score(count_matches(gold, _decode_predictions(job, output))))}

    transformers.set_seed(seed)
    trainer = Trainer(
        model=load_model(job),
        args=_training_arguments(job, seed, out, device),
        train_dataset=train,
        eval_dataset=dev,
        data_collator=make_collator(job, tokenizer),
        compute_metrics=compute_metrics,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    predictions = _decode_predictions(job, trainer.predict(dev))
    trainer.save_model(str(out))
    return Run(predictions, time.perf_counter() - start)


def _training_arguments(job: Job, seed: int, out: Path, device: str) -> TrainingArguments:
    """Return the settings of `run_firth`; those not listed are Trainer's defaults."""
    return TrainingArguments(
        output_dir=str(out),
        learning_rate=job.dataset.learning_rate,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=4 * BATCH_SIZE,
        weight_decay=0.01,
        warmup_steps=0.1,  # fraction of all steps
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


def load_model(job: Job) -> Any:
    """Load MiniLM with a new head, in fp32."""
    auto_class = (
        AutoModelForTokenClassification if job.is_tagging else AutoModelForSequenceClassification
    )
    return auto_class.from_pretrained(MODEL, num_labels=len(job.labels), dtype=torch.float32)


def make_collator(job: Job, tokenizer: Any) -> Any:
    """Return the data collator of the task."""
    return (DataCollatorForTokenClassification if job.is_tagging else DataCollatorWithPadding)(
        tokenizer
    )


def encode_examples(job: Job, file: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """Tokenize the examples of a file; only the first token of a word gets its tag."""
    label_ids, rows = {label: id for id, label in enumerate(job.labels)}, read_rows(file)
    columns = {"tag": ("words",), "pair": ("text_a", "text_b")}.get(job.dataset.task, ("text",))
    encodings = tokenizer(
        *([row[name] for row in rows] for name in columns),
        is_split_into_words=job.is_tagging,
        truncation=True,
        max_length=MAX_LENGTH,
    )
    examples = [{name: encodings[name][i] for name in encodings} for i in range(len(rows))]
    for i, (example, row) in enumerate(zip(examples, rows, strict=True)):
        if job.is_tagging:
            tags = [label_ids[tag] for tag in row["tags"]]
            example["labels"] = _label_first_tokens(tags, encodings.word_ids(i))
        else:
            example["label"] = label_ids[row["label"]]
    return examples


def _label_first_tokens(tags: Sequence[int], words: Sequence[int | None]) -> list[int]:
    """Return a tag for the first token of each word, and IGNORED for the others."""
    previous = (None, *words[:-1])
    return [
        IGNORED if word is None or word == previous_word else tags[word]
        for word, previous_word in zip(words, previous, strict=True)
    ]


def _decode_predictions(job: Job, output: Any) -> list[Any]:
    """Return the labels with the largest logits, for tags only where a token has a label."""
    best_ids: NDArray[Any] = output.predictions.argmax(-1)
    if not job.is_tagging:
        return [job.labels[id] for id in best_ids]
    return [
        [job.labels[id] for id in ids[labels != IGNORED]]
        for ids, labels in zip(best_ids, output.label_ids, strict=True)
    ]
