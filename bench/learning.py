"""Learning: what a few minutes of pre-training teach, measured by BLiMP accuracy.

Each run pre-trains on the same shards for the given minutes and is then evaluated on minimal pairs:
an encoder by pseudo-log-likelihood, a decoder by log-likelihood, a hybrid by both and by their sum.
Everything but the preset and the objective is the recipe, unless --set says otherwise. Compiling is
not counted, validations are. Accuracies are means over three groups of sets: the ten that settings
are selected on, the others, and all. With --fit-temperature, each model is also evaluated with the
temperature that is best on the minimal pairs of Firth's stories. With --tokens, the budget does not
depend on the speed of the GPU, so that several runs can share one.

    python bench/learning.py --shards shards --blimp blimp --seeds 0,1,2
    python bench/learning.py --shards shards --blimp blimp --runs encoder --set learning_rate=4e-3
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from sides import machine, with_changes

from firth.data.stories import write_stories
from firth.jobs.evaluation import evaluate
from firth.jobs.pretraining import pretrain
from firth.jobs.suites import evaluate_suite
from firth.model import Model

RUNS = {  # preset, objective
    "encoder": ("encoder-small", "masked"),
    "decoder": ("decoder-small", "causal"),
    "hybrid": ("decoder-small", "hybrid"),
    "hybrid-batches": ("decoder-small", "hybrid-batches"),
}
SELECTION = """adjunct_island animate_subject_trans determiner_noun_agreement_with_adj_2
    distractor_agreement_relational_noun drop_argument ellipsis_n_bar_1
    existential_there_subject_raising irregular_past_participle_verbs npi_present_1
    wh_questions_subject_gap""".split()  # the sets that settings are selected on
TEMPERATURES = (0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0)
Accuracies = dict[str, tuple[float, float, float]]  # by how it is evaluated


def main() -> None:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    millions = f"{options.tokens / 1e6:g}M tokens"
    budget = millions if options.tokens else f"{options.minutes:g} minutes"
    print(f"{machine(device)}; {budget} each, {options.overrides or 'the recipe'}")
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name in options.runs:
        for seed in options.seeds:
            for how, accuracies in learn(name, seed, options).items():
                found.setdefault(f"{name}, {how}", []).append(accuracies)
    print("BLiMP, %".ljust(50), "seeds   ten sets     others        all", sep="")
    for name, rows in found.items():
        means = [statistics.fmean(group) for group in zip(*rows, strict=True)]
        spread = f" ± {statistics.stdev(row[-1] for row in rows):.1f}" if len(rows) > 1 else ""
        print(f"{name:50} {len(rows):4}", *(f"{mean:10.1f}" for mean in means), spread)


def learn(name: str, seed: int, options: argparse.Namespace) -> Accuracies:
    """Pre-train once, evaluate, and print a line of each."""
    preset, objective = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        trained = pretrain(
            preset=preset,
            objective=objective,
            data=options.shards,
            out=Path(folder) / "run",
            minutes=0.0 if options.tokens else options.minutes,
            tokens=options.tokens,
            seed=seed,
            overrides={"validate_every": 0.25} | options.overrides,
        )
        rate, loss = trained.tokens / trained.seconds, trained.loss or float("nan")
        print(
            f"{name}, seed {seed}: {trained.steps:,} steps, {trained.tokens / 1e6:.1f}M tokens, "
            f"{rate:,.0f} tokens/s, validation loss {loss:.3f}",
            flush=True,
        )
        found = score(trained.model, options)
        if options.by_word and objective != "causal":
            found |= score(trained.model, options, by_word=True)
        if options.fit_temperature:
            for measure, temperature in fit_temperatures(trained.model, Path(folder)).items():
                rows = score(trained.model, options, temperature=temperature)
                found[f"{measure}, fitted temperature"] = next(
                    row for key, row in rows.items() if key.startswith(f"{measure},")
                )
    return found


def score(
    model: Model,
    options: argparse.Namespace,
    *,
    by_word: bool = False,
    temperature: float = 1.0,
) -> Accuracies:
    """Compute BLiMP accuracy in percent over the selection sets, the others, and all."""
    began = time.monotonic()
    suite = evaluate_suite(
        model,
        "blimp",
        data=options.blimp,
        limit=options.limit,
        by_word=by_word,
        temperature=temperature,
    )
    found: Accuracies = {}
    for measure in filter(is_accuracy, suite.averages):
        groups: tuple[list[float], list[float]] = [], []
        for row in suite.rows:
            groups[row.name not in SELECTION].append(100 * row.metrics[measure].value)
        ten, others, both = (
            statistics.fmean(group or [float("nan")])
            for group in (*groups, [*groups[0], *groups[1]])
        )
        name = f"{measure}, T {temperature:g}" + ", by word" * by_word
        found[name] = ten, others, both
    shown = "; ".join(f"{name}: {row[-1]:.1f}" for name, row in found.items())
    print(f"  {shown} ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def fit_temperatures(model: Model, folder: Path) -> dict[str, float]:
    """The temperature of the highest accuracy on the stories' pairs, for each way of scoring."""
    write_stories(folder / "stories", words=200_000)
    pairs = folder / "stories/agreement/train.jsonl"
    accuracies: dict[str, dict[float, float]] = {}
    for temperature in TEMPERATURES:
        found = evaluate(model, task="minimal-pairs", data=pairs, temperature=temperature)
        for measure in filter(is_accuracy, found.metrics):
            accuracies.setdefault(measure, {})[temperature] = found.metrics[measure].value
    return {measure: max(row, key=lambda t: row[t]) for measure, row in accuracies.items()}


def is_accuracy(measure: str) -> bool:
    """Tell accuracies of summed log-probabilities from those of means per token."""
    return measure.endswith("accuracy")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shards", required=True, help="that `firth prepare` made")
    parser.add_argument("--blimp", required=True, help="a folder with its files")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--tokens", type=lambda text: int(float(text)), default=0, help="instead of minutes: 2e8"
    )
    parser.add_argument("--runs", type=lambda text: text.split(","), default=list(RUNS))
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0]
    )
    parser.add_argument("--by-word", action="store_true", help="masked models also by whole words")
    parser.add_argument("--fit-temperature", action="store_true")
    parser.add_argument("--limit", type=int, default=0, help="pairs of each set; 0: all")
    return with_changes(parser)


if __name__ == "__main__":
    main()
