"""The alignment of an output with its source: the attention of a recurrent decoder.

Row i of the matrix is the attention on the source when output word i was chosen (Bahdanau et al.
2015, figure 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firth.model import Model
from firth.models.masks import Mask
from firth.models.recurrent.rnn_seq2seq import RnnSeq2Seq
from firth.tokenizers.display import display_tokens
from firth.utils.errors import MismatchError
from firth.utils.figures import Figure, Heatmap

CAPTION = (
    "Each row is a word of the output and adds up to 1: how much of the attention was on each word "
    "of the source when it was chosen. The last row is the end of the output."
)
END = "(end)"


@dataclass(frozen=True)
class AlignmentMatrix:
    """The attention weights of each output word on the words of the source."""

    source: tuple[str, ...]
    output: tuple[str, ...]  # the last is the end
    weights: tuple[tuple[float, ...], ...]  # output words × source words

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        rows = [[round(weight, 4) for weight in row] for row in self.weights]
        return {"source": list(self.source), "output": list(self.output), "weights": rows}

    def figures(self) -> tuple[Figure, ...]:
        """Return the matrix as a heatmap."""
        pairs = [
            [
                f"{word} → {other}: {weight:.3f}"
                for other, weight in zip(self.source, row, strict=True)
            ]
            for word, row in zip(self.output, self.weights, strict=True)
        ]
        return (
            Heatmap(
                "",
                self.output,
                self.source,
                self.weights,
                details=tuple(map(tuple, pairs)),
                row_title="output",
                column_title="source",
                caption=CAPTION,
            ),
        )


def has_alignment(model: Model) -> bool:
    """Tell whether a model is a recurrent encoder-decoder with attention."""
    return isinstance(model.network, RnnSeq2Seq) and model.network.attention is not None


@torch.no_grad()
def alignment_matrix(model: Model, text: str, target: str | None = None) -> AlignmentMatrix:
    """Compute the alignment of a source text with `target`, by default the model's own output."""
    network = model.network
    if not isinstance(network, RnnSeq2Seq) or network.attention is None:
        raise MismatchError(
            f"{model.source or model.path} is no recurrent encoder-decoder with attention, so it "
            "aligns no words: omit alignment."
        )
    ids = model.input_ids(text)
    target_ids = model.decoder_ids(ids.tolist(), target)
    mask, alignments = Mask([len(ids)], device=ids.device), list[Tensor]()
    network(
        torch.tensor(target_ids, device=ids.device),
        Mask.causal([len(target_ids)], device=ids.device),
        memory=network.encode_source(ids, mask),
        memory_mask=mask,
        alignments=alignments,
    )
    tokenizer = model.require_tokenizer()
    return AlignmentMatrix(
        source=tuple(display_tokens(model.input_tokenizer(), ids.tolist())),
        output=(*display_tokens(tokenizer, target_ids[1:]), END),
        weights=tuple(map(tuple, alignments[0].float().tolist())),
    )
