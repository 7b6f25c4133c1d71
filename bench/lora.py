"""LoRA fine-tuning on one device: Firth against peft with transformers' Trainer.

A Llama-shaped decoder with 1.1 billion random weights and LoRA of rank 16 on all linear layers is
trained on instruction-like examples of log-normal length (median 200, at most 1,024 tokens), 16 in
a batch; the loss is that of the last two thirds of each example. All systems start with the same
weights and adapters. On a GPU the frozen weights are bf16, the adapters fp32, under bf16 autocast,
with fused AdamW and clipping at 1. Firth has the settings of `firth finetune --strategy lora` for
52,000 examples (as in Alpaca, Taori et al. 2023), and computes the real tokens only. The peers:

    trainer     `transformers.Trainer` with a peft model, batches padded to their longest example
    compiled    a loop around the same model: its layers and loss with torch.compile (dynamic
                shapes), padded batches on the device before the timing

Loss and gradient norm of a tiny model are checked to be equal in fp32 on the CPU, and the losses of
the first batch on the device. Systems run one after the other, alone in memory. Each trains two
epochs for compilation and CUDA graph capture, then those that are timed. Peak memory is that of the
whole run, with loading: of tensors, and reserved, which includes what CUDA graphs hold between
their replays; on a CPU, of the process. The ratios are Firth's speed divided by the peer's, and the
peer's memory divided by Firth's; the last lines are those to the best peer.

    python bench/lora.py
    python bench/lora.py --peers trainer --set compile=false
    python bench/lora.py --device cpu --tiny --steps 2 --repeats 1
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray
from sides import machine, measure_seconds, synchronise, with_changes
from trainer import trainer_arguments

from firth.adapt.apply import AppliedStrategy
from firth.adapt.lora import base_dtype, frozen_matrices
from firth.adapt.saving import load_adapter
from firth.data.sampler import SamplerPosition
from firth.formats.huggingface.directory import read_network
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.finetune_recipes import RECIPES, finetune_training_config
from firth.tasks.inputs import FramedSequence
from firth.tasks.registry import task_named
from firth.tasks.task import EncodedExample, TaskMetadata
from firth.training.config import FinetuneTrainingConfig
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.runtime import autocast, peak_memory, remove_graphs, reset_peak_memory
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec

MEDIAN_LENGTH, LOG_LENGTH_STD, MIN_LENGTH, MAX_LENGTH = 200, 0.7, 16, 1024
PROMPT_FRACTION = 1 / 3  # of an example: its tokens have no loss
BATCH_SIZE = 16
RUN_EXAMPLES = 52_000  # of the run whose settings Firth chooses
LEARNING_RATE = 1e-4
IGNORED = -100  # the label of tokens without a loss
WARMUP = 2  # epochs before the timed ones
GIB = 2**30

SHAPE: dict[str, Any] = dict(
    vocab_size=32_000,
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=8192,
)
TINY: dict[str, Any] = dict(
    vocab_size=512,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=160,
)
TARGETS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
LORA = peft.LoraConfig(
    r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
)

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Setup:
    """What all systems share: the saved model and adapter, the batches, and the device."""

    folder: Path  # with `model` and `adapter`
    batches: list[list[Ids]]  # the examples of each
    device: torch.device
    repeats: int  # timed epochs
    overrides: dict[str, str]  # of Firth's training settings


class Run(NamedTuple):
    """The loss of the first batch before training, and the median seconds of an epoch."""

    first_loss: float
    seconds: float


class Measurement(NamedTuple):
    """A run with its peak memory in bytes."""

    run: Run
    peak: int  # of tensors
    reserved: int  # by the allocator


def main() -> None:
    """Check the losses, train with each system, and print speed and memory."""
    options = _options()
    device, shape = torch.device(options.device), TINY if options.tiny else SHAPE
    systems = {name: SYSTEMS[name] for name in ("firth", *options.peers)}
    batches = sample_batches(options.steps, shape["vocab_size"])
    real_tokens = sum(len(ids) for examples in batches for ids in examples)
    padded = sum(len(examples) * max(map(len, examples)) for examples in batches)
    print(f"{machine(device)}, transformers {transformers.__version__}, peft {peft.__version__}")
    print(
        f"{options.steps} batches of {BATCH_SIZE} examples: {real_tokens:,} tokens; "
        f"padded to the longest of each batch: {padded:,}",
        flush=True,
    )
    transformers.utils.logging.disable_progress_bar()
    check_equal_gradients()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        setup = Setup(Path(name), batches, device, options.repeats, options.overrides)
        parameters, trainable = save_models(setup.folder, shape, device)
        print(f"{parameters:,} parameters, {trainable:,} of them trained", flush=True)
        measured = {name: measure(system, setup) for name, system in systems.items()}
    check_equal_losses({name: one.run.first_loss for name, one in measured.items()})
    report(measured, real_tokens)


def report(measured: dict[str, Measurement], real_tokens: int) -> None:
    """Print the table and the ratios to the best peers."""
    print("system     real tokens/s   ratio   peak GiB   ratio   reserved GiB")
    firth, *peers = measured.values()
    for name, (run, peak, reserved) in measured.items():
        print(
            f"{name:10} {real_tokens / run.seconds:13,.0f} {run.seconds / firth.run.seconds:6.2f}x "
            f"{peak / GIB:10.2f} {peak / firth.peak:6.2f}x {reserved / GIB:14.2f}"
        )
    if peers:
        print(f"memory ratio: {min(peer.peak for peer in peers) / firth.peak:.2f}")
        print(f"ratio: {min(peer.run.seconds for peer in peers) / firth.run.seconds:.2f}")


def measure(system: Callable[[Setup], Run], setup: Setup) -> Measurement:
    """Train with a system, alone in the device's memory."""
    gc.collect()
    torch.compiler.reset()
    on_gpu = setup.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(setup.device) if on_gpu else 0  # such as workspaces
    reset_peak_memory(setup.device)
    run = system(setup)
    peak = peak_memory(setup.device) - before
    reserved = torch.cuda.max_memory_reserved(setup.device) - before if on_gpu else peak
    return Measurement(run, peak, reserved)


