"""The parts of a run on several ranks, each in one process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as count_up
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firth.data.packing import PackedSequences
from firth.jobs import pretraining
from firth.models.language_model import LossTerm
from firth.objectives.batch import Batch, PredictionTargets
from firth.training import losses
from firth.training.config import TrainingConfig
from firth.training.distributed import ranks as ranks_module
from firth.training.distributed.choice import shards_weights
from firth.training.distributed.parallelism import num_dropout_slices, rank_slices
from firth.training.distributed.ranks import Ranks
from firth.training.distributed.sharded_optimizer import assign_owners
from firth.training.optim import Optimizer, OptimizerConfig, muon_splits
from firth.utils.errors import UsageError
from firth.utils.torchrun import launched_rank
from tests.conftest import Result
from tests.training.conftest import SMALL


def batch_of(lengths: list[int]) -> Batch:
    rows = [np.arange(length) + 100 * i for i, length in enumerate(lengths)]
    stream = PackedSequences.join(rows, np.arange(len(rows), dtype=np.uint64))
    targets = PredictionTargets(np.arange(0, len(stream.tokens), 2), stream.tokens[::2])
    return Batch(stream, stream.lengths, {"masked": targets})


@pytest.mark.parametrize(
    ("slices", "size"), [(1, 1), (8, 1), (8, 2), (8, 3), (9, 3), (4, 4), (64, 64)]
)
def test_the_ranks_have_every_sequence_and_target_once_in_order(slices: int, size: int) -> None:
    batch = batch_of([5, 1, 1, 9, 2, 7, 3, 3, 12, 1, 4])
    parts = [part for rank in range(size) for part in rank_slices(batch, slices, Ranks(rank, size))]
    numbers = [number for number, _ in parts]
    assert numbers == sorted(numbers)
    assert set(numbers) <= set(range(slices))
    found = np.concatenate([part.inputs.tokens for _, part in parts])
    assert found.tolist() == batch.inputs.tokens.tolist()
    targets = np.concatenate([part.predictions["masked"].targets for _, part in parts])
    assert targets.tolist() == batch.predictions["masked"].targets.tolist()


def test_slices_have_about_as_many_tokens_each() -> None:
    batch = batch_of([8] * 64)
    assert [part and part.tokens for part in batch.divide(8)] == [64] * 8


def network() -> nn.Module:
    torch.manual_seed(0)
    block = lambda: nn.ModuleDict({"qkv": nn.Linear(6, 12), "up": nn.Linear(6, 8)})  # noqa: E731
    stack = nn.ModuleDict({"blocks": nn.ModuleList([block(), block(), block()])})
    return nn.ModuleDict({"encoder": stack, "tokens": nn.Embedding(9, 6)})


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_parameters_updated_on_their_own_ranks_have_the_bits_of_one_device(kind: str) -> None:
    config = OptimizerConfig(optimizer=kind, learning_rate=0.01)  # type: ignore[arg-type]
    whole, parts = network(), [network() for _ in range(2)]
    names = [name for name, _ in whole.named_parameters()]
    owners = assign_owners(dict.fromkeys(names, 1), ranks=2)
    assert set(owners.values()) == {0, 1}
    assert len(muon_splits(whole)) == 6
    optimizers = [Optimizer(whole, config)] + [
        Optimizer(part, config, {name for name in names if owners[name] == rank})
        for rank, part in enumerate(parts)
    ]
    for step in range(3):
        for module in (whole, *parts):
            torch.manual_seed(step)
            for parameter in module.parameters():
                parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            optimizer.step(1.0)
        for name in names:  # as the ranks exchange them
            owned = parts[owners[name]].get_parameter(name)
            torch.testing.assert_close(owned, whole.get_parameter(name), rtol=0, atol=0)
            parts[1 - owners[name]].get_parameter(name).data.copy_(owned.data)


def test_a_divided_optimizer_state_is_restored_whole_and_in_other_parts() -> None:
    config = OptimizerConfig()
    source, target = network(), network()
    names = [name for name, _ in source.named_parameters()]
    halves = [Optimizer(source, config, set(names[i::2])) for i in range(2)]
    for parameter in source.parameters():
        parameter.grad = torch.ones_like(parameter)
    halves[0].step(1.0)
    saved = halves[0].tensors() | halves[1].tensors()
    whole = Optimizer(target, config)
    whole.restore(saved)
    assert whole.tensors()["adamw.step"].tolist() == [1.0 - i % 2 for i in range(len(names))]
    part = Optimizer(target, config, set(names[:3]))
    for state in (saved, whole.tensors()):
        part.restore(state)
        assert [int(part.tensors()[f"adamw.step.{name}"]) for name in names[:3]] == [1, 0, 1]


def test_dropout_slices_are_used_under_torchrun_or_if_set() -> None:
    dropping = nn.Sequential(nn.Dropout(0.1))
    assert num_dropout_slices(dropping, TrainingConfig(steps=1)) == 0  # without torchrun
    assert num_dropout_slices(dropping, TrainingConfig(steps=1, dropout_slices=4)) == 4


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_validation_losses_of_all_ranks_are_those_of_all_batches(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank runs equally many batches, and each batch counts once."""
    batches = [3, 5, 1, 4, 2]  # numbers of targets, each with a loss of the number itself
    ran: list[int] = []

    def module(count: int) -> dict[str, LossTerm]:
        ran.append(count)
        right = torch.tensor(count - 1)
        return {"masked": LossTerm(torch.tensor(float(count * count)), count, right, 0.5)}

    exchanged: list[list[Any]] = [[] for _ in range(size)]
    for everyone in (False, True):  # record what each rank sends; then give all of it to each
        for rank in range(size):
            number = count_up()

            def gather(
                value: Any, rank: int = rank, number: Any = number, everyone: bool = everyone
            ) -> list[Any]:
                if not everyone:
                    exchanged[rank].append(value)
                    return [value]
                i = next(number)
                return [sent[i] for sent in exchanged]

            monkeypatch.setattr(ranks_module, "current_ranks", lambda rank=rank: Ranks(rank, size))
            monkeypatch.setattr(ranks_module, "gather_json", gather)
            monkeypatch.setattr(losses, "gather_json", gather)
            ran.clear()
            found = losses.mean_losses(module, batches)  # type: ignore[arg-type]
            assert len(ran) == -(-len(batches) // size)
    assert found == pytest.approx({"loss": 55 / 30, "masked": 55 / 15, "masked accuracy": 10 / 15})


def test_sharding_needs_torchrun() -> None:
    config = TrainingConfig(steps=1, parallel="shard")
    with pytest.raises(UsageError, match="torchrun"):
        shards_weights(nn.Linear(2, 2), config, torch.device("cpu"))
    with pytest.raises(UsageError, match="replicate"):
        TrainingConfig(steps=1, parallel="both")


def test_the_loop_follows_the_choice_that_was_made_for_the_device(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that will be divided are not on a GPU yet, so the loop cannot choose again."""
    monkeypatch.setattr(pretraining, "shards_weights", lambda network, config, device: True)
    with pytest.raises(UsageError, match="shard needs torchrun"):
        pretraining.pretrain(
            preset="bert-tiny", data=shards, steps=1, out=tmp_path / "run", overrides=SMALL
        )


def test_a_variable_rank_of_another_program_is_not_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert launched_rank() == 0
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == 1


def test_verbs_of_one_process_refuse_several(
    monkeypatch: pytest.MonkeyPatch, firth_here: Callable[..., Result]
) -> None:
    several = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1"}
    for name, value in several.items():
        monkeypatch.setenv(name, value)
    refused = firth_here("presets")
    assert refused.returncode == 2
    assert "one process" in refused.stderr
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert firth_here("presets").returncode == 0
