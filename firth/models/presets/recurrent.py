"""Language models between n-grams and the Transformer: feed-forward and recurrent."""

from __future__ import annotations

from typing import Any

from firth.models.config import ModelConfig
from firth.models.presets.row import Preset
from firth.models.recurrent.recurrent_configs import AwdLstmConfig, BengioConfig, LstmConfig

# A recurrent model can read any length: this limits the windows in which texts are scored.
DECODER: dict[str, Any] = dict(
    architecture="decoder", max_positions=4096, pooling="last", init_std=0.05
)
# With embeddings of the papers' size, the gates see too little of the words to learn with AdamW.
RECURRENT = DECODER | dict(head_bias="trained", init_std=0.3)
# About as many parameters as the Transformer `decoder-tiny`, for comparisons and for a CPU.
TINY = RECURRENT | dict(vocab_size=4096, hidden_size=192)


def _causal(name: str, config: ModelConfig, recipe: str, source: str, parameters: int) -> Preset:
    """Build the preset of a language model that predicts the next token."""
    return Preset(
        name=name,
        config=config,
        heads=("language",),
        objective="causal",
        recipe=recipe,
        source=source,
        parameters=parameters,
    )


BENGIO = "Bengio et al. 2003, section 4.2: AP News"
ZAREMBA = "Zaremba et al. 2014, section 4.1: medium"
MERITY = "Merity et al. 2018, section 5: Penn Treebank"

RECURRENT_MODELS: dict[str, Preset] = {
    row.name: row
    for row in (
        _causal(
            "bengio-2003",
            BengioConfig(vocab_size=17964, embedding_size=100, dropout=0.0, **DECODER),
            "bengio",
            BENGIO,
            11_904_264,
        ),
        _causal(
            "lstm-lm",
            LstmConfig(
                vocab_size=10_000,
                hidden_size=650,
                num_layers=2,
                tie_embeddings=False,
                dropout=0.5,
                **RECURRENT,
            ),
            "lstm",
            ZAREMBA,
            19_780_400,
        ),
        _causal(
            "lstm-lm-tiny",
            LstmConfig(num_layers=2, **TINY),
            "lstm",
            "Zaremba et al. 2014, smaller and with tied weights",
            1_383_424,
        ),
        _causal(
            "awd-lstm",
            AwdLstmConfig(
                vocab_size=10_000,
                hidden_size=400,
                lstm_size=1150,
                num_layers=3,
                dropout=0.4,
                **RECURRENT,
            ),
            "awd-lstm",
            MERITY,
            24_221_600,
        ),
        _causal(
            "awd-lstm-tiny",
            AwdLstmConfig(
                lstm_size=288,
                num_layers=2,
                embedding_dropout=0.02,
                input_dropout=0.1,
                layer_dropout=0.1,
                weight_dropout=0.2,
                **TINY,
            ),
            "awd-lstm",
            "Merity et al. 2018, smaller and with less dropout",
            1_715_968,
        ),
    )
}
