"""The networks of a pre-training run, all of them without trained weights, and its tokenizer."""

from __future__ import annotations

from firth.model import Model
from firth.models.config import ModelConfig
from firth.models.generator import generator_config
from firth.models.label_heads import predicts_labels
from firth.models.networks import build_network
from firth.models.transformer import Transformer
from firth.models.transformer_config import require_transformer_config
from firth.objectives.registry import OBJECTIVES, pretraining_tokenizer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.losses import TrainingModule, heads_for
from firth.training.pretrain_config import PretrainRunConfig, nearest_preset


def pretraining_heads(objective: str, name: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the heads that the objective needs; for pairs of segments, with the preset's pooler.

    >>> from firth.models.presets import preset
    >>> pretraining_heads("causal", "gpt2", preset("gpt2").config)
    ('language',)
    """
    heads = heads_for(OBJECTIVES[objective].predicts)
    if "pair" in heads and "pooler" in nearest_preset(name, config).heads:
        return (*heads, "pooler")
    return heads


def untrained_generator(config: PretrainRunConfig) -> Transformer | None:
    """Build ELECTRA's generator; None for objectives that need none."""
    if "replaced" not in OBJECTIVES[config.objective].predicts:
        return None
    return Transformer(generator_config(require_transformer_config(config.model)), ["language"])


def untrained_module(
    config: PretrainRunConfig, tokenizer: Tokenizer, teacher: Model | None = None
) -> TrainingModule:
    """Build all networks of a run for a dry run; the teacher's weights are not copied either."""
    heads = pretraining_heads(config.objective, config.preset, config.model)
    network = build_network(config.model, heads)
    network.read_vocabulary(tokenizer)
    taught = None
    if teacher is not None:
        taught = build_network(teacher.config, tuple(teacher.network.heads)).eval()
    return TrainingModule(
        network,
        generator=untrained_generator(config),
        teacher=taught,
        vocabulary=tokenizer.vocabulary,
    )


def run_tokenizer(
    config: PretrainRunConfig, tokenizer: Tokenizer, source: Model | None
) -> Tokenizer:
    """Return the tokenizer of the run's model: with the special tokens of the objective.

    A model of `transformers` that is trained with its own objective keeps its tokenizer.
    """
    own = None if source is None else source.tokenizer
    if source is None or own is None:
        return pretraining_tokenizer(config.objective, tokenizer)
    is_external = source.objective is None and not predicts_labels(source.network)
    if is_external and config.objective == nearest_preset(config.preset, config.model).objective:
        return own
    return pretraining_tokenizer(config.objective, own)
