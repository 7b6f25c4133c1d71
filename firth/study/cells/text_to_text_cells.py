"""Cells for comparisons of architectures as text-to-text models (Raffel et al. 2020, section 3.2).

Tasks become pairs of texts, and the losses of an objective are measured on the same targets with
every architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from firth.data.packing import PackedSequences
from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.model import load
from firth.models.flops import training_flops
from firth.models.transformer import count_parameters
from firth.models.transformer_config import TransformerConfig, require_transformer_config
from firth.objectives.batch import Batch
from firth.objectives.causal import prefix
from firth.objectives.denoising import raw_length, span_corruption
from firth.objectives.text_to_text import causal_denoising, prefix_denoising, prefix_seq2seq
from firth.study.cells.finetuning_cells import read_rows
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.data_loader import VALIDATION_SEED
from firth.training.losses import token_losses
from firth.utils.errors import InputError
from firth.utils.files import atomic_file

BATCH_TOKENS = 4096
DENOISING, LANGUAGE_MODELLING = "denoising", "LM"


def text_to_text(context: CellContext, *, data: Cell) -> Mapping[str, Any]:
    """Write the examples of `split_task_data` as pairs of a source and a target text."""
    folder = context.path(data)
    for name in ("train", "test", "dev"):
        with atomic_file(context.folder / f"{name}.jsonl") as file:
            for row in read_rows(folder / f"{name}.jsonl"):
                source, target = as_texts(row)
                line = json.dumps({"source": source, "target": target}, ensure_ascii=False)
                file.write(line.encode() + b"\n")
    return dict(context.result(data))


def as_texts(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the source and the target of an example.

    >>> as_texts({"text_a": "It rains.", "text_b": "It is dry.", "label": "no"})
    ('It rains. It is dry.', 'no')
    >>> as_texts({"question": "Who?", "context": "Ann ran.", "answers": {"text": ["Ann"]}})
    ('Who? Ann ran.', 'Ann')
    """
    match row:
        case {"text": text, "label": label}:
            return text, str(label)
        case {"text_a": first, "text_b": second, "label": label}:
            return f"{first} {second}", str(label)
        case {"question": question, "context": passage, "answers": {"text": [answer, *_]}}:
            return f"{question} {passage}", answer
    raise InputError("The study needs examples of classify, pair or span (with an answer).")


def measured_model(
    context: CellContext, *, model: File, data: Cell, objective: str, length: int, tokens: int
) -> Mapping[str, Any]:
    """Measure parameters, FLOPs and the validation loss of a pre-trained model.

    All architectures predict the same targets from the same text: of `denoising` the spans, of `LM`
    the rest of a text after a random point. The loss is in nats per target token. FLOPs are those
    of the blocks for a sequence of `length` tokens, half of them input and half target.
    """
    opened = load(context.path(model), device=context.device)
    network, shards = opened.network, Shards(context.path(data) / "shards", "valid")
    spans, _ = Sampler(shards, VALIDATION_SEED).take(
        SamplerPosition(),
        length=raw_length(length, concatenated=True),
        tokens=min(tokens, max(shards.tokens, length)),
        frame=0,
    )
    text = Sampler(shards, VALIDATION_SEED).gather(spans)
    vocabulary = opened.require_tokenizer().vocabulary
    config = require_transformer_config(network.config)
    batch = comparable_batch(text.select(text.lengths >= 2), vocabulary, config, objective)
    sums, counts = [], []
    for part in batch.split(BATCH_TOKENS):
        (wanted,) = part.predictions.values()
        owners, size = part.output.owners[wanted.positions], len(part.output.keys)
        losses = token_losses(network, part, wanted)
        sums += np.bincount(owners, losses, minlength=size).tolist()
        counts += np.bincount(owners, minlength=size).tolist()
    embeddings = network.tokens.weight.numel()
    return {
        "scores": {"loss": score_values(sums, counts)},
        "parameters": count_parameters(network),
        "parameters_without_embeddings": count_parameters(network) - embeddings,
        "flops": flops_per_sequence(config, length),
    }


def comparable_batch(
    text: PackedSequences, vocabulary: Vocabulary, config: TransformerConfig, objective: str
) -> Batch:
    """Build the batch of an objective for an architecture; the targets are the same for all.

    >>> from firth.models.presets import preset
    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted
    >>> text = packed("the dog barked . it jump ##s")
    >>> for name in ("decoder-tiny", "seq2seq-tiny"):
    ...     batch = comparable_batch(text, VOCABULARY, preset(name).config, "LM")
    ...     predicted(batch, "prefix")
    '. it jump ##s'
    '. it jump ##s'
    """
    if objective == DENOISING and config.has_encoder:
        return span_corruption(text, vocabulary)
    if objective == DENOISING:
        return (prefix_denoising if config.prefix_lm else causal_denoising)(text, vocabulary)
    if config.has_encoder:
        batch = prefix_seq2seq(text, vocabulary)
        return _without_ends(batch)
    batch = prefix(text)
    return batch if config.prefix_lm else replace(batch, prefix=np.zeros_like(batch.prefix))


def _without_ends(batch: Batch) -> Batch:
    """Leave out the end tokens of the targets, which decoders do not predict in each sequence."""
    (name, wanted), stream = next(iter(batch.predictions.items())), batch.output
    inner = stream.offsets < stream.lengths[stream.owners] - 1
    kept = replace(wanted, positions=wanted.positions[inner], targets=wanted.targets[inner])
    return replace(batch, predictions={name: kept})


def flops_per_sequence(config: TransformerConfig, length: int) -> float:
    """Count the FLOPs of the blocks for a sequence of which half is input and half target.

    An encoder-decoder with L layers in each stack costs as much as a decoder with L layers, but
    for cross-attention: a token passes one of the stacks.

    >>> from firth.models.presets import preset
    >>> names = ("seq2seq-base", "decoder-base", "seq2seq-base-half")
    >>> costs = [flops_per_sequence(preset(name).config, 512) for name in names]
    >>> [round(cost / costs[0], 2) for cost in costs]
    [1.0, 0.86, 0.5]
    """
    attended = length / 2 if config.has_encoder else length
    return training_flops(config, length, attended, 0.0)
