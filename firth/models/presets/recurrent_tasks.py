"""Recurrent task-specific models: sequence to sequence, and answers in a text.

Smaller than in the papers, for a few thousand examples and a CPU.
"""

from __future__ import annotations

from firth.models.presets.row import Preset
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig, RnnSeq2SeqConfig

RECURRENT_TASKS = {
    "rnn-seq2seq": Preset(
        name="rnn-seq2seq",
        config=RnnSeq2SeqConfig(
            vocab_size=30_000,
            max_positions=512,
            hidden_size=256,
            num_layers=1,
            num_decoder_layers=1,
            dropout=0.2,
            initialization="xavier",
        ),
        heads=("language",),
        objective="infilling",
        recipe="transformer",
        source="Sutskever et al. 2014; attention of Bahdanau et al. 2015 and Luong et al. 2015; "
        "trained there to translate, here also with BART's objective",
        parameters=16_938_240,
    ),
    "pointer-generator": Preset(
        name="pointer-generator",
        config=PointerGeneratorConfig(
            vocab_size=30_000,
            max_positions=512,
            hidden_size=256,
            embedding_size=128,
            num_layers=1,
            num_decoder_layers=1,
            dropout=0.2,
            initialization="xavier",
        ),
        heads=("language",),
        objective="infilling",
        recipe="transformer",
        source="See et al. 2017; trained there to summarize",
        parameters=12_574_593,
    ),
}
