"""Fine-tuning speed: Firth's training loop against transformers' BERT, in real tokens per second.

A classifier with BERT-base's shape is trained on random sequences of log-normal length (median 67,
at most 512 tokens). In the peer's batches, padded to their longest sequence, about four of five
positions are padding; Firth computes the real tokens only. On a GPU both have bf16 autocast, fused
AdamW, clipping at 1 and no dropout; the peer is eager, compiled (dynamic shapes), and eager with
batches of similar lengths, which are no longer random. On a CPU the peer is `transformers.Trainer`
with its default precision, and Firth has its own default. First, the fp32 loss of one batch is
checked to be equal. All run in turn; the ratio is Firth's speed divided by the fastest peer's.

    python bench/finetune_throughput.py
    python bench/finetune_throughput.py --device cpu
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sides import machine, median_seconds, synchronise
from trainer import trainer_arguments

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

MEDIAN_LENGTH, LOG_LENGTH_STD, MAX_LENGTH = 67, 0.86, 512
SHAPE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
BATCH_SIZE = {"cuda": 64, "cpu": 16}
NUM_BATCHES = {"cuda": 24, "cpu": 3}
LEARNING_RATE = 2e-5
# Name -> whether torch.compile is used.
PEERS = {"eager": False, "compiled": True, "by-length": False}

Sequences = list[np.ndarray[Any, Any]]


def main() -> None:
    """Check the loss, time an epoch of each system in turn, and print the speeds."""
    options = _options()
    device = torch.device(options.device)
    rng = np.random.default_rng(0)
    num_texts = BATCH_SIZE[device.type] * NUM_BATCHES[device.type]
    lengths = (
        np.exp(rng.normal(np.log(MEDIAN_LENGTH), LOG_LENGTH_STD, num_texts))
        .clip(4, MAX_LENGTH)
        .astype(int)
    )
    texts = [rng.integers(1000, 30_000, size=length) for length in lengths]
    labels = rng.integers(2, size=num_texts)
    batch_size = BATCH_SIZE[device.type]
    batch_indices = [np.arange(i, i + batch_size) for i in range(0, num_texts, batch_size)]
    by_length = np.array_split(np.argsort(lengths), len(batch_indices))
    real_tokens, padded_tokens = (
        lengths.sum(),
        sum(len(indices) * lengths[indices].max() for indices in batch_indices),
    )
    print(f"{machine(device)}, transformers {transformers.__version__}")
    print(
        f"{num_texts} sequences, {real_tokens:,} tokens; "
        f"padded to the longest of {batch_size}: {padded_tokens:,}"
    )
    check_equal_loss(texts[:4], labels[:4])
    settings = resolve_auto_settings(
        FinetuneTrainingConfig(steps=1 << 30).with_overrides(
            {
                "learning_rate": LEARNING_RATE,
                "compile": options.compile,
                "cuda_graphs": options.cuda_graphs,
            }
        ),
        math.inf,  # a long run
        device_spec(device),
    )
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        run = Path(folder) / "run"
        batches = [
            make_batch([texts[i] for i in indices], labels[indices]) for indices in batch_indices
        ]
        functions: dict[str, Callable[[], object]] = {
            "firth": make_firth_epoch(batches, settings, device, run)
        }
        peers = ("trainer",) if device.type == "cpu" else tuple(PEERS)
        for name in options.peers or peers:
            if name == "trainer":
                functions[name] = make_trainer_epoch(
                    texts, labels, batch_size, Path(folder) / name, device
                )
                continue
            chosen_indices = by_length if name == "by-length" else batch_indices
            inputs = [
                pad_batch([texts[i] for i in indices], labels[indices], device)
                for indices in chosen_indices
            ]
            functions[name] = make_peer_epoch(inputs, device, compiled=PEERS[name])
        # CUDA graphs are captured during the warm-up.
        times = median_seconds(functions, device, warmup=2, repeats=options.repeats)
    speeds = {name: real_tokens / seconds for name, seconds in times.items()}
    for name, speed in speeds.items():
        print(f"{name:10} {speed:10,.0f} real tokens/s   {speeds['firth'] / speed:5.2f}x")
    firth_speed = speeds.pop("firth")
    print(f"ratio: {firth_speed / max(speeds.values()):.2f}")


# --- models and batches -------------------------------------------------------------------------


def build_models() -> tuple[Any, Transformer]:
    """Build BERT with a two-label head, and load the same weights as Firth's network."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2
    )
    peer = transformers.BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder))
    assert isinstance(network, Transformer)
    return peer, network


