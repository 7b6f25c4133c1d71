"""The model card of a run: a README.md made from `run.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.metrics.bootstrap import interval_text
from firth.objectives.registry import infill_format
from firth.training.run_directory import RUN
from firth.utils.files import atomic_file

CARD, LOSS_CURVE = "README.md", "loss.png"
EXPORTED = "\n## Exported with Firth\n"
USAGE_EXAMPLES = {  # by how the model fills in blanks
    "masks": 'model.fill("The dog [MASK] loudly.")',
    "whole": 'model.fill("The dog [MASK] loudly.")',
    "spans": 'model.generate("Once upon a <extra_id_0> there was a dog.")',
    "": 'model.embed(["The dog barked loudly."])',
}


def write_model_card(path: Path, values: Mapping[str, Any]) -> None:
    """Write the model card of a finished run: settings, data, metrics, usage."""
    summary, rows, body = CARDS[values["kind"]](path, values)
    rows |= _training_rows(values["job"])
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    lines = [
        f"# {path.resolve().name}",
        "",
        summary,
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        *body,
        "",
        f"The complete configuration of this run is in `{RUN}`. Made with {versions}.",
        "",
    ]
    with atomic_file(path / CARD) as file:
        file.write("\n".join(lines).encode())


def _training_rows(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows about optimizer and seed; a model that is fitted has options instead."""
    if "training" not in job:
        return {**job["objective_options"], "seed": job["seed"]}
    settings = job["training"]
    optimizer = settings["optimizer"]
    return {
        "optimizer": optimizer["optimizer"],
        "learning rate": f"{optimizer['learning_rate']:g}, {settings['schedule']}",
        "seed": settings["seed"],
    }


def _pretraining_card(
    path: Path, values: Mapping[str, Any]
) -> tuple[str, dict[str, Any], list[str]]:
    job, results = values["job"], values["results"]
    config, data = job["model"], values["data"]["shards"]
    rows = {
        "architecture": _architecture(config, results),
        "preset": job["preset"],
        "objective": job["objective"],
        "data": f"{data['path']} (SHA-256 of its index {data['sha256'][:12]}…)",
        "training": (f"{results['steps']:,} steps, " if results["steps"] else "")
        + f"{results['tokens']:,} tokens, {results['seconds'] / 60:.1f} minutes",
        "validation": ", ".join(f"{k} {v:.4g}" for k, v in results["validation"].items()) or "none",
    }
    if mixture := job.get("mixture"):
        rows["mixture"] = ", ".join(f"{name} {part:.1%}" for name, part in mixture.items())
    rows |= {name: parent["path"] for name, parent in values["parents"].items()}
    way, architecture = infill_format(job["objective"]), config["architecture"]
    example = USAGE_EXAMPLES[way]
    if architecture == "decoder" and way == "spans":
        example = 'model.fill("Once upon a ___ there was a dog.")'
    elif architecture == "decoder" or (architecture == "encoder-decoder" and not way):
        example = 'model.generate("Once upon a time")'
    usage = ["```python", "import firth", "", f'model = firth.load("{path}")', example, "```"]
    names = dict.fromkeys((job["preset"], job["objective"]))  # word vectors have one name for both
    summary = f"A model pre-trained with Firth ({', '.join(names)})."
    curve = [f"![loss]({LOSS_CURVE})", ""] if (path / LOSS_CURVE).is_file() else []
    return summary, rows, [*curve, *usage]


