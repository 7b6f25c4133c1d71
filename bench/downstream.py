"""Downstream tasks: Firth's encoder beside BERT-base, pre-trained for the same number of minutes.

Both sides pre-train on the same shards with the same tokenizer. Firth's side is a preset with its
recipe. The peer's is `BertForMaskedLM` of transformers with the shape of BERT-base and BERT's
hyperparameters: AdamW, 15 % of the tokens masked, packed sequences of 128 tokens, linear warm-up
and decay over the minutes; on a GPU compiled, in bf16 autocast, with fused AdamW. Compiling is not
counted. Then Firth fine-tunes both models on every task with each learning rate; the best value on
the dev set counts.

    python bench/downstream.py --shards shards --data DIR --minutes 8
    python bench/downstream.py --shards shards --data DIR --tasks cola,mrpc --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from sides import machine, with_changes
from torch import Tensor

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.jobs.finetuning import finetune
from firth.jobs.pretraining import pretrain
from firth.tokenizers.tokenizer import Tokenizer

LENGTH, SEQUENCES = 128, 256  # tokens of a sequence, sequences of a step
LEARNING_RATE, WARMUP, WEIGHT_DECAY = 1e-4, 0.1, 0.01  # BERT's, but for the warm-up
MASKED, REPLACED, RANDOM = 0.15, 0.8, 0.1  # 80 % of masked tokens [MASK], 10 % random
IGNORED = -100  # target of tokens that are not predicted
BATCH = 32
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
BERT_BASE = (768, 12, 12, 3072)


class Task(NamedTuple):
    """A task with labels: its kind, its files, the metric that is reported, and the epochs."""

    kind: str
    train: str
    dev: str
    metric: str
    epochs: int = 3


TASKS = {
    "sst2": Task("classify", "train.tsv.gz", "dev.tsv.gz", "accuracy", epochs=1),
    "cola": Task("classify", "train.tsv", "dev.tsv", "matthews"),
    "mrpc": Task("pair", "train.tsv", "dev.tsv", "f1"),
    "conll2003": Task("tag", "train.conll.gz", "dev.conll.gz", "f1"),
}


def main() -> None:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        f"{machine(device)}, transformers {transformers.__version__}, {options.minutes:g} minutes"
    )
    sides = {"firth": pretrain_firth, "BERT, transformers": pretrain_peer}
    scores: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        for name, run in sides.items():
            model = run(options, Path(folder, name.split(",")[0]), device)
            scores[name] = {
                task: [best(model, task, seed, options, Path(folder)) for seed in options.seeds]
                for task in options.tasks
            }
    print("system              " + "".join(f"{task:>18}" for task in options.tasks))
    for name, found in scores.items():
        print(f"{name:20}" + "".join(f"{_mean(values):>18}" for values in found.values()))


def pretrain_firth(options: argparse.Namespace, out: Path, device: torch.device) -> Path:
    """Pre-train the preset with its recipe."""
    trained = pretrain(
        preset=options.preset,
        data=options.shards,
        out=out,
        minutes=options.minutes,
        overrides={"validate_every": 1.0} | options.overrides,
        device=device,
    )
    print(f"firth: {trained.tokens / 1e6:.1f}M tokens, validation loss {trained.loss:.3f}")
    return out


def pretrain_peer(options: argparse.Namespace, out: Path, device: torch.device) -> Path:
    """Pre-train BERT by transformers; save it with the tokenizer of the shards."""
    shards = Shards(options.shards)
    tokenizer = Tokenizer.load(options.shards)
    torch.manual_seed(0)
    make_peer: Any = transformers.BertForMaskedLM
    shape = dict(zip(SHAPE, options.shape, strict=True))
    config = transformers.BertConfig(vocab_size=len(tokenizer), **shape)
    model: torch.nn.Module = make_peer(config).to(device)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=on_gpu
    )
    forward: Callable[..., Any] = torch.compile(model) if on_gpu else model
    began, tokens, loss, step = time.monotonic(), 0, float("nan"), 0
    for step, (inputs, targets) in enumerate(masked_batches(shards, tokenizer, device)):
        if step == 3:  # compiled
            began, tokens = time.monotonic(), 0
        progress = (time.monotonic() - began) / 60 / options.minutes
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(progress / WARMUP, (1 - progress) / (1 - WARMUP))
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            found = forward(input_ids=inputs, labels=targets)
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += inputs.numel()
        if step % 20 == 0:
            loss = found.loss.item()  # also waits for the GPU, so that the clock is right
    print(f"BERT: {step:,} steps, {tokens / 1e6:.1f}M tokens, training loss {loss:.3f}", flush=True)
    model.save_pretrained(out)  # type: ignore[operator]
    tokenizer.save(out)
    return out


def masked_batches(
    shards: Shards, tokenizer: Tokenizer, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw packed sequences without end, and mask them as in BERT: inputs and targets."""  # (B, L)
    special = tokenizer.special_ids
    first, last = special["cls"], special["sep"]
    sampler, position = Sampler(shards), SamplerPosition()
    random = torch.Generator(device).manual_seed(0)
    held = np.empty(0, dtype=np.int64)
    while True:
        spans, position = sampler.take(position, length=1 << 14, tokens=1 << 16)
        packed = sampler.gather(
            spans, first=first, last=last, first_everywhere=False, last_everywhere=False
        )
        held = np.concatenate([held, packed.tokens])
        while len(held) >= LENGTH * SEQUENCES:
            text, held = np.split(held, [LENGTH * SEQUENCES])
            tokens = torch.from_numpy(text).to(device).view(SEQUENCES, LENGTH)
            draw, change = torch.rand(2, *tokens.shape, generator=random, device=device)
            chosen = (draw < MASKED) & (tokens != first) & (tokens != last)
            inputs = torch.where(chosen & (change < REPLACED), special["mask"], tokens)
            other = torch.randint(len(tokenizer), tokens.shape, generator=random, device=device)
            changed = chosen & (change >= REPLACED) & (change < REPLACED + RANDOM)
            yield torch.where(changed, other, inputs), tokens.where(chosen, IGNORED)


