"""Tasks that evaluate a language model without training: texts are scored by likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from firth.data.memory import Source
from firth.formats.sentence_transformers import SentenceEncoderConfig
from firth.inference.scoring.log_likelihood import log_likelihoods
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.inference.scoring.token_scoring import TokenScores
from firth.metrics.bootstrap import Metric
from firth.models.config import LanguageModelConfig
from firth.models.language_model import ScoringModel
from firth.tasks.readers.columns import TaskFile
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.errors import UsageError

Progress = Callable[[str, int, int], None]
Parts = dict[str, dict[str, Metric]]
Texts = Callable[[Iterable[str]], Iterator[TokenScores]]  # log-likelihoods of texts


DENOISES = (
    "The model was pre-trained to predict spans removed from a text, not whole texts: its "
    "likelihoods are not those of a language model."
)
WITHOUT_BOS = (
    "The model has no BOS token: the first token of each text is not scored, so metrics of short "
    "texts are slightly too good."
)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that computes log-likelihoods of texts, with its options."""

    network: ScoringModel
    tokenizer: Tokenizer
    hybrid: bool = False  # a decoder also trained on masked tokens
    denoises: bool = False  # a decoder trained on removed spans only
    encoder_tokenizer: Tokenizer | None = None  # if the encoder has its own
    sentence: SentenceEncoderConfig | None = None  # how its embeddings are pooled
    by_word: bool = False  # mask the rest of a word together with each of its tokens
    temperature: float = 1.0  # that logits are divided by
    name: str = "The model"
    progress: Progress = lambda what, done, there: None

    @property
    def config(self) -> LanguageModelConfig:
        """The config of the network."""
        return self.network.config

    @property
    def notes(self) -> list[str]:
        """Remarks on its metrics."""
        without_bos = self.config.has_decoder and self.config.bos_token_id is None
        return [DENOISES] * self.denoises + [WITHOUT_BOS] * without_bos

    def methods(self) -> dict[str, Texts]:
        """The scoring methods of the model, by the prefix of their metrics' names."""
        both, heat = (self.network, self.tokenizer), self.temperature
        pseudo: Texts = partial(
            pseudo_log_likelihoods, *both, by_word=self.by_word, temperature=heat
        )
        if not self.config.has_decoder:
            return {"": pseudo}
        if self.by_word and not self.hybrid:
            raise UsageError("--by-word is for masked language models; this model is a causal one.")
        plain: Texts = partial(log_likelihoods, *both, temperature=heat)
        return {"": plain, "masked_": pseudo} if self.hybrid else {"": plain}


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """The data and options of an evaluation."""

    data: Source
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    limit: int = 0  # examples of each file; 0: all
    convention: str = ""  # of perplexity: plain, wikitext, ptb or enwik8
    context: int = 0  # tokens of a window; 0: a default for the model
    stride: int = 0  # tokens from one window to the next; 0: half a window
    bad: BadRows = field(default_factory=lambda: BadRows(SKIPPED))

    @property
    def file(self) -> TaskFile:
        """The file of examples."""
        return TaskFile(self.data, self.format, self.columns, bad=self.bad)


@dataclass(frozen=True, kw_only=True)
class ScoringResult:
    """The metrics of an evaluation."""

    n: int
    metrics: Mapping[str, Metric]
    parts: Parts = field(default_factory=dict)
    groups: dict[str, Parts] = field(default_factory=dict)  # by larger categories
    details: dict[str, Any] = field(default_factory=dict)  # counts and options
    selected_on: list[str] = field(default_factory=list)  # what some of the examples selected
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ScoringTask:
    """One evaluation-only task."""

    about: str
    columns: str  # of its files, as shown in help
    metric: str
    architectures: tuple[str, ...]
    options: tuple[str, ...]  # that are specific to it
    roles: tuple[str, ...] = ()
    folders: bool = False  # data may be a folder
    run: Callable[[Scorer, ScoringOptions], ScoringResult]
