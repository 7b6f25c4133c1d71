"""Measure how time and memory grow with corpus size, vocabulary, length, batch and number of texts.

Each point of a curve is measured in a process of its own. It loads models and runs a quarter of the
curve's smallest size first, so that imports, thread pools and compiled kernels are neither in the
times nor in the memory; then it repeats the size for `--seconds`, at least once. With `--rounds 3`,
all sizes are measured three times in turn, which evens out other load on the machine. Columns:

    seconds   wall-clock time, median of all repeats
    CPU s     CPU seconds of a repeat, of all processes, lowest of the rounds: other load on the
              machine affects it least, so the exponent of time is fitted to it
    MB        peak RSS of all processes minus the RSS before the first repeat, median of the rounds;
              at least 1 MB, because less is noise
    slope     exponent from the previous size to this one

The exponent is the slope of the least-squares line of log(value) over log(size): 1 is linear
growth, 0 is none. It is fitted to the three largest sizes, where constant costs (the start of
worker processes, code that is loaded late) matter least.

    python bench/growing.py                                   # all curves
    python bench/growing.py --curves prepare,sequence-length --out growth.png
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from grown_text import GAP, write_text
from measure import _cpu, _resident, measure
from sides import machine

import firth
from firth.data.packing import PackedSequences
from firth.data.sampler import SamplerPosition
from firth.data.stories import generate_story
from firth.inference.embedding.semantic_search import SearchIndex
from firth.jobs.prediction import predicting
from firth.models.initialization import initialise
from firth.models.networks import build_network
from firth.objectives.masked import masked
from firth.tokenizers.bpe import BpeConfig, learn_merges
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.recipes import scale_recipe
from firth.training.runtime import peak_memory, reset_peak_memory, resolve_auto_settings
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec
from firth.utils.figures import axis_number
from firth.utils.plotting import plain_text

CPU = torch.device("cpu")
NUM_FITTED = 3  # largest sizes that an exponent is fitted to
TOLERANCE = 0.15  # by which a measured exponent may exceed the expected one
MIN_MEMORY = 1e6  # bytes: smaller peaks are noise
NUM_SPECIAL_TOKENS = 5  # first ids of a vocabulary
NUM_STORIES = 50  # whose sentences are repeated

Work = Callable[[], object]
Exponents = tuple[float, float]  # lowest and highest that one expects
CONSTANT, SUBLINEAR, LINEAR, QUADRATIC = (0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 2.0)


class Curve(NamedTuple):
    """What is run, what grows, and how time and memory should grow with it."""

    about: str
    unit: str  # of the sizes
    sizes: tuple[int, ...]
    setup: Callable[[Path, int], Work]  # returns the function that is timed for a size
    time: Exponents
    memory: Exponents
    write_inputs: Callable[[Path], object] = lambda folder: None  # before anything is measured


class Repeats(NamedTuple):
    """Results of one process."""

    times: list[float]  # seconds of each repeat
    cpu: float  # mean CPU seconds of a repeat
    baseline: int  # RSS before the first repeat, in bytes
    peak: int  # peak RSS, in bytes


class Point(NamedTuple):
    """Results of one size."""

    size: int
    repeats: int
    seconds: float
    cpu: float
    memory: float


def main() -> None:
    """Measure the curves, print their tables and exponents, and plot them."""
    options = _options()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads use no CPU time
    print(machine(CPU))
    results: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        for name in options.curves:
            results[name] = measure_curve(name, Path(folder), options)
            _print_curve(name, results[name])
    _print_exponents(results)
    if options.out:
        plot(options.out, results)


# --- measuring ----------------------------------------------------------------------------------


def measure_curve(name: str, folder: Path, options: argparse.Namespace) -> list[Point]:
    """Measure all sizes of a curve in turn."""
    CURVES[name].write_inputs(folder)
    rounds: dict[int, list[Repeats]] = {size: [] for size in CURVES[name].sizes}
    for size in CURVES[name].sizes * options.rounds:
        measured = measure(run_point, name, size, folder, options.seconds)
        assert measured is not None
        repeats: Repeats = measured.result
        # Sampling includes child processes; the process itself knows its peak between two samples.
        rounds[size].append(repeats._replace(peak=max(measured.peak, repeats.peak)))
    return [summarize(size, repeats) for size, repeats in rounds.items()]


def run_point(name: str, size: int, folder: Path, seconds: float) -> Repeats:
    """Set up one size and repeat it for so many seconds, at least once."""
    curve = CURVES[name]
    curve.setup(folder, curve.sizes[0] // 4)()
    work = curve.setup(folder, size)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory: the baseline is what is in use
    baseline, times, cpu = _resident(os.getpid()), list[float](), _cpu()
    reset_peak_memory(CPU)
    while not times or sum(times) + times[-1] <= seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return Repeats(times, (_cpu() - cpu) / len(times), baseline, peak_memory(CPU))


def summarize(size: int, rounds: Sequence[Repeats]) -> Point:
    """Combine the rounds of one size."""
    times = [seconds for repeats in rounds for seconds in repeats.times]
    memory = statistics.median(repeats.peak - repeats.baseline for repeats in rounds)
    cpu = min(repeats.cpu for repeats in rounds)
    return Point(size, len(times), statistics.median(times), cpu, max(MIN_MEMORY, memory))


def exponents(points: Sequence[Point]) -> tuple[float, float, float]:
    """Fit the slopes of log(seconds), log(CPU seconds) and log(memory) over log(size)."""
    sizes = np.log([point.size for point in points])
    values = np.log([(point.seconds, point.cpu, point.memory) for point in points])
    seconds, cpu, memory = np.polyfit(sizes, values, 1)[0]
    return float(seconds), float(cpu), float(memory)


# --- corpus size and vocabulary -----------------------------------------------------------------

KILOBYTES = (2000, 4000, 8000, 16_000, 32_000)
VOCAB_SIZES = (2048, 4096, 8192, 16_384, 32_768)


def write_texts(folder: Path) -> None:
    """Write texts of all sizes, each the beginning of the next, and train a tokenizer."""
    if (folder / "tokenizer").exists():
        return
    write_text(None, KILOBYTES[-1] / 1000, folder / "text.txt")
    text = (folder / "text.txt").read_bytes()
    for size in (KILOBYTES[0] // 4, *KILOBYTES):
        end = text.rfind(GAP.encode(), 0, 1000 * size) + len(GAP)
        (folder / f"{size}.txt").write_bytes(text[:end])
    train_tokenizer(folder, KILOBYTES[0])()[0].save(folder / "tokenizer")


def train_tokenizer(folder: Path, kilobytes: int) -> Callable[[], Any]:
    """Count words and learn merges."""
    text = folder / f"{kilobytes}.txt"
    return partial(firth.train_tokenizer, [text], kind="bpe", vocab_size=VOCAB_SIZES[0])


def prepare(folder: Path, kilobytes: int, dedup: bool = False) -> Work:
    """Read, clean and tokenize a text, and write shards."""
    text, tokenizer, out = folder / f"{kilobytes}.txt", folder / "tokenizer", folder / "shards"

    def work() -> None:
        firth.prepare([text], tokenizer=tokenizer, out=out, dedup=dedup)
        shutil.rmtree(out)

    return work


def learn_vocabulary(folder: Path, vocab_size: int) -> Work:
    """Learn merges from the words of a text, which are counted before."""
    with open(folder / f"{KILOBYTES[-2]}.txt", encoding="utf-8") as file:
        counts = Counter(word for line in file for word in line.split())
    config = BpeConfig(size=vocab_size, min_frequency=1)
    return partial(learn_merges, list(counts), list(counts.values()), config)


# --- sequence length and batch ------------------------------------------------------------------

LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def random_network(preset: str, **changes: Any) -> Any:
    """Build the network of a preset with random weights."""
    config = replace(firth.preset(preset).config, **changes)
    return initialise(build_network(config, ["language"]), 0)


def training_step(folder: Path, size: int, grows: str, **fixed: int) -> Work:
    """Train encoder-tiny for a step with its recipe, on random tokens."""
    sizes = {"vocab_size": 4096, "length": 128, "batch_tokens": 2048, **fixed, grows: size}
    vocab_size, length = sizes["vocab_size"], sizes["length"]
    network = random_network("encoder-tiny", vocab_size=vocab_size, max_positions=max(512, length))
    config = scale_recipe("trio", network.config, steps=1 << 20)
    config = replace(config, micro_batch_tokens=sizes.get("micro_batch_tokens", 0))
    config = resolve_auto_settings(config, 0.0, device_spec(CPU))
    log = MetricsLog(folder / "metrics.jsonl", 0, lambda kind, metrics: None)
    module = TrainingModule(network).train()
    loop = TrainingLoop(module, config, lambda *_: iter(()), log, Callbacks())
    return partial(loop.train_step, random_batch(vocab_size, length, sizes["batch_tokens"]))


def random_batch(vocab_size: int, length: int, batch_tokens: int) -> PlannedBatch:
    """Mask 30 % of the tokens of random sequences."""
    rng, all_tokens = np.random.default_rng(0), np.ones(vocab_size, dtype=np.bool_)
    special = np.arange(vocab_size) < NUM_SPECIAL_TOKENS
    vocabulary = Vocabulary({"mask": 0}, np.empty(0, np.int64), special, all_tokens, all_tokens)
    rows = rng.integers(NUM_SPECIAL_TOKENS, vocab_size, size=(batch_tokens // length, length))
    keys = rng.integers(1 << 62, size=len(rows)).astype(np.uint64)
    batch = masked(PackedSequences.join(list(rows), keys), vocabulary, mask_prob=0.3)
    return PlannedBatch(batch, SamplerPosition(), batch.tokens)


def embed_length(folder: Path, length: int, total: int = 0) -> Work:
    """Embed one text of this length, or as many as have so many tokens in total."""
    network = random_network("encoder-tiny", max_positions=length).eval()
    model = firth.Model(network, firth.load("stories-encoder").tokenizer)
    words = islice(cycle(" ".join(sentences()).split()), length)
    text = " ".join(words)  # a word has one token or more; tokens beyond the length are truncated
    return partial(model.embed, [text] * max(1, total // length))


def generate(folder: Path, new_tokens: int) -> Work:
    """Generate so many tokens greedily, without an end token."""
    network = random_network("decoder-tiny", max_positions=2 * new_tokens, eos_token_id=None)
    model = firth.Model(network.eval(), firth.load("stories-decoder").tokenizer)
    return partial(model.generate, "Once upon a time", max_new_tokens=new_tokens)


# --- number of texts ----------------------------------------------------------------------------

COUNTS = (500, 1000, 2000, 4000, 8000)
NUM_VECTORS = tuple(100 * count for count in COUNTS)


def sentences() -> list[str]:
    """Return sentences of some stories."""
    return [text for i in range(NUM_STORIES) for text in generate_story(0, i).sentences]


def numbered(texts: Sequence[str]) -> Iterator[str]:
    """Repeat texts without end, all different: scoring computes equal inputs only once."""
    return (f"{number}. {text}" for number, text in enumerate(cycle(texts)))


def embed(folder: Path, count: int) -> Work:
    """Embed a list of texts."""
    texts = list(islice(numbered(sentences()), count))
    return partial(firth.load("stories-encoder").embed, texts)


def embed_file(folder: Path, count: int) -> Work:
    """Embed the lines of a file into a file of vectors."""
    model, out = firth.load("stories-encoder"), folder / "vectors.npy"
    return partial(firth.embed, model, _lines(folder, count), out=out, overwrite=True)


def train_classifier(folder: Path) -> None:
    """Fine-tune a classifier of reviews."""
    rows = [row for i in range(NUM_STORIES) for row in generate_story(0, i).examples.sentiment]
    out = folder / "classifier"
    firth.finetune("stories-encoder", task="classify", train=rows, out=out, epochs=1)


def predict(folder: Path, count: int) -> Work:
    """Classify the lines of a file, one window at a time."""
    model, file = firth.load(folder / "classifier"), _lines(folder, count)
    return lambda: deque(predicting(model, data=file), maxlen=0)


def minimal_pairs(folder: Path, count: int) -> Work:
    """Compare the log-probabilities of two sentences in each row of a file."""
    pairs = [pair for i in range(NUM_STORIES) for pair in generate_story(0, i).examples.agreement]
    good, bad = numbered([pair.good for pair in pairs]), numbered([pair.bad for pair in pairs])
    rows = ({"sentence_good": next(good), "sentence_bad": next(bad)} for _ in range(count))
    file = _write(folder / "pairs.jsonl", map(json.dumps, rows))
    return partial(firth.evaluate, firth.load("stories-decoder"), task="minimal-pairs", data=file)


def search(folder: Path, count: int) -> Work:
    """Find the nearest ones among random vectors."""
    vectors = np.random.default_rng(0).standard_normal((count, 192), dtype=np.float32)
    index = SearchIndex(vectors, ["a text"] * count)
    return partial(firth.load("stories-encoder").search, index, "The dog barked.")


def _lines(folder: Path, count: int) -> Path:
    """Write a file of sentences."""
    return _write(folder / "lines.txt", islice(numbered(sentences()), count))


def _write(path: Path, lines: Iterator[str]) -> Path:
    """Write lines to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