# --- examples -----------------------------------------------------------------------------------


def sample_batches(num_batches: int, vocab_size: int) -> list[list[Ids]]:
    """Sample the token ids of batches of examples."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(MEDIAN_LENGTH), LOG_LENGTH_STD, num_batches * BATCH_SIZE))
    examples = [
        rng.integers(3, vocab_size, size=length)
        for length in lengths.clip(MIN_LENGTH, MAX_LENGTH).astype(int)
    ]
    return [examples[i : i + BATCH_SIZE] for i in range(0, len(examples), BATCH_SIZE)]


def prompt_length(ids: Ids) -> int:
    """Return the number of tokens of an example without a loss."""
    return int(PROMPT_FRACTION * len(ids))


def make_batch(examples: Sequence[Ids], config: ModelConfig) -> Batch:
    """Make one of Firth's batches, as the task `lm` does for dialogues."""
    items = [
        EncodedExample(
            (FramedSequence(ids, np.zeros_like(ids), 0, 0),),
            (np.arange(len(ids)) >= prompt_length(ids),),
        )
        for ids in examples
    ]
    return task_named("lm").batch(items, TaskMetadata(task="lm"), config)


def pad_batch(examples: Sequence[Ids]) -> dict[str, torch.Tensor]:
    """Pad examples to the longest; return the inputs of transformers' model."""
    shape = len(examples), max(map(len, examples))
    ids, mask, labels = np.zeros(shape, int), np.zeros(shape, int), np.full(shape, IGNORED)
    for row, example in enumerate(examples):
        begin, end = prompt_length(example), len(example)
        ids[row, :end], mask[row, :end], labels[row, begin:end] = example, 1, example[begin:]
    arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


# --- models -------------------------------------------------------------------------------------


