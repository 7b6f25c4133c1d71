"""Tasks that only measure a model: nothing is taught, texts are scored as the model finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from firth.errors import Misuse
from firth.inference.pseudo import pseudo_likelihoods
from firth.inference.score import Score, likelihoods
from firth.metrics.bootstrap import Figure
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
Parts = dict[str, dict[str, Figure]]
Texts = Callable[[Iterable[str]], Iterator[Score]]  # how likely each of some texts is


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that says how likely texts are, and how it is asked."""

    network: Transformer
    tokenizer: Tokenizer
    hybrid: bool = False  # a decoder that fills blanks as well
    by_word: bool = False  # a hidden token hides the rest of its word
    name: str = "The model"
    progress: Progress = lambda what, done, there: None

    @property
    def config(self) -> ModelConfig:
        """What the network is made of."""
        return self.network.config

    @property
    def notes(self) -> list[str]:
        """What must be known of its figures."""
        if not self.config.has_decoder or self.config.begin_id is not None:
            return []
        return [
            "The model has no token that begins a text: the first token of each is not scored, so "
            "that figures of short texts are a little too good."
        ]

    def ways(self) -> dict[str, Texts]:
        """Every way in which it finds whole texts likely, by what its figures begin with."""
        both = self.network, self.tokenizer
        pseudo = partial(pseudo_likelihoods, *both, by_word=self.by_word)
        if not self.config.has_decoder:
            return {"": pseudo}
        if self.by_word and not self.hybrid:
            raise Misuse("--by-word is for models that fill blanks; this one reads left to right.")
        plain = partial(likelihoods, *both)
        return {"": plain, "masked_": pseudo} if self.hybrid else {"": plain}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What is measured, and how."""

    data: str | Path
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    limit: int = 0  # examples of each file; 0: all
    convention: str = ""  # by which running text is counted
    context: int = 0  # tokens that are read at once; 0: as the model suggests
    stride: int = 0  # tokens from one window to the next; 0: half of them


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was found."""

    n: int
    figures: Mapping[str, Figure]
    parts: Parts = field(default_factory=dict)
    groups: dict[str, Parts] = field(default_factory=dict)  # the same by larger kinds
    details: dict[str, Any] = field(default_factory=dict)  # what was counted, and how
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One task of this kind, as a row."""

    about: str
    columns: str  # of its files, for people
    metric: str
    architectures: tuple[str, ...]
    options: tuple[str, ...]  # of `Asking` and `Scorer`, beside those that all have
    roles: tuple[str, ...] = ()
    folders: bool = False  # data may be a folder
    run: Callable[[Scorer, Asking], Measured]
