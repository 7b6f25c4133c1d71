"""Chapter: LoRA, which trains a small part, against fine-tuning everything."""

from __future__ import annotations

from firth.demo.chapter_labels import PRETRAINED, interval, sentiment_options, sentiment_run
from firth.demo.workspace import Findings, Workspace
from firth.jobs.finetuning import FinetuneResult
from firth.metrics.bootstrap import to_json
from firth.utils.figures import DataTable, Figure, KeyNumber, KeyNumbers

STRATEGY = "lora:rank=8"


def lora(workspace: Workspace) -> Findings:
    """Fine-tune for sentiment with LoRA and in full: parameters, accuracy, time."""
    labels = workspace.budget.lora_labels
    full, _ = sentiment_run(workspace, PRETRAINED, labels)
    options = sentiment_options(workspace, labels, strategy=STRATEGY)
    small = workspace.finetune("sentiment-lora", options)
    fraction = small.trainable_parameters / full.trainable_parameters
    facts = KeyNumbers(
        (
            KeyNumber(f"{fraction:.1%}", "of the parameters of full fine-tuning are trained"),
            KeyNumber(
                f"{small.saved_bytes / 1024:,.0f} KB",
                "on disk, instead of "
                f"{full.saved_bytes / 1024:,.0f} KB: one small file for each task",
            ),
        )
    )
    runs = {"full fine-tuning": full, f"LoRA ({STRATEGY.partition(':')[2]})": small}
    values = {
        name: {
            "trainable_parameters": run.trainable_parameters,
            "accuracy": to_json(run.metrics["accuracy"]),
            "seconds": run.seconds,
            "saved_bytes": run.saved_bytes,
        }
        for name, run in runs.items()
    }
    figures: list[Figure] = [facts, _table(runs, labels)]
    return Findings(figures, values, [workspace.finetune_command("sentiment-lora", options)])


def _table(runs: dict[str, FinetuneResult], labels: int) -> DataTable:
    rows = tuple(
        (
            name,
            f"{run.trainable_parameters:,}",
            f"{run.metrics['accuracy'].value:.1%}",
            interval(run.metrics["accuracy"]),
            f"{run.seconds:.0f} s",
        )
        for name, run in runs.items()
    )
    columns = ("", "trained parameters", "accuracy", "95 % interval", "time")
    return DataTable(f"Sentiment with {labels} labels", columns, rows)