def save_models(folder: Path, shape: dict[str, Any], device: torch.device) -> tuple[int, int]:
    """Save a model with random weights and an adapter; return all and the trained parameters.

    Weights are bf16 for a GPU, fp32 for a CPU. The adapter's matrices B, usually zero at the
    beginning, are random, so that it changes the loss.
    """
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **shape, max_position_embeddings=MAX_LENGTH, tie_word_embeddings=False, use_cache=False
    )
    model_class: Any = transformers.LlamaForCausalLM
    with device:
        model = model_class(config).to(weight_dtype(device))
    model.save_pretrained(folder / "model")
    adapted = peft.get_peft_model(model, LORA)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    adapted.save_pretrained(str(folder / "adapter"), save_embedding_layers=False)
    trainable, parameters = adapted.get_nb_trainable_parameters()
    return parameters, trainable


def weight_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of the peers' frozen weights."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_peer(folder: Path, device: torch.device) -> Any:
    """Load the model and its adapter with transformers and peft."""
    base: Any = transformers.LlamaForCausalLM.from_pretrained(
        folder / "model", dtype=weight_dtype(device)
    )
    # peft's default: adapters are fp32, also where the model is bf16
    return peft.PeftModel.from_pretrained(
        base.to(device), str(folder / "adapter"), is_trainable=True
    )


def load_firth(folder: Path, device: torch.device) -> AppliedStrategy:
    """Load the model in fp32, as `firth finetune` does, and its adapter."""
    network = read_network(folder / "model", dtype=torch.float32).to(device)
    assert isinstance(network, Transformer)
    return load_adapter(network, folder / "adapter")


def check_equal_gradients() -> None:
    """Exit if loss or gradient norm of a tiny model differ in fp32 on the CPU."""
    cpu, [examples] = torch.device("cpu"), sample_batches(1, TINY["vocab_size"])
    examples = [ids[:64] for ids in examples]
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        save_models(Path(name), TINY, cpu)
        peer, adapted = load_peer(Path(name), cpu), load_firth(Path(name), cpu)
    peer_loss = peer(**pad_batch(examples)).loss
    [term] = TrainingModule(adapted.network)(make_batch(examples, adapted.config)).values()
    loss = term.sum / term.count
    found = []
    for value, parameters in (
        (loss, list(adapted.parameters.values())),
        (peer_loss, [weight for weight in peer.parameters() if weight.requires_grad]),
    ):
        norm = torch.nn.utils.get_total_norm(torch.autograd.grad(value, parameters))
        found.append((value.item(), norm.item()))
    if not all(
        math.isclose(ours, theirs, rel_tol=1e-4) for ours, theirs in zip(*found, strict=True)
    ):
        raise SystemExit(f"Loss and gradient norm differ in fp32: {found[0]} and {found[1]}.")
    print(f"fp32, tiny model: loss {found[0][0]:.5f}, gradient norm {found[0][1]:.5f} in both")


def check_equal_losses(losses: dict[str, float]) -> None:
    """Exit if the losses of the first batch differ by more than the precision of bf16."""
    print("first loss: " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))
    if not max(losses.values()) - min(losses.values()) < 5e-3 * min(losses.values()):
        raise SystemExit("The losses of the first batch differ.")


# --- systems ------------------------------------------------------------------------------------


def run_firth(setup: Setup) -> Run:
    """Train with Firth's loop, as `firth finetune` does."""
    device, adapted = setup.device, load_firth(setup.folder, setup.device)
    module, spec = TrainingModule(adapted.network), device_spec(device)
    settings = firth_settings(adapted.config, setup)
    batches = [make_batch(examples, adapted.config) for examples in setup.batches]
    dtype = base_dtype(adapted.strategy.options, settings.precision, spec)
    print(
        f"firth: precision {settings.precision}, frozen matrices {dtype}, "
        f"compile {settings.compile}, cuda_graphs {settings.cuda_graphs}",
        flush=True,
    )
    with frozen_matrices(adapted.network, dtype):
        with torch.no_grad(), autocast(settings, device):
            [term] = module.eval()(batches[0]).values()
        first_loss = float(term.sum) / term.count
        log = MetricsLog(setup.folder / "metrics.jsonl", 0, lambda kind, metrics: None)
        loop = TrainingLoop(module, settings, lambda *_: iter(()), log, Callbacks())
        module.train()

        def train() -> None:
            for batch in batches:
                loop.train_step(PlannedBatch(batch, SamplerPosition(), batch.tokens))
            loop.wait_for_pending()

        seconds = time_epochs(train, setup)
        if reason := remove_graphs(adapted.network):
            print(f"CUDA graphs were not captured: {reason}")
    return Run(first_loss, seconds)


