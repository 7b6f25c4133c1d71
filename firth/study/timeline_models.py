"""The methods of the study `timeline`: one row each, in the order of their years.

A new method is a new row. `preset` is pre-trained on the text of the study; then it is fine-tuned,
or gives its word vectors to `model`, which is trained from random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TASKS = LABELS, WORDS, ANSWERS, TEXT = "classify", "tag", "span", "lm"
BAG_OF_WORDS, NGRAMS = "bag of words", "word n-grams"
SCRATCH, CNN, DECODER, ENCODER = "LSTM", "CNN", "decoder", "encoder"
SIZE = {"model.hidden_size": 128, "model.num_heads": 4, "model.ffn_size": 256}
LSTM = {"model.hidden_size": 128}
AWD_LSTM = {"model.hidden_size": 128, "model.lstm_size": 192}


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
    model: Mapping[str, str] = field(default_factory=dict)  # of one task, by task
    options: Mapping[str, Any] = field(default_factory=dict)  # of fine-tuning


_BILSTM = {LABELS: "bilstm-attention", WORDS: "bilstm-crf"}
_MIX = {"strategy": "probe:layer=mix"}

METHODS: tuple[Method, ...] = (
    Method(
        name=BAG_OF_WORDS,
        year=1998,
        paper="TF-IDF, linear classifier: Joachims 1998",
        tasks=(LABELS,),
    ),
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
        model={LABELS: "cnn"},
    ),
    Method(
        name=SCRATCH,
        year=2015,
        paper="with attention: Zhou et al. 2016; with a CRF: Huang et al. 2015",
        tasks=(LABELS, WORDS),
        model=_BILSTM,
    ),
    Method(
        name="LSTM + word2vec",
        year=2013,
        paper="Mikolov et al. 2013",
        tasks=(LABELS, WORDS),
        preset="skipgram",
        model=_BILSTM,
    ),
    Method(
        name="LSTM + GloVe",
        year=2014,
        paper="Pennington et al. 2014",
        tasks=(LABELS, WORDS),
        preset="glove",
        model=_BILSTM,
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
        name="ELMo",
        year=2018,
        paper="Peters et al. 2018",
        tasks=(LABELS, WORDS, ANSWERS, TEXT),
        preset="elmo",
        sizes={"model.hidden_size": 128, "model.cell_size": 128},
        options=_MIX,
    ),
    Method(
        name="ULMFiT",
        year=2018,
        paper="Howard and Ruder 2018",
        tasks=(LABELS,),
        preset="awd-lstm-tiny",
        sizes=AWD_LSTM,
        options={"recipe": "ulmfit"},
    ),
    Method(
        name=DECODER,
        year=2018,
        paper="GPT: Radford et al. 2018",
        tasks=(LABELS, WORDS, ANSWERS, TEXT),
        preset="decoder-tiny",
        tokenizer="wordpiece",
        sizes=SIZE,
    ),
    Method(
        name=ENCODER,
        year=2019,
        paper="BERT: Devlin et al. 2019",
        tasks=(LABELS, WORDS, ANSWERS),
        preset="encoder-tiny",
        tokenizer="wordpiece",
        sizes=SIZE,
    ),
    Method(
        name="encoder-decoder",
        year=2020,
        paper="T5: Raffel et al. 2020; its encoder",
        tasks=(LABELS, WORDS, ANSWERS),
        preset="seq2seq-tiny-half",
        tokenizer="wordpiece",
        sizes=SIZE,
    ),
)
