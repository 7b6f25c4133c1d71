"""Firth: pre-train, fine-tune, evaluate and use language models.

Names are imported when they are first used, so that `import firth` and `firth --help` are fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from firth.data.corpus import Corpus
    from firth.data.readers import ReadOptions
    from firth.data.shards import Shards
    from firth.data.stories import write_stories
    from firth.demo.chapters import run_demo
    from firth.formats.tokenizers.loading import load_tokenizer
    from firth.jobs.embedding import embed, search
    from firth.jobs.evaluation import evaluate
    from firth.jobs.exporting import export
    from firth.jobs.filling import fill
    from firth.jobs.finetuning import finetune
    from firth.jobs.generating import generate
    from firth.jobs.inspecting import inspect
    from firth.jobs.objective_examples import show_objectives
    from firth.jobs.prediction import predict
    from firth.jobs.preparation import prepare
    from firth.jobs.pretraining import pretrain
    from firth.jobs.prompting import prompt
    from firth.jobs.reporting import report
    from firth.jobs.scoring import score
    from firth.model import Model, load
    from firth.models.presets import list_presets, preset
    from firth.serve.running import run_server
    from firth.study.running import run_study
    from firth.tasks.registry import list_tasks
    from firth.tokenizers.tokenizer import Tokenizer
    from firth.tokenizers.trainer import train_tokenizer
    from firth.utils.errors import FirthError, InputError, MismatchError, StorageError, UsageError

__all__ = [
    "Corpus",
    "FirthError",
    "InputError",
    "MismatchError",
    "Model",
    "ReadOptions",
    "Shards",
    "StorageError",
    "Tokenizer",
    "UsageError",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "inspect",
    "list_presets",
    "list_tasks",
    "load",
    "load_tokenizer",
    "predict",
    "prepare",
    "preset",
    "pretrain",
    "prompt",
    "report",
    "run_demo",
    "run_server",
    "run_study",
    "score",
    "search",
    "show_objectives",
    "train_tokenizer",
    "write_stories",
]

_HOMES = {
    "firth.formats.tokenizers.loading": ("load_tokenizer",),
    "firth.utils.errors": (
        "FirthError",
        "InputError",
        "MismatchError",
        "UsageError",
        "StorageError",
    ),
    "firth.jobs.embedding": ("embed", "search"),
    "firth.jobs.evaluation": ("evaluate",),
    "firth.jobs.exporting": ("export",),
    "firth.jobs.filling": ("fill",),
    "firth.jobs.finetuning": ("finetune",),
    "firth.jobs.generating": ("generate",),
    "firth.jobs.inspecting": ("inspect",),
    "firth.model": ("Model", "load"),
    "firth.models.presets": ("list_presets", "preset"),
    "firth.jobs.objective_examples": ("show_objectives",),
    "firth.jobs.prediction": ("predict",),
    "firth.jobs.pretraining": ("pretrain",),
    "firth.jobs.prompting": ("prompt",),
    "firth.jobs.reporting": ("report",),
    "firth.jobs.scoring": ("score",),
    "firth.data.corpus": ("Corpus",),
    "firth.jobs.preparation": ("prepare",),
    "firth.data.readers": ("ReadOptions",),
    "firth.data.shards": ("Shards",),
    "firth.data.stories": ("write_stories",),
    "firth.tasks.registry": ("list_tasks",),
    "firth.tokenizers.tokenizer": ("Tokenizer",),
    "firth.tokenizers.trainer": ("train_tokenizer",),
    "firth.demo.chapters": ("run_demo",),
    "firth.serve.running": ("run_server",),
    "firth.study.running": ("run_study",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'firth' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
