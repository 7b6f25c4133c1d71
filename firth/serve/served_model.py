"""A loaded model with its name and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import embed
from firth.inference.generation.chat_template import chat_template
from firth.inference.scoring.token_scoring import check_language_head
from firth.model import Model
from firth.models.transformer import max_input_length, max_output_length
from firth.tasks.ensembles import resolve_task
from firth.tasks.task import Task, TaskMetadata
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import FirthError

# Tasks of the route that predicts them.
TASK_ROUTES = {
    "classify": ("classify", "pair", "regress", "next-sentence", "sentence-order"),
    "tag": ("tag",),
    "answer": ("span",),
}


@dataclass(eq=False)
class ServedModel:
    """A model with its name in the API."""

    name: str
    model: Model
    created: int = 0  # Unix time of loading
    capabilities: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = [name for name, test in CAPABILITIES.items() if _is_possible(test, self)]
        self.capabilities = tuple(found)
        self.embedder = lru_cache(maxsize=16)(self.make_embedder)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's input."""
        return self.model.input_tokenizer()

    @property
    def max_input_tokens(self) -> int:
        """The maximum number of tokens of an input."""
        return max_input_length(self.model.network)

    @property
    def max_output_tokens(self) -> int:
        """The maximum number of tokens of a decoder's context or output."""
        return max_output_length(self.model.network)

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the input."""
        return self.model.config.has_encoder

    def make_embedder(
        self, normalize: bool | None = None, prompt: str | None = None, role: str = ""
    ) -> Embedder:
        """Return an embedder with these options; `embedder` keeps those made before."""
        return self.model.embedder(normalize=normalize, prompt=prompt, role=role)

    def task(self) -> tuple[Task, TaskMetadata]:
        """Return the task that the model predicts, and its metadata."""
        return resolve_task(self.model, None)

    def values(self) -> dict[str, Any]:
        """Return what `/v1/models` tells about the model."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "firth",
            "root": self.model.source or self.name,
            "capabilities": list(self.capabilities),
            "architecture": self.model.config.architecture,
            "parameters": self.model.num_parameters,
            "max_model_len": self.max_input_tokens,
        }


def _is_possible(test: Callable[[ServedModel], Any], served: ServedModel) -> bool:
    """Try what a capability needs; errors of the package say that it is missing."""
    try:
        return test(served) is not False
    except FirthError:
        return False


def _has_chat_template(served: ServedModel) -> None:
    served.model.text_generator()
    chat_template(served.tokenizer)


def _scores(served: ServedModel) -> None:
    served.tokenizer.encode("a")
    check_language_head(served.model.network)
    if not served.model.config.has_decoder:
        served.model.blank_filler()  # a pseudo-log-likelihood needs a mask token


def _predicts(route: str) -> Callable[[ServedModel], bool]:
    return lambda served: served.task()[0].name in TASK_ROUTES[route]


def is_cross_encoder(served: ServedModel) -> bool:
    """Return whether a model computes a number for a pair of texts."""
    try:
        task, metadata = served.task()
    except FirthError:
        return False
    return task.name == "regress" and metadata.label_type == "number"


def _reranks(served: ServedModel) -> None:
    if not is_cross_encoder(served):
        _embeds(served)


def _embeds(served: ServedModel) -> None:
    embed(served.make_embedder(), ["a"])  # a count-based model has no hidden states


# What each capability needs; in the order of `/v1/models`.
CAPABILITIES: dict[str, Callable[[ServedModel], Any]] = {
    "fill": lambda served: served.model.blank_filler(),
    "generate": lambda served: served.model.text_generator(),
    "chat": _has_chat_template,
    "embed": _embeds,
    "rerank": _reranks,
    "classify": _predicts("classify"),
    "tag": _predicts("tag"),
    "answer": _predicts("answer"),
    "score": _scores,
    "tokenize": lambda served: served.tokenizer,
    "attention": lambda served: served.model.transformer,
}
