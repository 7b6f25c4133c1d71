"""Pre-training speed in tokens/s: Firth's training loop against a loop around transformers.

Both have the same shape, random tokens, dropout, fused AdamW and clipping at 1, in bf16 autocast
over fp32 weights unless --fp32. The peer is `BertForMaskedLM`, `GPT2LMHeadModel` or
`T5ForConditionalGeneration` with its own loss over all positions, eager and compiled as a whole.
Firth's loop is `firth.training.loop`, with blocks compiled on a GPU. Before the timing, the loss of
one batch is checked to be equal in fp32 without dropout, with the same weights. MFU counts
the matrix products that Firth computes, relative to one large matrix product measured in the same
run. All run in turn; the last line is the geometric mean of Firth's speed divided by the compiled
peer's (or the eager one's with --no-compiled).

    python bench/train_throughput.py                  # the GPU where there is one
    python bench/train_throughput.py --rows bert-128,gpt2 --dropout 0.1
    python bench/train_throughput.py --device cpu
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sides import machine, median_seconds, synchronise

from firth.data.packing import PackedSequences
from firth.data.sampler import SamplerPosition
from firth.formats.huggingface.directory import read_network
from firth.models.flops import measure_peak_flops, training_flops
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.objectives.causal import causal
from firth.objectives.denoising import span_corruption
from firth.objectives.masked import masked
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.config import TrainingConfig
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.optim import OptimizerConfig
from firth.training.runtime import resolve_auto_settings
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec

MASK_ID = 4
NUM_SPECIAL = 5  # ids 0 to 4 are special tokens
STEPS = {"cuda": 10, "cpu": 2}  # training steps per timed run
NUM_BATCHES = 4  # different batches, used in rotation


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: a model family, its shape, and the batch of a step."""

    family: str
    sequences: int
    length: int
    shape: dict[str, int]


BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
SMALL = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
ROWS = {
    "bert-128": Row(family="bert", sequences=256, length=128, shape={**BASE, "vocab_size": 30_522}),
    "bert-512": Row(family="bert", sequences=64, length=512, shape={**BASE, "vocab_size": 30_522}),
    "gpt2": Row(
        family="gpt2",
        sequences=32,
        length=1024,
        shape=dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50_257),
    ),
    "t5-base": Row(
        family="t5",
        sequences=64,
        length=568,  # gives 512 encoder and 114 decoder tokens
        shape=dict(d_model=768, d_ff=3072, d_kv=64, num_layers=12, num_heads=12, vocab_size=32_128),
    ),
    "bert-4x256": Row(family="bert", sequences=32, length=128, shape={**SMALL, "vocab_size": 8192}),
}
GPU_ROWS, CPU_ROWS = ("bert-128", "bert-512", "gpt2", "t5-base"), ("bert-4x256",)


def main() -> None:
    """Time each row and print tokens/s, MFU and ratios."""
    options = _options()
    device = torch.device(options.device)
    settings = TrainingConfig(
        steps=1 << 30,
        precision="fp32" if options.fp32 else "auto",
        schedule="constant",
        validate_every=1.0,
        optimizer=OptimizerConfig(learning_rate=1e-4, beta2=0.999, weight_decay=0.01),
    )
    settings = resolve_auto_settings(settings, math.inf, device_spec(device))  # a long run
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")
    peak_flops = measure_peak_flops(
        device, torch.bfloat16 if settings.precision == "bf16" else torch.float32
    )
    print(f"{machine(device)}, transformers {transformers.__version__}, {settings.precision},")
    print(
        f"dropout {options.dropout} (attention 0); "
        f"large matrix product: {peak_flops / 1e12:.3g} TFLOP/s"
    )
    print("tokens/s:\nrow    tokens/step     Firth    MFU     eager  ratio  compiled  ratio")
    ratios = []
    for name in options.rows:
        row = ROWS[name]
        with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
            times = compare_steps(row, options, device, settings, Path(folder))
        tokens = row.sequences * row.length
        speeds = {system: tokens / seconds for system, seconds in times.items()}
        firth_speed = speeds.pop("firth")
        config = build_models(row, options.dropout)[1].config
        flops = training_flops(config, tokens, row.length, 0.15 if row.family == "bert" else 1.0)
        line = (
            f"{name:10} {tokens:7,} {firth_speed:9,.0f} "
            f"{firth_speed / tokens * flops / peak_flops:6.1%}"
        )
        for system in ("eager", "compiled"):
            peer_speed = speeds.get(system)
            line += (
                f" {peer_speed:9,.0f} {firth_speed / peer_speed:5.2f}x" if peer_speed else " " * 17
            )
        print(line, flush=True)
        ratios.append(firth_speed / speeds.get("compiled", speeds.get("eager", firth_speed)))
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def compare_steps(
    row: Row,
    options: argparse.Namespace,
    device: torch.device,
    settings: TrainingConfig,
    folder: Path,
) -> dict[str, float]:
    """Check the loss and time all systems in turn; return their seconds per step."""
    batches = [make_batch(row, seed) for seed in range(NUM_BATCHES)]
    check_equal_loss(row)
    steps = STEPS[device.type]
    peer, network = build_models(row, options.dropout)
    functions: dict[str, Callable[[], object]] = {
        "firth": make_firth_steps(network, batches, settings, device, folder / "run", steps)
    }
    inputs = [make_peer_inputs(row, batch, device) for batch in batches]
    if not options.no_eager:
        functions["eager"] = make_peer_steps(peer, inputs, settings, device, steps)
    if not options.no_compiled:
        second_peer = build_models(row, options.dropout)[0]
        functions["compiled"] = make_peer_steps(
            second_peer, inputs, settings, device, steps, compiled=True
        )
    times = median_seconds(functions, device, warmup=1, repeats=options.repeats)
    return {name: seconds / steps for name, seconds in times.items()}