# --- the curves ---------------------------------------------------------------------------------

TEXT = ("kB of text", KILOBYTES)
TOKENS = ("tokens of a text", LENGTHS)
VOCABULARY = ("tokens of the vocabulary", VOCAB_SIZES)
BATCH = ("tokens of a batch", VOCAB_SIZES)
CURVES = {
    # Counting words is linear; merging depends on the number of distinct words.
    "train-tokenizer": Curve(
        "BPE of 2,048 tokens", *TEXT, train_tokenizer, SUBLINEAR, SUBLINEAR, write_texts
    ),
    "prepare": Curve("text to shards", *TEXT, prepare, LINEAR, CONSTANT, write_texts),
    # Signatures are stored on disk; one of 32 bands is in memory.
    "prepare-dedup": Curve(
        "with dedup", *TEXT, partial(prepare, dedup=True), LINEAR, SUBLINEAR, write_texts
    ),
    # Later merges have fewer occurrences.
    "vocabulary": Curve(
        "BPE merges, 16 MB", *VOCABULARY, learn_vocabulary, SUBLINEAR, SUBLINEAR, write_texts
    ),
    # Embeddings and logits grow, the layers do not.
    "vocabulary-step": Curve(
        "training step", *VOCABULARY, partial(training_step, grows="vocab_size"), *(SUBLINEAR,) * 2
    ),
    # Attention is quadratic, the other layers are linear; attention weights are not stored.
    "sequence-length": Curve("embed one text", *TOKENS, embed_length, QUADRATIC, SUBLINEAR),
    "sequence-length-fixed": Curve(
        "embed 16,384 tokens", *TOKENS, partial(embed_length, total=16_384), SUBLINEAR, CONSTANT
    ),
    "sequence-length-step": Curve(
        "training step of 8,192 tokens",
        *TOKENS,
        partial(training_step, grows="length", batch_tokens=8192),
        SUBLINEAR,
        CONSTANT,
    ),
    # Each token attends to the cached keys and values of all previous ones.
    "generate": Curve("one text", *TOKENS, generate, QUADRATIC, SUBLINEAR),
    "batch": Curve(
        "training step", *BATCH, partial(training_step, grows="batch_tokens"), LINEAR, SUBLINEAR
    ),
    "batch-accumulated": Curve(
        "training step, micro-batches of 2,048 tokens",
        *BATCH,
        partial(training_step, grows="batch_tokens", micro_batch_tokens=2048),
        LINEAR,
        CONSTANT,
    ),
    "embed": Curve("a list", "texts", COUNTS, embed, LINEAR, SUBLINEAR),
    "embed-file": Curve("a file into a file", "texts", COUNTS, embed_file, LINEAR, CONSTANT),
    "predict": Curve(
        "classify a file", "texts", COUNTS, predict, LINEAR, CONSTANT, train_classifier
    ),
    "minimal-pairs": Curve("evaluate a file", "pairs", COUNTS, minimal_pairs, LINEAR, SUBLINEAR),
    "search": Curve("one query, in memory", "vectors", NUM_VECTORS, search, LINEAR, SUBLINEAR),
}


