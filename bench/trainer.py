"""The settings of `transformers.Trainer` that the benchmarks of fine-tuning share."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers


def trainer_arguments(
    out: Path, device: torch.device, *, epochs: int, batch_size: int, learning_rate: float
) -> transformers.TrainingArguments:
    """Train in bf16 on a GPU and in fp32 on a CPU, without validation, logs and checkpoints."""
    return transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=0.01,
        bf16=device.type == "cuda",
        use_cpu=device.type == "cpu",
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
