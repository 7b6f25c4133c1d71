"""What `--vectors` names: word vectors, or a model whose hidden states are input vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from firth.embedded import local_path
from firth.formats.arpa import ENDINGS as ARPA_ENDINGS
from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.static_model import vectors_of_model
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.jobs.parent_models import load_float32, merge_adapters
from firth.model import AnyModel, Model
from firth.models.networks import network_name
from firth.models.ngram.model import NO_HIDDEN_STATES
from firth.models.static_vectors import StaticVectors
from firth.models.task_specific.bag_of_words import BagOfWords
from firth.models.word_embedding import WordNetwork
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError

MODEL_ENDINGS = (".gguf", *ARPA_ENDINGS)  # of files that are no word vectors
UNLABELLED: dict[str, Any] = dict(
    label_head="", labels=(), label_input_layer=None, label_layer_mix=False, label_crf=False
)


def find_vectors(source: AnyModel) -> WordVectors | Model:
    """Return word vectors, or a copy of a model with hidden states: without heads, in float32."""
    if not isinstance(source, Model):
        path = local_path(source)
        if path is not None and path.is_file() and not path.name.endswith(MODEL_ENDINGS):
            return read_word_vectors(path)
    model = load_float32(source)
    name = model.source or "The model"
    if isinstance(model.network, StaticVectors):
        return vectors_of_model(model)
    if not model.config.hidden_size:
        raise MismatchError(f"{name} cannot be --vectors: {NO_HIDDEN_STATES}.")
    if isinstance(model.network, WordNetwork | BagOfWords):
        raise MismatchError(
            f"{name} cannot be --vectors: it is a task-specific model; use word vectors, ELMo or "
            "another pre-trained model."
        )
    model.input_tokenizer()  # an error, if there is none
    merge_adapters(model)
    model.network.heads = nn.ModuleDict()
    model.network.config = replace(model.config, **UNLABELLED)
    return model


def feature_fields(source: Model) -> dict[str, Any]:
    """Return the config fields of a network that reads the hidden states of a model."""
    return {"features": {"network": network_name(source.config), "model": source.config.to_dict()}}


def attach_features(network: WordNetwork, tokenizer: Tokenizer, source: Model) -> str:
    """Copy a model into `network.features`, given the network's tokenizer; return a note."""
    features = network.features
    assert features is not None
    features.network.load_state_dict(source.network.state_dict())
    features.set_tokenizers(tokenizer, source.input_tokenizer())
    reads = f"a mix of {len(features.mix.weights)} layers" if features.mix else "one layer"
    how = "frozen" if features.frozen else "trained further"
    return (
        f"The vector of a word is its embedding ({network.config.token_embedding_size} numbers) "
        f"and the hidden states of {source.source or 'the given model'} ({features.size} numbers, "
        f"{reads}, {how})."
    )