# --- results ------------------------------------------------------------------------------------


def _print_curve(name: str, points: Sequence[Point]) -> None:
    """Print the points of a curve."""
    print(f"\n{name}: {CURVES[name].about}; size: {CURVES[name].unit}")
    print("    size  repeats   seconds  slope     CPU s  slope      MB  slope")
    for number, (size, repeats, seconds, cpu, memory) in enumerate(points):
        pair = points[number - 1 : number + 1]
        slopes = [f"{slope:5.2f}" for slope in exponents(pair)] if pair else [" " * 5] * 3
        print(
            f"{size:8,}  {repeats:7}  {seconds:8.4f}  {slopes[0]}  {cpu:8.4f}  {slopes[1]}  "
            f"{memory / 1e6:6.1f}  {slopes[2]}".rstrip(),
            flush=True,
        )


def _print_exponents(results: dict[str, list[Point]]) -> None:
    """Print the fitted exponents beside the expected ones."""
    print(f"\nexponents, fitted to the {NUM_FITTED} largest sizes")
    print("curve                  seconds  CPU s  expected     MB  expected")
    for name, points in results.items():
        curve, (seconds, cpu, memory) = CURVES[name], exponents(points[-NUM_FITTED:])
        notes = ["time grows faster"] * (cpu > curve.time[1] + TOLERANCE)
        notes += ["memory grows faster"] * (memory > curve.memory[1] + TOLERANCE)
        print(
            f"{name:21}  {seconds:7.2f}  {cpu:5.2f}  {_range(curve.time):>8}  {memory:5.2f}  "
            f"{_range(curve.memory):>8}  {', '.join(notes)}".rstrip()
        )


