"""Several runs of one task, side by side: other seeds, other settings, other strategies."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from firth.adapt.table import strategy as strategy_named
from firth.errors import FirthError, InputError, Interrupted, Misuse
from firth.files import write_json
from firth.finetuning import Tuned, finetune
from firth.model import load
from firth.runs import LOCK, RUN, read_run, write_tuned_card
from firth.tasks.recipes import depth, width_factor
from firth.tasks.table import task_named
from firth.tasks.task import judged_by
from firth.training.log import Figures, Listener
from firth.training.loop import Diverged

RATES, BATCHES, FREEZES = (2e-5, 3e-5, 5e-5), (16, 32), (0, 6, 8)  # the lectures' grid
# Every strategy, as it is run when all are asked for; blocks to freeze are a share of the depth.
ALL = (
    *("full", "freeze:half", "probe", "probe-then-full", "gradual"),
    *("lora", "adapters", "bitfit", "ia3", "prefix", "prompt"),
)
SMALLER = ("perplexity",)  # is better


@dataclass(frozen=True)
class Trial:
    """One run of several."""

    name: str
    tuned: Tuned | None  # None: it could not be run
    why: str = ""  # not

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        own = self.tuned.values() if self.tuned is not None else {"why": self.why}
        return {"name": self.name, **own}


@dataclass(frozen=True)
class Sweep:
    """Runs of one task, and the figure they are compared by."""

    kind: str  # seeds, search or strategies
    metric: str
    trials: list[Trial]
    best: str  # the name of the best one
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> list[tuple[Trial, Tuned]]:
        """The runs that ended."""
        return [(trial, trial.tuned) for trial in self.trials if trial.tuned is not None]

    def mean(self) -> dict[str, tuple[float, float]]:
        """Every figure's mean over the runs, and its standard deviation."""
        runs = [tuned.figures for _, tuned in self.done]
        names = runs[0] if runs else {}
        found = {name: [figures[name].value for figures in runs] for name in names}
        return {
            name: (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
            for name, values in found.items()
        }

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "kind": self.kind,
            "metric": self.metric,
            "best": self.best,
            "mean": {name: {"mean": m, "deviation": d} for name, (m, d) in self.mean().items()},
            "runs": [trial.values() for trial in self.trials],
            "notes": self.notes,
        }


def seeds(count: int, out: str | Path, *, seed: int = 0, **options: Any) -> Sweep:
    """The same run with several seeds, each in a directory of its own in `out`."""
    rows = [(f"seed-{seed + i}", {"seed": seed + i}) for i in range(count)]
    return _run("seeds", rows, Path(out), options)


def search(out: str | Path, *, minutes: float = 0.0, **options: Any) -> Sweep:
    """The lectures' grid of rates, batches and frozen blocks; the best run becomes `out`.

    Rates are scaled to the width of the model and frozen blocks to its depth, as in its recipe. No
    run begins when the minutes are over.
    """
    given = dict(options.pop("changes", None) or {})
    for name in ("rate", "batch"):
        if name in given:
            raise Misuse(f"A search tries values of {name} itself; leave {name}= out.")
    _check_empty(Path(out))
    config = load(options["model"]).config
    rates = [rate * width_factor(config.width) for rate in RATES]
    depths = list(dict.fromkeys(frozen * depth(config) // 12 for frozen in FREEZES))
    rows = [
        (
            f"rate={rate:.1e},batch={batch},freeze={frozen}",
            {
                "changes": {**given, "rate": rate, "batch": str(batch)},
                "strategy": f"freeze:{frozen}" if frozen else "full",
            },
        )
        for rate, batch, frozen in product(rates, BATCHES, depths)
    ]
    folder = Path(out) / "search"
    swept = _run("search", rows, folder, options, minutes=minutes)
    _promote(folder, swept, Path(out))
    return swept


def strategies(names: Sequence[str], out: str | Path, **options: Any) -> Sweep:
    """The same task by several strategies, each in a directory of its own in `out`."""
    blocks = depth(load(options["model"]).config)
    chosen = list(ALL) if list(names) == ["all"] else list(names)
    specs = [name.replace("half", str(max(1, blocks // 2))) for name in chosen]
    for spec in specs:  # a word that means nothing ends the whole, a strategy that fails its row
        strategy_named("full" if spec == "probe-then-full" else spec)
    rows = [(spec.replace(":", "-").replace(",", "-"), {"strategy": spec}) for spec in specs]
    return _run("strategies", rows, Path(out), options)


def _run(
    kind: str,
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    out: Path,
    options: Mapping[str, Any],
    minutes: float = 0.0,
) -> Sweep:
    _check_empty(out)
    heard: set[str] = set()
    failures = FirthError if kind == "strategies" else Diverged
    begun, notes = time.monotonic(), []
    trials: list[Trial] = []
    for name, changes in rows:
        if minutes and trials and time.monotonic() - begun > 60 * minutes:
            notes.append(
                f"The {minutes:g} minutes were over after {len(trials)} of {len(rows)} runs."
            )
            break
        try:
            told = partial(_tell, options.get("listener"), name, heard)
            tuned = finetune(out=out / name, **{**options, **changes, "listener": told})
            tuned.model.network.to("meta")  # its weights are on the disk
            trials.append(Trial(name, tuned))
        except (InputError, Interrupted):  # no other run would go better, or is wanted
            raise
        except failures as error:
            trials.append(Trial(name, None, str(error)))
    done = {trial.name: trial.tuned for trial in trials if trial.tuned is not None}
    if not done:
        raise FirthError(f"None of the runs in {out} could be done. {trials[0].why}")
    first = next(iter(done.values()))
    job, figures = first.job, first.figures
    metric = judged_by(task_named(job.task), job.facts, figures, balance=job.balance)
    best = max(done, key=lambda name: _worth(done[name].figures[metric].value, metric))
    swept = Sweep(kind, metric, trials, best, notes)
    write_json(out / f"{kind}.json", swept.values())
    return swept


def _check_empty(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise Misuse(f"{out} is not empty; several runs need an empty directory.")


def _tell(
    listener: Listener | None, name: str, heard: set[str], kind: str, figures: Figures
) -> None:
    """Pass on what a run says; a note once, for what is said of the data holds for every run."""
    if listener is None or figures.get("note") in heard:
        return
    if kind == "note":
        heard.add(figures["note"])
    listener(kind, {**figures, "run": name})


def _worth(value: float, metric: str) -> float:
    """What a figure is worth: more is better."""
    if math.isnan(value):
        return -math.inf
    return -value if metric in SMALLER else value


def _promote(folder: Path, swept: Sweep, out: Path) -> None:
    """The best run's files become those of the whole."""
    shutil.copytree(
        folder / swept.best, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK)
    )
    values = read_run(out)
    values["results"]["out"] = str(out)
    write_json(out / RUN, values)
    write_tuned_card(out, values)
