"""Task-specific models: an untrained network, and a tokenizer of the words of the training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from firth.embedded import local_path
from firth.formats.tokenizers.loading import load_tokenizer
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.inference.embedding.embedding_matrix import embedding_matrix
from firth.jobs.input_vectors import attach_features, feature_fields, find_vectors
from firth.jobs.job_configs import FinetuneConfig
from firth.model import Model
from firth.models.initialization import initialise
from firth.models.networks import build_network
from firth.models.presets.task_models import TASK_MODELS, TaskSpecificModel, models_of_task
from firth.models.task_specific.bag_of_words import BagOfWords, document_frequencies
from firth.models.task_specific.text_configs import BagOfWordsConfig
from firth.models.word_embedding import WordNetwork
from firth.models.word_model_config import WordModelConfig
from firth.tasks.dataset import TaskDataset
from firth.tasks.readers.examples import Example
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.word_vocabulary import (
    WordVocabulary,
    choose_vocabulary,
    count_words,
    word_tokenizer,
)
from firth.training.pretrain_config import model_overrides
from firth.training.run_directory import PRESET
from firth.utils.errors import InputError, UsageError


def find_task_model(job: FinetuneConfig) -> TaskSpecificModel | None:
    """Return the row of a task-specific model, if the job's model is the name of one.

    A path or an embedded model of that name has precedence.
    """
    name = job.model
    if not isinstance(name, str) or name not in TASK_MODELS or local_path(name) is not None:
        if job.vectors is not None:
            raise UsageError(
                f"--vectors is for task-specific models ({', '.join(TASK_MODELS)}): {name} has its "
                "own embeddings."
            )
        return None
    row = TASK_MODELS[name]
    if job.task not in row.tasks:
        others = models_of_task(job.task)
        able = f"for {job.task} there is {', '.join(others)}" if others else "choose another model"
        raise UsageError(
            f"{name} can be trained for {', '.join(row.tasks)}, not for {job.task}; {able}."
        )
    if job.recipe is not None:
        raise UsageError(f"{name} has a recipe of its own: omit --recipe.")
    return row


def untrained_task_model(
    job: FinetuneConfig, row: TaskSpecificModel, dataset: TaskDataset, overrides: Mapping[str, Any]
) -> tuple[Model, list[str]]:
    """Build the network of a row with random weights and a tokenizer; return notes for the user.

    The words are those of the training examples; with vectors, also others that have one.
    `overrides` are fields of the network's config.
    """
    given = model_overrides(row.config, overrides)
    if isinstance(row.config, BagOfWordsConfig):
        return _bag_of_words(job, row, dataset, given), []
    found = None if job.vectors is None else find_vectors(job.vectors)
    vectors, source = (None, found) if isinstance(found, Model) else (found, None)
    if source is not None:
        _check_features(job, row)
        row = replace(row, keeps_case=True)  # the source reads words as they are written
        given = {"freeze_vectors": True, **given, **feature_fields(source)}
    tokenizer, vocabulary = _tokenizer(job, row, dataset, vectors, given)
    config = _config(row, tokenizer, vocabulary, vectors, given)
    network = initialise(build_network(config, row.heads), job.seed)
    assert isinstance(network, WordNetwork)
    network.read_vocabulary(tokenizer)
    if config.num_word_rows:
        network.tokens.set_words(vocabulary.rows, vocabulary.row_words)
    notes = [] if source is None else [attach_features(network, tokenizer, source)]
    if vectors is not None:
        matrix, coverage = embedding_matrix(vectors, vocabulary.row_words, seed=job.seed)
        network.tokens.set_vectors(torch.from_numpy(matrix))
        own = coverage.summary if job.tokenizer is not None else _coverage(vocabulary, vectors)
        notes = [*vectors.notes, own]
    return Model(network, tokenizer, source=PRESET + str(job.model)), notes


def _check_features(job: FinetuneConfig, row: TaskSpecificModel) -> None:
    """Raise UsageError if a task-specific model cannot read the hidden states of another model."""
    if row.heads:
        raise UsageError(
            f"{job.model} also writes the words that it reads: its --vectors must be word vectors."
        )
    if job.tokenizer is not None and load_tokenizer(job.tokenizer).kind != "word":
        raise UsageError("With a model as --vectors, --tokenizer must have whole words: omit it.")


def _bag_of_words(
    job: FinetuneConfig, row: TaskSpecificModel, dataset: TaskDataset, given: Mapping[str, Any]
) -> Model:
    """Count the n-grams of the training examples; nothing is random."""
    if job.vectors is not None:
        raise UsageError(f"{job.model} has no embeddings: omit --vectors, or use another model.")
    tokenizer, _ = _tokenizer(job, row, dataset, None, given)
    texts = [
        np.concatenate([np.array(tokenizer.encode(text), dtype=np.int64) for text in each.inputs])
        for each in dataset.train
    ]
    assert isinstance(row.config, BagOfWordsConfig)
    config = replace(row.config, vocab_size=len(tokenizer), **given)
    size = len(document_frequencies(texts, config)[0])
    network = BagOfWords(replace(config, hidden_size=size))
    network.count(texts)
    return Model(network, tokenizer, source=PRESET + str(job.model))


def _tokenizer(
    job: FinetuneConfig,
    row: TaskSpecificModel,
    dataset: TaskDataset,
    vectors: WordVectors | None,
    given: Mapping[str, Any],
) -> tuple[Tokenizer, WordVocabulary]:
    """Load the given tokenizer, or make one of the words of the examples; return its words."""
    if job.tokenizer is not None:
        tokenizer = load_tokenizer(job.tokenizer)
        words = [tokenizer.backend.id_to_token(id) or "" for id in range(len(tokenizer))]
        return tokenizer, WordVocabulary(words, list(range(len(words))), words)
    lowercase = vectors is None or vectors.lowercase
    kind = {"lowercase": lowercase and not row.keeps_case, "split": job.task != "tag"}
    train, dev = (count_words(_texts(part), **kind) for part in (dataset.train, dataset.dev))
    vocabulary = choose_vocabulary(
        train,
        dev,
        vector_words=[] if vectors is None else vectors.words,
        folds_case=lowercase and row.keeps_case,
        freeze=bool(given.get("freeze_vectors")),
    )
    if not train:
        raise InputError("The training examples have no words: all texts are empty.")
    if vectors is not None and not vocabulary.num_covered:
        raise InputError(
            f"None of the {vocabulary.num_distinct:,} words of the training data has a vector in "
            f"{vectors.source}: choose vectors of the language of the texts."
        )
    return word_tokenizer(vocabulary.words, **kind), vocabulary


def _texts(examples: Sequence[Example]) -> Iterator[str]:
    """Yield the texts of examples, also those to generate."""
    for example in examples:
        yield from example.inputs
        if target := getattr(example, "target", None):
            yield target


def _config(
    row: TaskSpecificModel,
    tokenizer: Tokenizer,
    vocabulary: WordVocabulary,
    vectors: WordVectors | None,
    given: Mapping[str, Any],
) -> WordModelConfig:
    """Return the config of a row for a vocabulary."""
    assert isinstance(row.config, WordModelConfig)
    size = row.config.embedding_size if vectors is None else vectors.dimension
    if (wanted := given.get("embedding_size", size)) != size and vectors is not None:
        raise UsageError(f"The vectors have {size} dimensions: omit model.embedding_size={wanted}.")
    ids, hashed = tokenizer.special_ids, vectors is not None or row.keeps_case
    found: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "num_word_rows": len(vocabulary.row_words) if hashed else 0,
        "num_fixed_rows": vocabulary.num_fixed,
        "unknown_row": tokenizer.unknown_id or 0,
        "folds_case": row.keeps_case and (vectors is None or vectors.lowercase),
        "embedding_size": size,
        **{f"{role}_token_id": ids.get(role) for role in ("pad", "bos", "eos")},
    }
    return replace(row.config, **{**found, **given})


def _coverage(vocabulary: WordVocabulary, vectors: WordVectors) -> str:
    """Describe how many words of the training data have vectors."""
    own, words = vocabulary.num_covered, vocabulary.num_distinct
    return (
        f"{own:,} of {words:,} words of the training data ({own / max(1, words):.1%}) have vectors "
        f"in {vectors.source}; {vocabulary.num_fixed:,} rows of the embedding matrix are fixed."
    )
