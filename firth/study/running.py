"""`firth.run_study`: a question, a grid of runs, and a page with the verdict."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from firth.study.engine.cell_cache import FULL_DISK, CellCache
from firth.study.engine.grid import CellProgress, OnResult
from firth.study.engine.settings import make_settings
from firth.study.engine.study import StudyInputs, StudyRun
from firth.study.engine.study_result import StudyResult
from firth.study.registry import study_named
from firth.study.study_config import StudyConfig
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of, flag
from firth.utils.devices import Device, restored_torch_state, select_device
from firth.utils.errors import InputError, Interrupted, UsageError, storage_errors
from firth.utils.notebook import show_progress
from firth.utils.workers import available_cores


def _show(progress: CellProgress) -> None:
    show_progress("cells", progress.done, progress.total)


@check_arguments
@restored_torch_state()
def run_study(
    name: str,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    test: str | Path | None = None,
    task: str | None = None,
    text: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    models: Sequence[str] | str = (),
    budget: str = "small",
    seeds: int = 5,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    cells: str | Path | None = None,
    workers: int = 0,
    device: Device = None,
    on_result: OnResult = _show,
) -> StudyResult:
    """Run a study: a question, a grid of runs, and a verdict with its interval.

    `firth study` lists the studies and their settings, which `overrides` changes. Each cell of the
    grid is stored when it has finished; the same call, after an interruption or with more seeds,
    runs only what is missing. Without `data`, `text` and `models` a study reads the stories and
    uses the embedded models. `out` gets index.html, results.jsonl and figure.png.
    """
    config = config_of(StudyConfig, locals())
    if config.out is None:
        raise UsageError("`out` is missing: the folder to write, a string or Path.")
    study, folder, begun = study_named(name), Path(config.out), time.monotonic()
    inputs = _inputs(config)
    study.check_inputs(inputs)
    settings = make_settings(study, budget, config.overrides or {})
    place = select_device(device)
    run = StudyRun(
        inputs=inputs,
        settings=settings,
        out=folder,
        budget=budget,
        seeds=tuple(range(seed, seed + seeds)),
        cache=CellCache(Path(cells or folder / "cells").absolute(), str(place)),
        workers=workers or (available_cores() if place.type == "cpu" else 1),
        on_result=on_result,
    )
    if seeds == 1:
        run.note("With one seed, intervals are over examples alone; other seeds may differ more.")
    with storage_errors(folder, FULL_DISK):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with _interrupted_by_sigterm():
            analysis = study.run(run)
    except (KeyboardInterrupt, Interrupted) as error:
        raise Interrupted(
            f"Interrupted with {len(run.cells)} finished cells in {run.cache.folder}; the same "
            "command continues."
        ) from error
    result = StudyResult(
        study=study,
        out=folder,
        settings=settings,
        inputs=inputs,
        budget=budget,
        seeds=run.seeds,
        analysis=analysis,
        cells=run.cells,
        seconds=time.monotonic() - begun,
        command=_command(name, config),
        notes=(*run.notes, *analysis.notes),
    )
    with storage_errors(folder, FULL_DISK):
        result.save()
    return result


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C: worker processes end too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _inputs(config: StudyConfig) -> StudyInputs:
    paths = {name: getattr(config, name) for name in ("data", "test", "text")}
    found = {name: Path(path) for name, path in paths.items() if path is not None}
    for name, path in found.items():
        if not path.exists():
            raise InputError(f"There is no file {path} ({flag(name)}).")
    # Absolute, so that a run that was killed is continued by a command in another folder.
    models = tuple(
        str(Path(name).absolute()) if Path(name).exists() else name for name in config.model_names
    )
    return StudyInputs(**found, task=config.task, models=models, columns=config.columns)


def _command(name: str, config: StudyConfig) -> str:
    """Format the call as a command line, with the options that are not defaults."""
    parts = ["firth", "study", name]
    for field in fields(StudyConfig):
        value = getattr(config, field.name)
        if value == field.default or value in (None, (), [], {}):
            continue
        option = "--model" if field.name == "models" else flag(field.name)
        for one in _texts(value):
            parts += [option, one]
    return shlex.join(parts)


def _texts(value: Any) -> list[str]:
    """Return the texts of an option, which may be repeated.

    >>> _texts({"labels": (10, 100)}), _texts(5), _texts(["a", "b"])
    (['labels=10,100'], ['5'], ['a', 'b'])
    """
    if isinstance(value, Mapping):
        joined = {k: ",".join(_texts(v)) for k, v in value.items()}
        return [f"{key}={text}" for key, text in joined.items()]
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