def _range(expected: Exponents) -> str:
    """Format an expected exponent."""
    return " to ".join(f"{value:g}" for value in dict.fromkeys(expected))


def plot(path: Path, results: dict[str, list[Point]]) -> None:
    """Plot CPU time and memory relative to the smallest size, one panel per curve."""
    from matplotlib.figure import Figure

    num_columns = min(4, len(results))
    num_rows = -(-len(results) // num_columns)
    with plain_text():
        figure = Figure(figsize=(4 * num_columns, 3.2 * num_rows), layout="constrained")
        for number, (name, points) in enumerate(results.items(), 1):
            _plot_curve(figure.add_subplot(num_rows, num_columns, number), name, points)
        figure.savefig(path, format="png", dpi=100)


def _plot_curve(axes: Any, name: str, points: Sequence[Point]) -> None:
    """Plot one curve on logarithmic axes, with dotted lines for exponents 0, 1 and 2."""
    sizes, first, last = [point.size for point in points], points[0], points[-1]
    _, time_exponent, memory_exponent = exponents(points[-NUM_FITTED:])
    highest = 2.0
    for field, label, value in (
        ("cpu", f"CPU time: {time_exponent:.2f}", f"{last.cpu:.3g} s"),
        ("memory", f"memory: {memory_exponent:.2f}", f"{last.memory / 1e6:.3g} MB"),
    ):
        growth = [getattr(point, field) / getattr(first, field) for point in points]
        axes.plot(sizes, growth, "o-", markersize=4, label=label)
        axes.annotate(value, (sizes[-1], growth[-1]), (4, 0), textcoords="offset points")
        highest = max(highest, *growth)
    for power in (0, 1, 2):
        axes.plot(sizes, [(size / sizes[0]) ** power for size in sizes], ":", color="lightgrey")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [axis_number(size) for size in sizes])
    axes.yaxis.set_major_formatter(lambda growth, _: f"{axis_number(growth)} x")
    axes.set_ylim(0.4, 2 * highest)
    axes.set_title(name, fontsize=11, loc="left")
    axes.set_xlabel(CURVES[name].unit)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)


def _options() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--curves", type=lambda text: text.split(","), default=list(CURVES), help=",".join(CURVES)
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of repeats in a process")
    parser.add_argument("--rounds", type=int, default=1, help="processes per size")
    parser.add_argument("--out", type=Path, help="PNG file of the plot")
    options = parser.parse_args()
    if unknown := set(options.curves) - set(CURVES):
        parser.error(f"unknown curves {', '.join(unknown)}; choose from {', '.join(CURVES)}")
    return options


if __name__ == "__main__":
    main()
