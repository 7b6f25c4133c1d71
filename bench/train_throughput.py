"""Pre-training: tokens a second, Firth's loop against a loop around transformers' models.

Both sides have the same shape, the same random tokens, AdamW (fused), clipping at 1, and the same
dropout; both in bf16 autocast over fp32 weights unless --fp32. The peer is `BertForMaskedLM`,
`GPT2LMHeadModel` or `T5ForConditionalGeneration` with its own loss over all positions, compiled
whole by torch.compile, and eager. Firth is its own loop (`firth.training.loop`), with blocks
compiled on a GPU. MFU counts the products of matrices that Firth's side computes, against one large
product measured in the same run. In fp32 without dropout, one batch must have the same loss on both
sides: that is checked first, with the peer's weights in both.

    python bench/train_throughput.py                  # the GPU where there is one
    python bench/train_throughput.py --rows bert-128,gpt2 --dropout 0.1
    python bench/train_throughput.py --device cpu
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sides import in_turns, machine, synchronise

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

MASK = 4  # ids of special tokens, the same in every vocabulary here
SPECIAL = 5
STEPS = {"cuda": 10, "cpu": 2}  # of one turn
BATCHES = 4  # different ones, in turn


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: a family, its shape, and the sequences of a step."""

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
        length=568,  # 512 tokens are left for the encoder, and 114 make the decoder's
        shape=dict(d_model=768, d_ff=3072, d_kv=64, num_layers=12, num_heads=12, vocab_size=32_128),
    ),
    "bert-4x256": Row(family="bert", sequences=32, length=128, shape={**SMALL, "vocab_size": 8192}),
}
ON_GPU, ON_CPU = ("bert-128", "bert-512", "gpt2", "t5-base"), ("bert-4x256",)


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    settings = TrainingConfig(
        steps=1 << 30,
        precision="fp32" if options.fp32 else "auto",
        schedule="constant",
        validate_every=1.0,
        optimizer=OptimizerConfig(learning_rate=1e-4, beta2=0.999, weight_decay=0.01),
    )
    settings = resolve_auto_settings(settings, device_spec(device))
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else "highest")
    peak = measure_peak_flops(
        device, torch.bfloat16 if settings.precision == "bf16" else torch.float32
    )
    print(f"{machine(device)}, transformers {transformers.__version__}, {settings.precision},")
    print(f"dropout {options.dropout} (attention 0); a large product: {peak / 1e12:.3g} TFLOP/s")
    print("row         tokens   Firth/s    MFU  eager/s  ratio  compiled/s  ratio")
    ratios = []
    for name in options.rows:
        row = ROWS[name]
        with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
            found = compare(row, options, device, settings, Path(folder))
        tokens = row.sequences * row.length
        rates = {side: tokens / second for side, second in found.items()}
        own = rates.pop("firth")
        config = replace(opened(row, options.dropout)[1].config)
        used = training_flops(config, tokens, row.length, 0.15 if row.family == "bert" else 1.0)
        line = f"{name:10} {tokens:7,} {own:9,.0f} {own / tokens * used / peak:6.1%}"
        for side in ("eager", "compiled"):
            other = rates.get(side)
            line += f" {other:9,.0f} {own / other:5.2f}x" if other else " " * 17
        print(line, flush=True)
        ratios.append(own / rates.get("compiled", rates.get("eager", own)))
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def compare(
    row: Row,
    options: argparse.Namespace,
    device: torch.device,
    settings: TrainingConfig,
    folder: Path,
) -> dict[str, float]:
    """Seconds of a step on each side."""
    batches = [made(row, seed) for seed in range(BATCHES)]
    check(row, batches[0], folder)
    steps = STEPS[device.type]
    peer, network = opened(row, options.dropout)
    sides: dict[str, Callable[[], object]] = {
        "firth": firth_steps(network, batches, settings, device, folder / "run", steps)
    }
    inputs = [tensors(row, batch, device) for batch in batches]
    if not options.no_eager:
        sides["eager"] = peer_steps(peer, inputs, settings, device, steps)
    if not options.no_compiled:
        again = opened(row, options.dropout)[0]
        sides["compiled"] = peer_steps(again, inputs, settings, device, steps, compiled=True)
    found = in_turns(sides, device, warm=1, repeats=options.repeats)
    return {name: took / steps for name, took in found.items()}


