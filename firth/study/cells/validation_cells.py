"""Cells that measure how well a model predicts tokens of held-out text, for each document.

All models see the same sequences with the same targets: the draws of masks depend on the document
and the position alone, not on the model.

P  predicted positions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from firth.data.sampler import DocumentSpans, Sampler
from firth.data.shards import Shards
from firth.model import load
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.objectives.registry import OBJECTIVES
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.training.losses import LOGITS_CHUNK, hidden_states
from firth.utils.device_transfer import to_device
from firth.utils.errors import InputError
from firth.utils.rng import Bools, Floats, derive_keys

SPANS = 128  # sequences in a forward pass
FRAME = 2  # special tokens around a sequence


def validated(
    context: CellContext,
    *,
    model: File,
    data: Cell,
    objective: str,
    max_length: int,
    documents: int,
    options: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Compute the loss and the accuracy of a model on held-out documents.

    `data` is a cell of `prepared_text`; `objective` has one kind of predictions, such as masked or
    causal, and `options`. Scores have one example per document: nats and right predictions over
    predicted tokens.
    """
    shards = Shards(context.path(data) / "shards", "valid")
    loaded = load(context.path(model), device=context.device)
    tokenizer, build = loaded.require_tokenizer(), OBJECTIVES[objective].build
    count = min(documents, len(shards))
    sums = np.zeros((3, count))  # nats, right predictions, predictions
    sampler = Sampler(shards)
    for spans in document_spans(shards, count, max_length):
        batch = build(sampler, spans, tokenizer.vocabulary, length=max_length, **options)
        (wanted,) = batch.predictions.values()
        owners = spans.documents[batch.inputs.owners[wanted.positions]]
        losses, right = predictions(loaded.network, batch, wanted)
        for row, values in zip(sums, (losses, right, np.ones(len(right))), strict=True):
            row += np.bincount(owners, values, minlength=count)
    return {
        "scores": {
            "loss": score_values(sums[0], sums[2]),
            "accuracy": score_values(sums[1], sums[2]),
        }
    }


def document_spans(shards: Shards, documents: int, max_length: int) -> Iterator[DocumentSpans]:
    """Yield the sequences of the first documents; their random draws depend on them alone."""
    size = max_length - FRAME
    rows = [
        (document, start, min(start + size, length))
        for document, length in enumerate(shards.lengths[:documents].tolist())
        for start in range(0, length, size)
    ]
    for begin in range(0, len(rows), SPANS):
        chosen, starts, ends = np.array(rows[begin : begin + SPANS], dtype=np.int64).T
        yield DocumentSpans(chosen, starts, ends, derive_keys(derive_keys(0, chosen), starts))


@torch.no_grad()
def predictions(
    network: LanguageNetwork, batch: Batch, wanted: PredictionTargets
) -> tuple[Floats, Bools]:
    """Compute the loss of each target in nats, and whether it is the most probable token."""
    hidden = hidden_states(network, batch)
    losses, right = list[Floats](), list[Bools]()
    for begin in range(0, len(wanted.targets), LOGITS_CHUNK):
        chunk = slice(begin, begin + LOGITS_CHUNK)
        positions, targets = (
            to_device(values[chunk], hidden.device) for values in (wanted.positions, wanted.targets)
        )
        log_probs = network.logits(hidden[positions]).float().log_softmax(-1)  # (P, V)
        losses.append(-log_probs.gather(1, targets[:, None])[:, 0].double().cpu().numpy())
        right.append((log_probs.argmax(-1) == targets).cpu().numpy())
    return np.concatenate(losses), np.concatenate(right)


def check_validation(splits: Mapping[str, Any]) -> None:
    """Raise InputError if the text of `prepared_text` has too few held-out documents."""
    count = splits.get("valid", {}).get("documents", 0)
    if count < 2:
        raise InputError(
            f"The text has {count} documents for validation, and the study needs at least 2: give "
            "more text, in more documents."
        )