def firth_settings(config: ModelConfig, setup: Setup) -> FinetuneTrainingConfig:
    """Return the settings of a run on `RUN_EXAMPLES` examples."""
    sizes = {"batch_size": BATCH_SIZE, "max_length": MAX_LENGTH, "learning_rate": LEARNING_RATE}
    return finetune_training_config(
        RECIPES["dialogue"],
        config,
        RUN_EXAMPLES,
        strategy="lora",
        device=device_spec(setup.device),
        overrides=sizes | setup.overrides,
    )


def run_compiled(setup: Setup) -> Run:
    """Train with a loop around the peft model, its layers and its loss compiled."""
    model = load_peer(setup.folder, setup.device)
    inputs = [
        {name: tensor.to(setup.device) for name, tensor in pad_batch(examples).items()}
        for examples in setup.batches
    ]
    first_loss = peer_loss(model, inputs[0])
    base = model.get_base_model()
    for layer in base.model.layers:
        layer.compile(dynamic=True)
    base.loss_function = torch.compile(base.loss_function, dynamic=True)
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    model.train()

    def train() -> None:
        for batch in inputs:
            with peer_autocast(setup.device):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return Run(first_loss, time_epochs(train, setup))


def run_trainer(setup: Setup) -> Run:
    """Train with Trainer, in bf16 on a GPU."""
    model, device = load_peer(setup.folder, setup.device), setup.device
    first_inputs = {name: x.to(device) for name, x in pad_batch(setup.batches[0]).items()}
    first_loss = peer_loss(model, first_inputs)
    arguments = trainer_arguments(
        setup.folder / "trainer",
        device,
        epochs=WARMUP + setup.repeats,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
    )
    rows = [{"input_ids": ids} for examples in setup.batches for ids in examples]
    timer = EpochTimer(device)
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=lambda rows: pad_batch([row["input_ids"] for row in rows]),
        callbacks=[timer],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return Run(first_loss, statistics.median(timer.seconds[WARMUP:]))


class EpochTimer(transformers.TrainerCallback):  # type: ignore[misc]
    """Measure the seconds of each epoch of Trainer."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.started = device, 0.0
        self.seconds: list[float] = []

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        synchronise(self.device)
        self.started = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        synchronise(self.device)
        self.seconds.append(time.perf_counter() - self.started)


def peer_autocast(device: torch.device) -> torch.autocast:
    """Return the context of Trainer's `bf16`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def peer_loss(model: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Compute the loss of a batch before training."""
    with peer_autocast(model.device):
        return float(model.eval()(**inputs).loss)


def time_epochs(train: Callable[[], object], setup: Setup) -> float:
    """Return the median seconds of an epoch after the warm-up."""
    times = [measure_seconds(train, setup.device) for _ in range(WARMUP + setup.repeats)]
    return statistics.median(times[WARMUP:])


SYSTEMS = {"firth": run_firth, "trainer": run_trainer, "compiled": run_compiled}
PEERS = ("trainer", "compiled")


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default_device, help="cuda or cpu (default: cuda if available)"
    )
    parser.add_argument("--tiny", action="store_true", help="a model of 2 layers, for a check")
    parser.add_argument("--steps", type=int, default=8, help="batches of an epoch (default: 8)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed epochs of each system (default: 3)"
    )
    parser.add_argument(
        "--peers",
        type=lambda text: [name for name in text.split(",") if name],
        default=list(PEERS),
        help=f"comma-separated, of {', '.join(PEERS)} (default: all; empty: none)",
    )
    return with_changes(parser)


if __name__ == "__main__":
    main()
