"""The methods of the study `timeline`: one row each, in the order of their years.

A new method is a new row. `preset` is pre-trained on the text of the study; then it is fine-tuned,
or gives its word vectors (ELMo: hidden states, frozen) to `model`, which is trained from random
weights. The year is that of the newest part: word2vec is of 2013, a BiLSTM-CRF with it of 2016.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TASKS = LABELS, WORDS, ANSWERS, TEXT = "classify", "tag", "span", "lm"
BAG_OF_WORDS, NGRAMS = "bag of words", "word n-grams"
CNN, DECODER, ENCODER = "CNN", "decoder", "encoder"
SCRATCH = {LABELS: "LSTM", WORDS: "BiLSTM-CRF", ANSWERS: "BiDAF"}  # from random weights, by task
TRANSFORMER = {"model.hidden_size": 128, "model.num_heads": 4, "model.ffn_size": 256}
LSTM = {"model.hidden_size": 128}
AWD_LSTM = {"model.hidden_size": 128, "model.lstm_size": 128}
ELMO = {"model.hidden_size": 128, "model.cell_size": 128}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the timeline."""

    name: str
    year: int
    paper: str
    tasks: tuple[str, ...]
    preset: str = ""  # to pre-train; "": none
    tokenizer: str = "word"  # kind of tokenizer of the pre-training text
    sizes: Mapping[str, Any] = field(default_factory=dict)  # overrides of pre-training
    model: str = ""  # of one task, trained from random weights; "": the preset is fine-tuned
    options: Mapping[str, Any] = field(default_factory=dict)  # of fine-tuning


def _with_vectors(task: str, model: str, year: int, paper: str) -> tuple[Method, ...]:
    """Return the rows of a task-specific model: with random vectors and with three other kinds."""
    name = SCRATCH[task]
    one: dict[str, Any] = {"tasks": (task,), "model": model}
    return (
        Method(name=name, year=year, paper=paper, **one),
        Method(
            name=f"{name} + word2vec",
            year=year,
            paper="Mikolov et al. 2013",
            preset="skipgram",
            **one,
        ),
        Method(
            name=f"{name} + GloVe",
            year=year,
            paper="Pennington et al. 2014",
            preset="glove",
            **one,
        ),
        Method(
            name=f"{name} + ELMo",
            year=2018,
            paper="Peters et al. 2018",
            preset="elmo",
            sizes=ELMO,
            **one,
        ),
    )


METHODS: tuple[Method, ...] = (
    Method(
        name=BAG_OF_WORDS,
        year=1998,
        paper="TF-IDF, linear classifier: Joachims 1998",
        tasks=(LABELS,),
    ),
    Method(
        name=NGRAMS,
        year=2012,
        paper="Wang and Manning 2012",
        tasks=(LABELS,),
    ),
    Method(
        name=CNN,
        year=2014,
        paper="Kim 2014",
        tasks=(LABELS,),
        model="cnn",
    ),
    *_with_vectors(LABELS, "bilstm-attention", 2016, "Zhou et al. 2016"),
    *_with_vectors(WORDS, "bilstm-crf", 2016, "Huang et al. 2015; Ma and Hovy 2016"),
    *_with_vectors(ANSWERS, "bidaf", 2017, "Seo et al. 2017"),
    Method(
        name="n-gram",
        year=1999,
        paper="Chen and Goodman 1999",
        tasks=(TEXT,),
        preset="ngram-3",
    ),
    Method(
        name="feed-forward",
        year=2003,
        paper="Bengio et al. 2003",
        tasks=(TEXT,),
        preset="bengio-2003",
    ),
    Method(
        name="LSTM language model",
        year=2014,
        paper="Zaremba et al. 2014",
        tasks=(TEXT,),
        preset="lstm-lm-tiny",
        sizes=LSTM,
    ),
    Method(
        name="AWD-LSTM",
        year=2018,
        paper="Merity et al. 2018",
        tasks=(TEXT,),
        preset="awd-lstm-tiny",
        sizes=AWD_LSTM,
    ),
    Method(
        name="ULMFiT",
        year=2018,
        paper="Howard and Ruder 2018",
        tasks=(LABELS,),
        preset="awd-lstm-tiny",
        sizes=AWD_LSTM,
        options={"recipe": "ulmfit", "overrides": {"lm.epochs": 1}},
    ),
    Method(
        name=DECODER,
        year=2018,
        paper="GPT: Radford et al. 2018",
        tasks=TASKS,
        preset="decoder-tiny",
        tokenizer="wordpiece",
        sizes=TRANSFORMER,
    ),
    Method(
        name=ENCODER,
        year=2019,
        paper="BERT: Devlin et al. 2019",
        tasks=(LABELS, WORDS, ANSWERS),
        preset="encoder-tiny",
        tokenizer="wordpiece",
        sizes=TRANSFORMER,
    ),
    Method(
        name="encoder-decoder",
        year=2020,
        paper="T5: Raffel et al. 2020; its encoder",
        tasks=(LABELS, WORDS, ANSWERS),
        preset="seq2seq-tiny-half",
        tokenizer="wordpiece",
        sizes=TRANSFORMER,
    ),
)


def methods_of(task: str) -> tuple[Method, ...]:
    """Return the methods of a task by year.

    >>> [method.name for method in methods_of("tag")][:3]
    ['BiLSTM-CRF', 'BiLSTM-CRF + word2vec', 'BiLSTM-CRF + GloVe']
    """
    return tuple(sorted((row for row in METHODS if task in row.tasks), key=lambda row: row.year))
