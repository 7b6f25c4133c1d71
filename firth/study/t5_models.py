"""The ten models of T5's table: five architectures, two objectives, and the lecture's numbers."""

from __future__ import annotations

from typing import NamedTuple

from firth.study.cells.text_to_text_cells import DENOISING, LANGUAGE_MODELLING

SOURCE = "Lecture 4, Pretraining encoder-decoder models (Raffel et al. 2020, table 2)"


class Architecture(NamedTuple):
    """An architecture: its preset, what differs from it, its objectives, and T5's counts."""

    preset: str
    objectives: tuple[str, str]  # denoising, language modelling
    parameters: str
    cost: str
    share: bool = False
    divisor: int = 1  # of the number of layers


_BOTH = ("span-corruption", "prefix-seq2seq")
ENCODER_DECODER, SHARED, HALF = "encoder-decoder", "shared encoder-decoder", "half the layers"
LM, PREFIX_LM = "language model", "prefix LM"
ARCHITECTURES = {
    ENCODER_DECODER: Architecture("seq2seq-tiny", _BOTH, "2P", "M"),
    SHARED: Architecture("seq2seq-tiny", _BOTH, "P", "M", share=True),
    HALF: Architecture("seq2seq-tiny", _BOTH, "P", "M/2", divisor=2),
    LM: Architecture("decoder-tiny", ("causal-denoising", "causal"), "P", "M"),
    PREFIX_LM: Architecture("decoder-tiny", ("prefix-denoising", "prefix"), "P", "M"),
}
OBJECTIVES = (DENOISING, LANGUAGE_MODELLING)
Model = tuple[str, str]  # architecture, objective
MODELS: list[Model] = [(name, objective) for objective in OBJECTIVES for name in ARCHITECTURES]
BEST: Model = (ENCODER_DECODER, DENOISING)
LECTURE_COLUMNS = ("GLUE", "CNNDM", "SQuAD", "SGLUE", "EnDe", "EnFr", "EnRo")
_SCORES = """
83.28 19.24 80.88 71.36 26.98 39.82 27.65
82.81 18.78 80.63 70.73 26.72 39.03 27.46
80.88 18.97 77.59 68.42 26.38 38.40 26.95
74.70 17.93 61.14 55.02 25.09 35.28 25.86
81.82 18.61 78.94 68.11 26.43 37.98 27.39
79.56 18.59 76.02 64.29 26.27 39.17 26.86
79.60 18.13 76.35 63.50 26.62 39.17 27.05
78.67 18.26 75.32 64.06 26.13 38.42 26.89
73.78 17.54 53.81 56.51 25.23 34.31 25.38
79.68 17.84 76.87 64.86 26.28 37.51 26.76
"""
LECTURE_SCORES = {
    model: dict(zip(LECTURE_COLUMNS, map(float, line.split()), strict=True))
    for model, line in zip(MODELS, _SCORES.strip().splitlines(), strict=True)
}
