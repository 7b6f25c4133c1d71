"""Firth: from raw text to a pre-trained language model that is adapted, evaluated and deployed.

Names are imported when they are first used, so that `import firth` and `firth --help` are quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from firth.errors import FirthError, InputError, MismatchError, Misuse, StorageError
    from firth.evaluation import evaluate
    from firth.finetuning import finetune
    from firth.model import Model, export, load
    from firth.models.presets import preset
    from firth.objectives.show import show_objectives
    from firth.prediction import predict
    from firth.pretraining import pretrain
    from firth.prompting import prompt
    from firth.text.corpus import Corpus
    from firth.text.preparation import prepare
    from firth.text.readers import Reading
    from firth.text.shards import Shards
    from firth.text.stories import write_stories
    from firth.text.tokenizer import Tokenizer
    from firth.text.vocabulary import train_tokenizer
    from firth.tour import demo

__all__ = [
    "Corpus",
    "FirthError",
    "InputError",
    "MismatchError",
    "Misuse",
    "Model",
    "Reading",
    "Shards",
    "StorageError",
    "Tokenizer",
    "demo",
    "evaluate",
    "export",
    "finetune",
    "load",
    "predict",
    "prepare",
    "preset",
    "pretrain",
    "prompt",
    "show_objectives",
    "train_tokenizer",
    "write_stories",
]

_HOMES = {
    "firth.errors": ("FirthError", "InputError", "MismatchError", "Misuse", "StorageError"),
    "firth.evaluation": ("evaluate",),
    "firth.finetuning": ("finetune",),
    "firth.model": ("Model", "export", "load"),
    "firth.models.presets": ("preset",),
    "firth.objectives.show": ("show_objectives",),
    "firth.prediction": ("predict",),
    "firth.pretraining": ("pretrain",),
    "firth.prompting": ("prompt",),
    "firth.text.corpus": ("Corpus",),
    "firth.text.preparation": ("prepare",),
    "firth.text.readers": ("Reading",),
    "firth.text.shards": ("Shards",),
    "firth.text.stories": ("write_stories",),
    "firth.text.tokenizer": ("Tokenizer",),
    "firth.text.vocabulary": ("train_tokenizer",),
    "firth.tour": ("demo",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'firth' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
