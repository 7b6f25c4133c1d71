"""Fine-tuning: real tokens a second, Firth's loop against loops around transformers' BERT.

A classifier of BERT-base's shape learns from sequences of log-normal length (median 67, at most
512): in the peer's batches, padded to their longest, about four of five places are padding. Firth
computes the real tokens alone. On a GPU both sides have bf16 autocast, fused AdamW, clipping at 1
and no dropout; the peer is eager, compiled (dynamic shapes), and eager with batches grouped by
length, which no longer draws them at random. On the CPU the peer is `transformers.Trainer` in its
own precision, and Firth has its own default. First losses are compared in fp32.

    python bench/finetune_throughput.py
    python bench/finetune_throughput.py --device cpu
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sides import in_turns, machine, synchronise

from firth.data.packing import PackedSequences
from firth.data.sampler import SamplerPosition
from firth.formats.huggingface.directory import read_network
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, PredictionTargets
from firth.training.config import FinetuneTrainingConfig
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.runtime import resolve_auto_settings
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec

MEDIAN, SPREAD, LONGEST = 67, 0.86, 512
SHAPE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
BATCH = {"cuda": 64, "cpu": 16}
BATCHES = {"cuda": 24, "cpu": 3}
RATE = 2e-5
PEERS = {"eager": False, "compiled": True, "by-length": False}  # whether torch.compile is used

Sequences = list[np.ndarray[Any, Any]]


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    random = np.random.default_rng(0)
    count = BATCH[device.type] * BATCHES[device.type]
    lengths = np.exp(random.normal(np.log(MEDIAN), SPREAD, count)).clip(4, LONGEST).astype(int)
    texts = [random.integers(1000, 30_000, size=length) for length in lengths]
    labels = random.integers(2, size=count)
    size = BATCH[device.type]
    parts = [np.arange(i, i + size) for i in range(0, count, size)]
    by_length = np.array_split(np.argsort(lengths), len(parts))
    real, asked = lengths.sum(), sum(len(p) * lengths[p].max() for p in parts)
    print(f"{machine(device)}, transformers {transformers.__version__}")
    print(f"{count} sequences, {real:,} tokens; padded to the longest of {size}: {asked:,}")
    check(texts[:4], labels[:4])
    settings = resolve_auto_settings(
        FinetuneTrainingConfig(steps=1 << 30).with_overrides(
            {"learning_rate": RATE, "compile": options.compile, "cuda_graphs": options.cuda_graphs}
        ),
        device_spec(device),
    )
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        run = Path(folder) / "run"
        batches = [batch([texts[i] for i in part], labels[part]) for part in parts]
        sides: dict[str, Callable[[], object]] = {
            "firth": firth_epoch(batches, settings, device, run)
        }
        peers = ("trainer",) if device.type == "cpu" else tuple(PEERS)
        for name in options.peers or peers:
            if name == "trainer":
                sides[name] = trainer_epoch(texts, labels, size, Path(folder) / name)
                continue
            chosen = by_length if name == "by-length" else parts
            inputs = [padded([texts[i] for i in p], labels[p], device) for p in chosen]
            sides[name] = peer_epoch(inputs, device, compiled=PEERS[name])
        found = in_turns(sides, device, warm=2, repeats=options.repeats)  # shapes are recorded
    rates = {name: real / took for name, took in found.items()}
    for name, rate in rates.items():
        print(f"{name:10} {rate:10,.0f} real tokens/s   {rates['firth'] / rate:5.2f}x")
    own = rates.pop("firth")
    print(f"ratio: {own / max(rates.values()):.2f}")


# --- the same work ------------------------------------------------------------------------------


def opened() -> tuple[Any, Transformer]:
    """BERT with a head for two labels, and the same as Firth reads it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2
    )
    peer = transformers.BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        return peer, read_network(Path(folder))


def batch(texts: Sequences, labels: np.ndarray[Any, Any]) -> Batch:
    """Sequences end to end, each asked for its label."""
    inputs = PackedSequences.join(texts, np.zeros(len(texts), dtype=np.uint64))
    wanted = PredictionTargets(np.arange(len(texts)), labels)
    return Batch(inputs, inputs.lengths, {"label": wanted})


def padded(
    texts: Sequences, labels: np.ndarray[Any, Any], device: torch.device
) -> dict[str, torch.Tensor]:
    """Sequences as rows, padded to the longest."""
    longest = max(map(len, texts))
    ids = np.stack([np.pad(text, (0, longest - len(text))) for text in texts])
    mask = np.stack([np.arange(longest) < len(text) for text in texts]).astype(int)
    found = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: torch.from_numpy(values).to(device) for name, values in found.items()}


def check(texts: Sequences, labels: np.ndarray[Any, Any]) -> None:
    """One batch in fp32 has the same loss on both sides."""
    peer, network = opened()
    with torch.no_grad():
        theirs = float(peer.eval()(**padded(texts, labels, torch.device("cpu"))).loss)
        [term] = TrainingModule(network.eval())(batch(texts, labels)).values()
    if not abs(float(term.sum) / term.count - theirs) < 1e-4:
        raise SystemExit(f"The two sides do not compute the same: {term.sum} and {theirs}.")


# --- the sides ----------------------------------------------------------------------------------


def firth_epoch(
    batches: Sequence[Batch], settings: FinetuneTrainingConfig, device: torch.device, run: Path
) -> Callable[[], object]:
    """All batches once, through Firth's loop."""
    network = opened()[1].to(device)
    trainee = TrainingModule(network)
    run.mkdir()
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(trainee, settings, lambda *_: iter(()), log, Callbacks())
    trainee.train()

    def work() -> None:
        for made in batches:
            loop.train_step(PlannedBatch(made, SamplerPosition(), made.tokens))
        loop.wait_for_pending()

    return work


def peer_epoch(
    inputs: Sequence[dict[str, torch.Tensor]], device: torch.device, compiled: bool
) -> Callable[[], object]:
    """All batches once, through a plain loop around the peer's model."""
    model = opened()[0].to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    called = torch.compile(model, dynamic=True) if compiled else model

    def work() -> None:
        for given in inputs:
            with torch.autocast(device.type, torch.bfloat16):
                loss = called(**given).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronise(device)

    return work


def trainer_epoch(
    texts: Sequences, labels: np.ndarray[Any, Any], size: int, out: Path
) -> Callable[[], object]:
    """One epoch of transformers' Trainer; building it is not counted, it is done beforehand."""
    rows = [
        {"input_ids": text.tolist(), "attention_mask": [1] * len(text), "labels": int(label)}
        for text, label in zip(texts, labels, strict=True)
    ]

    def collate(some: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        chosen = [np.array(row["input_ids"]) for row in some]
        given = padded(chosen, np.array([row["labels"] for row in some]), torch.device("cpu"))
        return given

    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=1,
        per_device_train_batch_size=size,
        learning_rate=RATE,
        weight_decay=0.01,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    model = opened()[0]

    def work() -> None:
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, data_collator=collate
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()

    return work


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual)
    parser.add_argument("--repeats", type=int, default=3)
    known = ", ".join((*PEERS, "trainer"))
    parser.add_argument("--peers", type=lambda text: text.split(","), help=f"some of {known}")
    parser.add_argument("--compile", default="auto", help="of Firth's blocks: auto, true or false")
    parser.add_argument("--cuda-graphs", default="auto", help="of the same")
    return parser.parse_args()


if __name__ == "__main__":
    main()