# --- the same work ------------------------------------------------------------------------------


def made(row: Row, seed: int) -> Batch:
    """A batch of random tokens, with what is hidden in it."""
    random, size = np.random.default_rng(seed), row.shape["vocab_size"]
    sentinels = np.arange(size - 1, size - 101, -1)
    special = np.zeros(size, dtype=np.bool_)
    special[:SPECIAL] = True
    special[sentinels if row.family == "t5" else []] = True
    everywhere = np.ones(size, dtype=np.bool_)
    ids = {"pad": 0, "eos": 1, "mask": MASK}
    vocabulary = Vocabulary(ids, sentinels, special, everywhere, everywhere)
    tokens = random.integers(SPECIAL, size - 100, size=(row.sequences, row.length))
    keys = random.integers(1 << 62, size=row.sequences).astype(np.uint64)
    packed = PackedSequences.join(list(tokens), keys)
    if row.family == "t5":
        return span_corruption(packed, vocabulary)
    return masked(packed, vocabulary) if row.family == "bert" else causal(packed)


def tensors(row: Row, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """The same batch as the peer takes it."""

    def rows(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).view(row.sequences, -1).to(device)

    [wanted] = batch.predictions.values()
    if row.family == "t5":
        return {"input_ids": rows(batch.inputs.tokens), "labels": rows(wanted.targets)}
    if row.family == "gpt2":
        return {"input_ids": rows(batch.inputs.tokens), "labels": rows(batch.inputs.tokens)}
    labels = np.full(len(batch.inputs.tokens), -100)
    labels[wanted.positions] = wanted.targets
    return {"input_ids": rows(batch.inputs.tokens), "labels": rows(labels)}


def opened(row: Row, dropout: float) -> tuple[Any, Transformer]:
    """The peer's model, and the same as Firth reads it from the peer's files."""
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
        return peer, read_network(Path(folder))


def check(row: Row, batch: Batch, folder: Path) -> None:
    """One batch, in fp32 and without dropout, has the same loss on both sides."""
    small = replace(row, sequences=2, length=min(row.length, 64))
    batch, (peer, network) = made(small, 0), opened(row, 0.0)
    with torch.no_grad():
        theirs = float(peer.eval()(**tensors(small, batch, torch.device("cpu"))).loss)
        [term] = TrainingModule(network.eval())(batch).values()
    own = float(term.sum) / term.count
    if not abs(own - theirs) < 1e-4 * theirs:
        raise SystemExit(f"The two sides do not compute the same: {own} and {theirs}.")


# --- the two sides ------------------------------------------------------------------------------


def firth_steps(
    network: Transformer,
    batches: list[Batch],
    settings: TrainingConfig,
    device: torch.device,
    run: Path,
    steps: int,
) -> Callable[[], object]:
    """So many steps of Firth's loop."""
    trainee = TrainingModule(network.to(device))
    run.mkdir()
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(trainee, settings, lambda *_: iter(()), log, Callbacks())
    trainee.train()
    planned = [PlannedBatch(batch, SamplerPosition(), batch.tokens) for batch in batches]

    def work() -> None:
        for i in range(steps):
            loop.train_step(planned[i % len(planned)])
        loop.wait_for_pending()

    return work


def peer_steps(
    model: Any,
    inputs: list[dict[str, torch.Tensor]],
    settings: TrainingConfig,
    device: torch.device,
    steps: int,
    compiled: bool = False,
) -> Callable[[], object]:
    """So many steps of a plain loop around the peer's model."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01, fused=True
    )
    called = torch.compile(model) if compiled else model

    def work() -> None:
        for i in range(steps):
            half = settings.precision == "bf16"
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = called(**inputs[i % len(inputs)]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronise(device)

    return work


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=usual)
    parser.add_argument("--rows", type=lambda text: text.split(","), help=",".join(ROWS))
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--fp32", action="store_true", help="both sides in single precision")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--no-compiled", action="store_true")
    options = parser.parse_args()
    options.rows = options.rows or list(ON_GPU if options.device == "cuda" else ON_CPU)
    return options


if __name__ == "__main__":
    main()