def _architecture(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Describe an architecture and its size; not every network has layers."""
    layers, parameters = config.get("num_layers"), f"{results['parameters']:,} parameters"
    if not layers:
        return f"{config['architecture']}, {parameters}"
    second = f" + {decoder}" if (decoder := config.get("num_decoder_layers")) else ""
    sizes = f"{layers} layers{second} of size {config['hidden_size']}"
    return f"{config['architecture']}, {sizes}, {parameters}"


def _finetuning_card(
    path: Path, values: Mapping[str, Any]
) -> tuple[str, dict[str, Any], list[str]]:
    job, results = values["job"], values["results"]
    rows = {
        "task": f"{job['task']} ({job['recipe']} recipe)",
        "from": " and ".join(parent["path"] for parent in values["parents"].values()),
        "strategy": f"{job['strategy']}: {results['trainable_parameters']:,} of "
        f"{results['parameters']:,} parameters trained ({results['trainable_fraction']:.2%})",
        "training set": describe_training_examples(results),
        "evaluated on": f"{results['n']:,} examples ({results['evaluated_on']})",
        "data": ", ".join(file["path"] for file in values["data"].values()),
        "training": f"{results['steps']:,} steps, {results['seconds']:.0f} seconds",
    }
    if labels := values["task"]["labels"]:
        rows["labels"] = ", ".join(labels)
    metrics = [
        f"| {name} | {metric['value']:.4f} | {interval_text(metric)} |"
        for name, metric in results["metrics"].items()
    ]
    table = ["| metric | value | 95 % confidence interval |", "|---|---|---|", *metrics]
    notes = [
        f"- {note}" for note in [*selection_note(results.get("selected_on", [])), *results["notes"]]
    ]
    usage = ["```bash", f"firth predict {path} --data FILE", "```"]
    summary = f"A model fine-tuned with Firth for {job['task']}."
    return summary, rows, [*table, "", *notes, "", *usage]


def write_export_card(
    out: Path, source: Path, name: str, auto_class: str, changes: Sequence[str]
) -> None:
    """Write the card of an exported model: that of its source, and what the export changed.

    `name` is the source as the user wrote it, `auto_class` the class of transformers that loads the
    model. The loss curve of a card is copied.
    """
    old = source / CARD
    card = old.read_text(encoding="utf-8", errors="replace") if old.is_file() else ""
    card = card.partition(EXPORTED)[0].rstrip("\n") or f"# {out.resolve().name}"
    if LOSS_CURVE in card and (curve := source / LOSS_CURVE).is_file():
        content = curve.read_bytes()
        with atomic_file(out / LOSS_CURVE) as file:
            file.write(content)
    classes = [auto_class] + ["AutoTokenizer"] * (out / "tokenizer.json").is_file()
    names = zip(("model", "tokenizer"), classes, strict=False)
    lines = [
        card,
        EXPORTED,
        " ".join(
            [f"`firth export` wrote this checkpoint for `transformers` from `{name}`.", *changes]
        ),
        "",
        "```python",
        f"from transformers import {', '.join(classes)}",
        "",
        *(f'{variable} = {cls}.from_pretrained("{out}")' for variable, cls in names),
        "```",
        "",
    ]
    with atomic_file(out / CARD) as file:
        file.write("\n".join(lines).encode())


CARDS = {"pretraining": _pretraining_card, "finetuning": _finetuning_card}


def selection_note(selected: Sequence[str]) -> list[str]:
    """Say what was selected on the examples of the metrics, if anything.

    >>> selection_note([])
    []
    >>> print(*selection_note(["checkpoint", "threshold"]))
    The checkpoint and threshold were selected on these examples, so the metrics are optimistic; \
evaluate the model on other examples, too.
    """
    if not selected:
        return []
    verb = "was" if len(selected) == 1 else "were"
    return [
        f"The {' and '.join(selected)} {verb} selected on these examples, so the metrics are "
        "optimistic; evaluate the model on other examples, too."
    ]


def describe_training_examples(results: Mapping[str, Any]) -> str:
    """Format the number of training examples and of their augmented variants.

    >>> describe_training_examples({"train": 60, "variants": 120})
    '60 examples and 120 variants of them'
    """
    variants = f" and {results['variants']:,} variants of them" if results["variants"] else ""
    return f"{results['train']:,} examples{variants}"
