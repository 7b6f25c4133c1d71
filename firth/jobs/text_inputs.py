"""The arguments of functions of a model and texts: types, and how both are loaded."""

from __future__ import annotations

from typing import TypedDict

from firth.inference.embedding.embedder import Layer
from firth.inference.generation.generation_config import GenerationOptions
from firth.inference.infilling.fill_methods import FillOptions
from firth.tokenizers.counting import Progress
from firth.utils.devices import Device, Dtype


class TextInputOptions(TypedDict, total=False):
    """How texts are read and a model is loaded."""

    column: str | None
    format: str | None
    strict: bool
    dtype: Dtype
    device: Device


class BlankOptions(TextInputOptions, FillOptions, total=False):
    """The options of `fill`."""


class CompletionOptions(TextInputOptions, GenerationOptions, total=False):
    """The options of `generate`."""

    weights: str | None


class VectorOptions(TextInputOptions, total=False):
    """The options of `embed`."""

    overwrite: bool
    pooling: str | None
    layer: Layer | None
    normalize: bool | None
    prompt: str | None
    precision: str
    batch_tokens: int
    progress: Progress
