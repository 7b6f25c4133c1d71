"""Fine-tune a text classifier with transformers' `Trainer`: the peer of `finetune_wall_time.py`.

It imports nothing of Firth, so that the time of its process is that of a script by a user.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def main() -> None:
    """Train, keep the epoch with the best accuracy, and save the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("model", "train", "dev", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    on_gpu = torch.cuda.is_available() and not options.cpu
    arguments = TrainingArguments(
        output_dir=str(options.out),
        learning_rate=options.lr,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=4 * options.batch_size,
        weight_decay=0.01,
        warmup_steps=0.1,  # fraction of all steps
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        bf16=on_gpu,
        use_cpu=options.cpu,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2),
        args=arguments,
        train_dataset=read(options.train, tokenizer, options.max_length),
        eval_dataset=read(options.dev, tokenizer, options.max_length),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    trainer.evaluate()
    trainer.save_model(str(options.out))


def read(file: Path, tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Read and tokenize the texts and labels of a TSV file."""
    with open(file, encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=max_length)
    return [
        {"input_ids": ids, "labels": int(row["label"])}
        for ids, row in zip(encoded["input_ids"], rows, strict=True)
    ]


def accuracy(output: Any) -> dict[str, float]:
    """Return the fraction of correct labels."""
    return {"accuracy": float((output.predictions.argmax(-1) == output.label_ids).mean())}


if __name__ == "__main__":
    main()
