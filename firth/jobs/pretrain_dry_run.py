"""`pretrain(dry_run=True)`: memory of a rank and exchanged bytes, from a step on fake tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firth.data.sampler import Sampler
from firth.jobs.pretrain_networks import untrained_module
from firth.model import Model
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.data_loader import largest_batch
from firth.training.distributed.traced_step import RankCost, TracedRun, trace_step
from firth.training.pretrain_config import PretrainRunConfig
from firth.utils.devices import DeviceSpec
from firth.utils.errors import UsageError
from firth.utils.notebook import HtmlRepr


@dataclass(frozen=True, kw_only=True)
class PretrainDryRun(HtmlRepr):
    """The cost of a pre-training run for each of several ranks."""

    preset: str
    parameters: int
    precision: str
    optimizer: str
    device: str  # cpu, cuda or mps
    world_size: int
    batch_tokens: int  # of the largest batch, on all ranks
    sequences: int  # in that batch
    rows: list[RankCost]  # replicated and sharded weights

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        shared = {name: value for name, value in vars(self).items() if name != "rows"}
        return {"dry_run": True, **shared, "ranks": [row.values() for row in self.rows]}


def estimate_pretraining(
    config: PretrainRunConfig,
    sampler: Sampler,
    tokenizer: Tokenizer,
    teacher: Model | None,
    device: DeviceSpec,
    world_size: int,
) -> PretrainDryRun:
    """Trace a step with replicated and one with sharded weights, or what `--parallel` names."""
    training, batch = config.training, largest_batch(config, sampler, tokenizer)
    run = TracedRun(
        build=lambda: untrained_module(config, tokenizer, teacher),
        config=training,
        batch=batch,
        device=device,
    )
    kinds = {"replicate": False, "shard": True}
    if training.optimizer.optimizer == "muon" and training.parallel != "shard":
        del kinds["shard"]  # Muon needs whole matrices
    wanted = [shards for name, shards in kinds.items() if training.parallel in (name, "auto")]
    try:
        rows = [trace_step(run, world_size, shards=shards) for shards in wanted]
    except RuntimeError as error:
        raise UsageError(
            f"--dry-run cannot follow a step of {config.preset} on tensors that have shapes but no "
            f"values: {str(error).splitlines()[0]}"
        ) from error
    return PretrainDryRun(
        preset=config.preset,
        parameters=rows[0].parameters,
        precision=training.precision,
        optimizer=training.optimizer.optimizer,
        device=device.type,
        world_size=world_size,
        batch_tokens=batch.tokens,
        sequences=len(batch.inputs.lengths),
        rows=rows,
    )