# --- models and batches -------------------------------------------------------------------------


def make_batch(row: Row, seed: int) -> Batch:
    """Sample random tokens and apply the family's objective: MLM, CLM or span corruption."""
    rng, vocab_size = np.random.default_rng(seed), row.shape["vocab_size"]
    sentinels = np.arange(vocab_size - 1, vocab_size - 101, -1)
    special = np.zeros(vocab_size, dtype=np.bool_)
    special[:NUM_SPECIAL] = True
    special[sentinels if row.family == "t5" else []] = True
    all_tokens = np.ones(vocab_size, dtype=np.bool_)
    ids = {"pad": 0, "eos": 1, "mask": MASK_ID}
    vocabulary = Vocabulary(ids, sentinels, special, all_tokens, all_tokens)
    tokens = rng.integers(NUM_SPECIAL, vocab_size - 100, size=(row.sequences, row.length))
    keys = rng.integers(1 << 62, size=row.sequences).astype(np.uint64)
    packed = PackedSequences.join(list(tokens), keys)
    if row.family == "t5":
        return span_corruption(packed, vocabulary)
    return masked(packed, vocabulary) if row.family == "bert" else causal(packed)


def make_peer_inputs(row: Row, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """Convert a batch to the peer's inputs."""

    def to_rows(values: Any) -> torch.Tensor:
        """Reshape packed values to one row per sequence, on the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).view(row.sequences, -1).to(device)

    [targets] = batch.predictions.values()
    if row.family == "t5":
        return {"input_ids": to_rows(batch.inputs.tokens), "labels": to_rows(targets.targets)}
    if row.family == "gpt2":
        return {"input_ids": to_rows(batch.inputs.tokens), "labels": to_rows(batch.inputs.tokens)}
    labels = np.full(len(batch.inputs.tokens), -100)
    labels[targets.positions] = targets.targets
    return {"input_ids": to_rows(batch.inputs.tokens), "labels": to_rows(labels)}


def build_models(row: Row, dropout: float) -> tuple[Any, Transformer]:
    """Build the peer's model with random weights and load its saved files with Firth."""
    torch.manual_seed(0)
    if row.family == "bert":
        config = transformers.BertConfig(
            **row.shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0
        )
        peer = transformers.BertForMaskedLM(config)
    elif row.family == "gpt2":
        config = transformers.GPT2Config(
            **row.shape, embd_pdrop=dropout, resid_pdrop=dropout, attn_pdrop=0.0
        )
        peer = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.T5Config(
            **row.shape, dropout_rate=dropout, decoder_start_token_id=0, pad_token_id=0
        )
        peer = transformers.T5ForConditionalGeneration(config)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        peer.save_pretrained(folder)
        network = read_network(Path(folder))
    assert isinstance(network, Transformer)
    return peer, network


def check_equal_loss(row: Row) -> None:
    """Exit if the losses of both sides differ on a batch, in fp32 and without dropout."""
    small = replace(row, sequences=2, length=min(row.length, 64))
    batch, (peer, network) = make_batch(small, 0), build_models(row, 0.0)
    with torch.no_grad():
        peer_loss = float(peer.eval()(**make_peer_inputs(small, batch, torch.device("cpu"))).loss)
        [term] = TrainingModule(network.eval())(batch).values()
    firth_loss = float(term.sum) / term.count
    if not abs(firth_loss - peer_loss) < 1e-4 * peer_loss:
        raise SystemExit(f"The losses of Firth and the peer differ: {firth_loss} and {peer_loss}.")


# --- training steps -----------------------------------------------------------------------------


def make_firth_steps(
    network: Transformer,
    batches: list[Batch],
    settings: TrainingConfig,
    device: torch.device,
    run: Path,
    steps: int,
) -> Callable[[], object]:
    """Return a function that takes `steps` training steps with Firth's loop."""
    module = TrainingModule(network.to(device))
    run.mkdir()
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(module, settings, lambda *_: iter(()), log, Callbacks())
    module.train()
    planned = [PlannedBatch(batch, SamplerPosition(), batch.tokens) for batch in batches]

    def train() -> None:
        for i in range(steps):
            loop.train_step(planned[i % len(planned)])
        loop.wait_for_pending()

    return train


def make_peer_steps(
    model: Any,
    inputs: list[dict[str, torch.Tensor]],
    settings: TrainingConfig,
    device: torch.device,
    steps: int,
    compiled: bool = False,
) -> Callable[[], object]:
    """Return a function that takes `steps` training steps with the peer's model."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01, fused=True
    )
    forward = torch.compile(model) if compiled else model

    def train() -> None:
        for i in range(steps):
            use_bf16 = settings.precision == "bf16"
            with torch.autocast(device.type, torch.bfloat16, enabled=use_bf16):
                loss = forward(**inputs[i % len(inputs)]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronise(device)

    return train


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default_device, help="cuda or cpu (default: cuda if available)"
    )
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), help=f"comma-separated, of {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="dropout outside attention (default: 0)"
    )
    parser.add_argument("--fp32", action="store_true", help="train both in fp32")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each system (default: 5)"
    )
    parser.add_argument("--no-eager", action="store_true", help="do not measure the eager peer")
    parser.add_argument(
        "--no-compiled", action="store_true", help="do not measure the compiled peer"
    )
    options = parser.parse_args()
    options.rows = options.rows or list(GPU_ROWS if options.device == "cuda" else CPU_ROWS)
    return options


if __name__ == "__main__":
    main()
