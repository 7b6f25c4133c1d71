"""Task-specific models: networks that are trained from random weights, one row each.

`firth finetune NAME` trains one on the words of the training data, without a tokenizer and without
a pre-trained model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.models.config import ModelConfig
from firth.models.recurrent.bidaf_config import BidafConfig
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig, RnnSeq2SeqConfig
from firth.models.task_specific.text_configs import BagOfWordsConfig, TextCnnConfig, TextLstmConfig

OFTEN: dict[str, Any] = dict(validate_every=0.2, patience=3)  # the best of five states is kept
SENTENCES = ("classify", "pair", "regress")
# What all rows share; `vocab_size` and the rows of embeddings follow from the training data.
WORDS: dict[str, Any] = dict(
    architecture="encoder", vocab_size=1, max_positions=4096, initialization="xavier", init_std=0.1
)


@dataclass(frozen=True, kw_only=True)
class TaskSpecificModel:
    """A network for some tasks, and how it is trained."""

    config: ModelConfig
    tasks: tuple[str, ...]
    source: str  # the paper
    learning_rate: float
    epochs: float
    batch_size: int = 32
    settings: Mapping[str, Any] = field(default_factory=lambda: OFTEN)  # of the training config
    strategy: str = "full"
    keeps_case: bool = False  # the network reads or writes capitals, and so the vocabulary has them
    heads: tuple[str, ...] = ()  # that it has from the beginning; the task adds its own


SEQ2SEQ: dict[str, Any] = WORDS | dict(architecture="encoder-decoder", num_layers=1, dropout=0.2)

TASK_MODELS: dict[str, TaskSpecificModel] = {
    "bow": TaskSpecificModel(
        config=BagOfWordsConfig(**WORDS, hidden_size=1, num_layers=1, dropout=0.0),
        tasks=SENTENCES,
        source="Spärck Jones 1972; Salton and Buckley 1988",
        learning_rate=1e-2,
        epochs=1,
        strategy="probe",
    ),
    "cnn": TaskSpecificModel(
        config=TextCnnConfig(
            **WORDS, hidden_size=300, num_layers=1, embedding_size=100, pooling="max", dropout=0.5
        ),
        tasks=SENTENCES,
        source="Kim 2014",
        learning_rate=1e-3,
        epochs=2,
        batch_size=50,
    ),
    "lstm": TaskSpecificModel(
        config=TextLstmConfig(
            **WORDS, hidden_size=200, num_layers=1, embedding_size=100, pooling="last", dropout=0.3
        ),
        tasks=SENTENCES,
        source="Hochreiter and Schmidhuber 1997",
        learning_rate=2e-3,
        epochs=5,
    ),
    "bilstm-attention": TaskSpecificModel(
        config=TextLstmConfig(
            **WORDS,
            hidden_size=200,
            num_layers=1,
            embedding_size=100,
            bidirectional=True,
            pooling="attention",
            dropout=0.3,
        ),
        tasks=SENTENCES,
        source="Zhou et al. 2016; Yang et al. 2016",
        learning_rate=2e-3,
        epochs=5,
    ),
    "bilstm-crf": TaskSpecificModel(
        config=TextLstmConfig(
            **WORDS,
            hidden_size=200,
            num_layers=1,
            embedding_size=100,
            bidirectional=True,
            character_filters=30,
            label_crf=True,
            dropout=0.5,
        ),
        tasks=("tag",),
        source="Huang et al. 2015; Lample et al. 2016; Ma and Hovy 2016",
        learning_rate=4e-3,
        epochs=5,
        batch_size=64,
        keeps_case=True,
    ),
    "bidaf": TaskSpecificModel(
        config=BidafConfig(**WORDS, embedding_size=100, lstm_size=100, dropout=0.2),
        tasks=("span",),
        source="Seo et al. 2017",
        learning_rate=1e-3,
        epochs=10,
        keeps_case=True,
    ),
    "rnn-seq2seq": TaskSpecificModel(
        config=RnnSeq2SeqConfig(**SEQ2SEQ, hidden_size=256, embedding_size=256),
        tasks=("seq2seq",),
        source="Sutskever et al. 2014; Bahdanau et al. 2015; Luong et al. 2015",
        learning_rate=3e-3,
        epochs=10,
        keeps_case=True,
        heads=("language",),
    ),
    "pointer-generator": TaskSpecificModel(
        config=PointerGeneratorConfig(**SEQ2SEQ, hidden_size=128, embedding_size=64),
        tasks=("seq2seq",),
        source="See et al. 2017",
        learning_rate=3e-3,
        epochs=10,
        batch_size=8,
        keeps_case=True,
        heads=("language",),
    ),
}


def models_of_task(task: str) -> list[str]:
    """Return the names of the models that can be trained for a task.

    >>> models_of_task("tag")
    ['bilstm-crf']
    """
    return [name for name, row in TASK_MODELS.items() if task in row.tasks]
