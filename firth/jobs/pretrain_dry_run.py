"""`pretrain(dry_run=True)`: memory of a rank and exchanged bytes, without training or weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from firth.models.generator import generator_config
from firth.models.networks import build_network
from firth.models.transformer import Transformer, count_parameters
from firth.models.transformer_config import require_transformer_config
from firth.objectives.registry import OBJECTIVES
from firth.training.distributed.cost import RankCost, replicated_cost, sharded_cost
from firth.training.losses import heads_for
from firth.training.pretrain_config import PretrainRunConfig
from firth.training.schedule import StagedValue
from firth.utils.notebook import HtmlRepr


@dataclass(frozen=True, kw_only=True)
class PretrainDryRun(HtmlRepr):
    """The cost of a pre-training run for each of several ranks."""

    preset: str
    parameters: int
    precision: str
    optimizer: str
    world_size: int
    batch_tokens: int  # of a step, on all ranks
    rows: list[RankCost]  # replicated and sharded weights

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        shared = {name: value for name, value in vars(self).items() if name != "rows"}
        return {"dry_run": True, **shared, "ranks": [row.values() for row in self.rows]}


def estimate_pretraining(config: PretrainRunConfig, world_size: int) -> PretrainDryRun:
    """Compute what each rank needs, for replicated and for sharded weights."""
    training, network = config.training, _empty_network(config)
    largest = StagedValue.parse(training.batch_tokens).largest
    part = -(-largest // world_size)
    micro_batches = -(-part // (training.micro_batch_tokens or part))
    kind = training.optimizer.optimizer
    rows = [replicated_cost(network, kind, world_size)]
    if kind != "muon":
        rows.append(sharded_cost(network, training.precision, world_size, micro_batches))
    return PretrainDryRun(
        preset=config.preset,
        parameters=count_parameters(network),
        precision=training.precision,
        optimizer=kind,
        world_size=world_size,
        batch_tokens=largest,
        rows=rows,
    )


def _empty_network(config: PretrainRunConfig) -> nn.Module:
    """Build the networks that are trained without memory for their weights."""
    row = OBJECTIVES[config.objective]
    with torch.device("meta"):
        network: nn.Module = build_network(config.model, heads_for(row.predicts))
        if "replaced" not in row.predicts:
            return network
        own = generator_config(require_transformer_config(config.model))
        generator = Transformer(own, ["language"])
        generator.tokens = network.tokens  # type: ignore[assignment]
        return nn.ModuleDict({"network": network, "generator": generator})