def best(model: Path, name: str, seed: int, options: argparse.Namespace, folder: Path) -> float:
    """Fine-tune with each learning rate; the best value of the task's metric, in percent."""
    task, found = TASKS[name], {}
    for rate in options.rates:
        began = time.monotonic()
        tuned = finetune(
            model,
            task=task.kind,
            train=options.data / name / task.train,
            dev=options.data / name / task.dev,
            out=folder / "tuned" / f"{model.name}-{name}-{seed}-{rate}",
            seed=seed,
            limit=options.limit,
            overrides={"learning_rate": rate, "epochs": task.epochs, "batch_size": BATCH},
        )
        found[rate] = 100 * tuned.metrics[task.metric].value
        print(
            f"  {model.name} {name}, seed {seed}, {rate:g}: {task.metric} {found[rate]:.1f} "
            f"({time.monotonic() - began:.0f} s)",
            flush=True,
        )
    return max(found.values())


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shards", required=True, help="that `firth prepare` made")
    parser.add_argument("--data", required=True, type=Path, help="a folder with a folder per task")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--preset", default="encoder-small")
    parser.add_argument("--shape", type=_numbers(int), default=BERT_BASE, help=", ".join(SHAPE))
    parser.add_argument("--tasks", type=_numbers(str), default=list(TASKS))
    parser.add_argument("--rates", type=_numbers(float), default=[5e-5, 1e-4, 2e-4])
    parser.add_argument("--seeds", type=_numbers(int), default=[0])
    parser.add_argument("--limit", type=int, default=0, help="labelled examples of a task; 0: all")
    return with_changes(parser)


if __name__ == "__main__":
    main()
