"""The kinds of networks, by the name that `config.json` has for them: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.models.contextual_features import ContextualFeatures
from firth.models.language_model import LanguageNetwork
from firth.models.ngram.config import NgramConfig
from firth.models.ngram.model import NgramModel
from firth.models.recurrent.awd_lstm import AwdLstm
from firth.models.recurrent.bengio import BengioLanguageModel
from firth.models.recurrent.bidaf import Bidaf
from firth.models.recurrent.bidaf_config import BidafConfig
from firth.models.recurrent.elmo import Elmo
from firth.models.recurrent.elmo_config import ElmoConfig
from firth.models.recurrent.lstm_lm import LstmLanguageModel
from firth.models.recurrent.pointer_generator import PointerGenerator
from firth.models.recurrent.recurrent_configs import AwdLstmConfig, BengioConfig, LstmConfig
from firth.models.recurrent.rnn_seq2seq import RnnSeq2Seq
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig, RnnSeq2SeqConfig
from firth.models.static_vectors import StaticVectors
from firth.models.static_vectors_config import StaticVectorsConfig
from firth.models.task_specific.bag_of_words import BagOfWords
from firth.models.task_specific.text_cnn import TextCnn
from firth.models.task_specific.text_configs import BagOfWordsConfig, TextCnnConfig, TextLstmConfig
from firth.models.task_specific.text_lstm import TextLstm
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.models.word_embedding import WordNetwork
from firth.utils.errors import InputError


@dataclass(frozen=True)
class NetworkKind:
    """The config and the class of a kind of network."""

    config: type[ModelConfig]
    build: Callable[..., LanguageNetwork]  # of a config and the names of its heads


NETWORKS: dict[str, NetworkKind] = {
    "transformer": NetworkKind(TransformerConfig, Transformer),
    "static-vectors": NetworkKind(StaticVectorsConfig, StaticVectors),
    "ngram": NetworkKind(NgramConfig, NgramModel),
    "rnn-seq2seq": NetworkKind(RnnSeq2SeqConfig, RnnSeq2Seq),
    "bengio": NetworkKind(BengioConfig, BengioLanguageModel),
    "lstm": NetworkKind(LstmConfig, LstmLanguageModel),
    "awd-lstm": NetworkKind(AwdLstmConfig, AwdLstm),
    "pointer-generator": NetworkKind(PointerGeneratorConfig, PointerGenerator),
    "bidaf": NetworkKind(BidafConfig, Bidaf),
    "elmo": NetworkKind(ElmoConfig, Elmo),
    "bag-of-words": NetworkKind(BagOfWordsConfig, BagOfWords),
    "text-cnn": NetworkKind(TextCnnConfig, TextCnn),
    "text-lstm": NetworkKind(TextLstmConfig, TextLstm),
}


def network_name(config: ModelConfig) -> str:
    """Return the name of the kind of network that a config describes.

    >>> from firth.models.presets import preset
    >>> network_name(preset("bert-tiny").config)
    'transformer'
    """
    return next(name for name, kind in NETWORKS.items() if kind.config is type(config))


def build_network(config: ModelConfig, heads: Iterable[str] = ()) -> LanguageNetwork:
    """Build the network that a config describes; its weights are not initialized yet."""
    network = NETWORKS[network_name(config)].build(config, heads)
    if isinstance(network, WordNetwork) and (features := network.config.features) is not None:
        other = build_network(config_class(features["network"]).from_dict(features["model"]))
        network.features = ContextualFeatures(
            other, frozen=network.config.freeze_vectors, layer=network.config.feature_layer
        )
    return network


def config_class(name: str) -> type[ModelConfig]:
    """Return the config class of a kind of network; raise InputError if there is none."""
    if name not in NETWORKS:
        raise InputError(f"the network {name!r} is not supported; known are {', '.join(NETWORKS)}.")
    return NETWORKS[name].config