def make_batch(texts: Sequences, labels: np.ndarray[Any, Any]) -> Batch:
    """Pack sequences without padding, with a classification target for each."""
    inputs = PackedSequences.join(texts, np.zeros(len(texts), dtype=np.uint64))
    targets = PredictionTargets(np.arange(len(texts)), labels)
    return Batch(inputs, inputs.lengths, {"label": targets})


def pad_batch(
    texts: Sequences, labels: np.ndarray[Any, Any], device: torch.device
) -> dict[str, torch.Tensor]:
    """Pad sequences to the longest; return the peer's inputs on the device."""
    longest = max(map(len, texts))
    ids = np.stack([np.pad(text, (0, longest - len(text))) for text in texts])
    mask = np.stack([np.arange(longest) < len(text) for text in texts]).astype(int)
    arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: torch.from_numpy(values).to(device) for name, values in arrays.items()}


def check_equal_loss(texts: Sequences, labels: np.ndarray[Any, Any]) -> None:
    """Exit if the fp32 losses of both models differ on one batch."""
    peer, network = build_models()
    with torch.no_grad():
        peer_loss = float(peer.eval()(**pad_batch(texts, labels, torch.device("cpu"))).loss)
        [term] = TrainingModule(network.eval())(make_batch(texts, labels)).values()
    if not abs(float(term.sum) / term.count - peer_loss) < 1e-4:
        raise SystemExit(f"The losses differ: sum {term.sum} and mean {peer_loss}.")


# --- training epochs ----------------------------------------------------------------------------


def make_firth_epoch(
    batches: Sequence[Batch], settings: FinetuneTrainingConfig, device: torch.device, run: Path
) -> Callable[[], object]:
    """Return a function that trains on all batches once with Firth's loop."""
    network = build_models()[1].to(device)
    module = TrainingModule(network)
    run.mkdir()
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(module, settings, lambda *_: iter(()), log, Callbacks())
    module.train()

    def train() -> None:
        for batch in batches:
            loop.train_step(PlannedBatch(batch, SamplerPosition(), batch.tokens))
        loop.wait_for_pending()

    return train


def make_peer_epoch(
    inputs: Sequence[dict[str, torch.Tensor]], device: torch.device, compiled: bool
) -> Callable[[], object]:
    """Return a function that trains the transformers model on all batches once."""
    model = build_models()[0].to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True
    )
    forward = torch.compile(model, dynamic=True) if compiled else model

    def train() -> None:
        for batch in inputs:
            with torch.autocast(device.type, torch.bfloat16):
                loss = forward(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronise(device)

    return train


def make_trainer_epoch(
    texts: Sequences,
    labels: np.ndarray[Any, Any],
    batch_size: int,
    out: Path,
    device: torch.device,
) -> Callable[[], object]:
    """Return a function that builds a Trainer and runs one epoch, on a GPU in bf16 autocast."""
    rows = [
        {"input_ids": text.tolist(), "attention_mask": [1] * len(text), "labels": int(label)}
        for text, label in zip(texts, labels, strict=True)
    ]

    def collate(examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad a list of examples."""
        sequences = [np.array(row["input_ids"]) for row in examples]
        inputs = pad_batch(
            sequences, np.array([row["labels"] for row in examples]), torch.device("cpu")
        )
        return inputs

    arguments = trainer_arguments(
        out, device, epochs=1, batch_size=batch_size, learning_rate=LEARNING_RATE
    )
    model = build_models()[0]

    def train() -> None:
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, data_collator=collate
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()

    return train


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default_device, help="cuda or cpu (default: cuda if available)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed epochs of each system (default: 3)"
    )
    known = ", ".join((*PEERS, "trainer"))
    parser.add_argument(
        "--peers",
        type=lambda text: text.split(","),
        help=f"comma-separated, of {known} (default: on a GPU all but trainer, on a CPU trainer)",
    )
    parser.add_argument(
        "--compile",
        default="auto",
        help="compile Firth's blocks: auto, true, false (default: auto)",
    )
    parser.add_argument(
        "--cuda-graphs",
        default="auto",
        help="CUDA graphs for Firth: auto, true, false (default: auto)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
