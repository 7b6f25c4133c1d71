"""Settings of pre-training: derived values, schedules, budgets in minutes, and invalid ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.data.sampler import Sampler
from firth.data.shards import Shards
from firth.jobs.pretraining import pretrain
from firth.models.stack import Stack
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.data_loader import batch_planner, count_tokens, validation_batches
from firth.training.loop import Callbacks
from firth.training.pretrain_config import resolve_pretrain_config
from firth.training.run_directory import read_metrics
from firth.training.state import TrainingState
from firth.utils.devices import DeviceSpec
from firth.utils.errors import MismatchError, UsageError
from tests.training.conftest import SMALL

DISTILLATION_WEIGHTS = {"soft targets": 5.0, "masked": 2.0, "cosine": 1.0}


def resolve(
    shards: Path,
    preset: str,
    objective: str | None = None,
    overrides: dict[str, Any] = SMALL,
    budget: dict[str, Any] | None = None,
    teacher: str | None = None,
) -> Any:
    tokenizer, budget = Tokenizer.load(shards), budget or {"steps": 10}
    return resolve_pretrain_config(
        preset, objective, tokenizer, budget, overrides, None, teacher, DeviceSpec()
    )


@pytest.mark.parametrize(
    ("preset", "objective", "teacher", "weights"),
    [
        ("distilbert-base", "masked", None, {}),
        ("distilbert-base", "masked", "x", DISTILLATION_WEIGHTS),
        ("encoder-tiny", "masked", "x", DISTILLATION_WEIGHTS),
        ("encoder-tiny", "replaced", None, {"replaced": 50.0}),
        ("electra-small", "masked", None, {}),
    ],
)
def test_loss_weights_follow_from_the_objective_and_the_teacher(
    preset: str, objective: str, teacher: str | None, weights: dict[str, float], shards: Path
) -> None:
    assert resolve(shards, preset, objective, teacher=teacher).loss_weights == weights


@pytest.mark.parametrize(
    ("preset", "override", "expected"),
    [
        ("bert-tiny", ("num_heads", "4"), dict(num_heads=4, num_kv_heads=4, head_dim=32)),
        ("t5-small", ("num_layers", "1"), dict(num_layers=1, num_decoder_layers=1, head_dim=64)),
        ("llama3-8b", ("hidden_size", "512"), dict(num_heads=32, num_kv_heads=8, head_dim=16)),
        ("modernbert-base", ("num_layers", "3"), dict(windowed_layers=(1, 2))),
        ("modernbert-base", ("windowed_layers", "0,2"), dict(windowed_layers=(0, 2))),
    ],
)
def test_dependent_model_fields_follow(
    preset: str, override: tuple[str, str], expected: dict[str, Any], shards: Path
) -> None:
    name, value = override
    config = resolve(shards, preset, overrides={f"model.{name}": value})
    assert {name: getattr(config.model, name) for name in expected} == expected


def test_no_text_is_validated_twice(shards: Path) -> None:
    tokenizer, text = Tokenizer.load(shards), Shards(shards)
    assert text.tokens > 8192  # more than one batch, and the last one is smaller
    overrides = SMALL | {"validate_tokens": 1 << 20, "max_length": "64"}
    config = resolve(shards, "decoder-tiny", overrides=overrides)
    batches = validation_batches(config, text, tokenizer)
    seen = np.concatenate([batch.inputs.tokens for batch in batches])
    read = np.bincount(seen[~tokenizer.vocabulary.special[seen]], minlength=len(tokenizer))
    assert (read <= count_tokens(text, len(tokenizer), range(len(text)))).all()
    assert 0.95 < read.sum() / text.tokens <= 1


def test_lengths_batches_and_masks_follow_their_schedules(shards: Path) -> None:
    overrides = SMALL | {"max_length": "16:0.5,32", "batch_tokens": "128:0.5,256"}
    overrides |= {"objective.mask_prob": "0.4-0.1"}
    config = resolve(shards, "encoder-tiny", overrides=overrides)
    plan = batch_planner(config, Sampler(Shards(shards)), Tokenizer.load(shards))
    batches = plan(TrainingState(), lambda state: state.step / 10)
    made = [next(batches).batch for _ in range(10)]
    assert [int(batch.inputs.lengths.max()) for batch in made] == [16] * 5 + [32] * 5
    assert all(len(batch.inputs.tokens) <= 128 for batch in made[:5])
    assert all(128 < len(batch.inputs.tokens) <= 256 for batch in made[5:])
    fractions = [batch.counts()["masked"] / len(batch.inputs.tokens) for batch in made]
    assert fractions[0] > 0.3
    assert fractions[-1] < 0.16


def test_a_plan_continues_from_any_step(shards: Path) -> None:
    """With a budget in tokens, the progress of a run depends on the sizes of its batches."""
    total = 12_000
    overrides = SMALL | {"max_length": "16:0.5,32", "batch_tokens": "256:0.2,1024"}
    overrides |= {"objective.mask_prob": "0.5-0.1"}
    config = resolve(shards, "encoder-tiny", overrides=overrides, budget={"tokens": total})
    plan = batch_planner(config, Sampler(Shards(shards)), Tokenizer.load(shards))

    def planned(state: TrainingState, count: int) -> list[Any]:
        batches = plan(state, lambda state: min(1.0, state.planned_tokens / total))
        return [next(batches) for _ in range(count)]

    whole = planned(TrainingState(), 14)
    for at in range(1, 13):
        before = whole[at - 1]
        position = dict(position=before.next_position, planned_tokens=before.planned_tokens)
        [following] = planned(TrainingState(step=at, **position), 1)
        assert following.planned_tokens == whole[at].planned_tokens
        for name in ("tokens", "lengths"):
            again, once = (getattr(p.batch.inputs, name) for p in (following, whole[at]))
            np.testing.assert_array_equal(again, once)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"preset": "bert-bse"}, "bert-base"),
        ({"objective": "causal"}, "'causal'.* masked"),
        ({"objective": "magic"}, "'magic'"),
        ({"overrides": {"learning_rat": "1"}}, "learning_rate"),
        ({"overrides": {"model.hiden_size": "1"}}, "model.hidden_size"),
        ({"overrides": {"objective.rat": "0.3"}}, r"objective\.rat=0\.3"),
        ({"overrides": {"objective.mask_prob": 1.5}}, r"mask_prob .* 1\.5"),
        ({"overrides": {"objective.mask_prob": "0.3-0"}}, r"mask_prob .* 0\.3-0"),
        ({"overrides": {"objective.mask_prob": "0.3:0.5"}}, r"0\.3:0\.9,0\.1 .* 0\.3:0\.5"),
        ({"overrides": {"max_length": "1024"}}, "1024 .* 512"),
        ({"overrides": {"batch_tokens": "x"}}, "128:0.9,512"),
        ({"overrides": {"steps": "many"}}, "steps .*'many'"),
        ({"overrides": {"model.vocab_size": 5}}, r"omit model\.vocab_size"),
        ({"steps": 0}, "steps, tokens or minutes"),
        ({"steps": 5, "minutes": 1.0}, "steps, tokens or minutes"),
    ],
)
def test_invalid_settings(
    options: dict[str, Any], facts: str, shards: Path, tmp_path: Path
) -> None:
    given = {"preset": "bert-tiny", "steps": 2} | options
    with pytest.raises((UsageError, MismatchError), match=facts) as raised:
        pretrain(data=shards, out=tmp_path / "run", **given)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"preset": "encoder-tiny", "objective": "causal"}, "'causal'.* masked"),
        ({"preset": "encoder-tiny", "overrides": {"learning_rat": "1"}}, "learning_rate"),
        ({"preset": "decoder-tiny", "mask_prob": 0.2}, "masks no tokens"),
        ({"preset": "skipgram", "steps": 0, "overrides": {"windw": 3}}, "window"),
    ],
)
def test_settings_are_checked_before_text_is_prepared(
    options: dict[str, Any], facts: str, shards: Path, sample: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"steps": 2, "tokenizer": shards, "out": tmp_path / "run"} | options
    for data in (sample, ["The dog barked.", "The cat slept."]):
        with pytest.raises(UsageError, match=facts):
            pretrain(data=data, **given)
        assert not (tmp_path / "run").exists()


def test_an_override_sets_the_seed_as_the_argument_does(shards: Path, tmp_path: Path) -> None:
    given = {"preset": "encoder-tiny", "steps": 1}
    ways = {
        "argument": {"seed": 3, "overrides": SMALL},
        "override": {"overrides": SMALL | {"seed": "3"}},
    }
    argument, override = (
        pretrain(**given, data=shards, out=tmp_path / name, **own) for name, own in ways.items()
    )
    assert override.config == argument.config
    weights = override.model.network.state_dict()
    for name, expected in argument.model.network.state_dict().items():
        assert torch.equal(weights[name], expected), name


# ---- budgets in minutes


class SimulatedClock:
    """A clock for the training loop: each reading takes 10 ms, whatever the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("firth.training.loop.time", self)

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    return SimulatedClock(monkeypatch)


def test_validation_takes_a_bounded_part_of_the_minutes(
    shards: Path, tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation that takes a tenth of the run does not follow every step."""

    def slow() -> dict[str, float]:
        clock.now += 0.3
        return {"loss": 1.0}

    monkeypatch.setattr(
        "firth.jobs.pretraining.validation_callbacks",
        lambda *given: replace(given[-1], validate=slow),
    )
    overrides = SMALL | {"validate_every": 0.01, "model.num_layers": 2}
    options = {"preset": "decoder-tiny", "minutes": 0.05, "overrides": overrides}
    trained = pretrain(data=shards, out=tmp_path, **options)
    count = sum(line["kind"] == "validation" for line in read_metrics(tmp_path))
    assert 1 < count <= 4
    assert trained.steps > 10


def test_minutes_follow_the_clock(shards: Path, tmp_path: Path, clock: SimulatedClock) -> None:
    options = {"preset": "encoder-tiny", "minutes": 0.04, "overrides": SMALL | {"log_every": 1}}
    trained = pretrain(data=shards, out=tmp_path, **options)
    assert trained.seconds == pytest.approx(2.4, abs=0.2)
    rates = [line["learning_rate"] for line in read_metrics(tmp_path) if line["kind"] == "step"]
    assert rates[-1] < max(rates)


def test_learning_rates_of_short_runs(shards: Path, tmp_path: Path) -> None:
    """Every step trains, the last one and the only one too."""

    def rates(steps: int, warmup: float = 0.0) -> list[float]:
        overrides = SMALL | {"log_every": 1, "warmup": warmup, "schedule": "linear"}
        overrides |= {"learning_rate": 1.0, "min_lr_ratio": 0.0}
        folder = tmp_path / str(steps)
        pretrain(preset="bert-tiny", data=shards, out=folder, steps=steps, overrides=overrides)
        lines = read_metrics(folder)
        return [line["learning_rate"] for line in lines if line["kind"] == "step"]

    assert rates(1) == [1.0]
    assert rates(4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(6, warmup=1 / 3) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_compilation_does_not_count_as_training_time(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SimulatedClock
) -> None:
    """The first step takes longer than the whole budget."""

    def wait(step: int, batch: object) -> None:
        clock.now += 2.0 if step == 0 else 0.0

    monkeypatch.setattr(Stack, "compile_blocks", lambda self, dynamic: None)
    options = {"preset": "encoder-tiny", "minutes": 0.02, "overrides": SMALL | {"compile": "true"}}
    callbacks = Callbacks(before_micro_batch=wait)
    assert pretrain(data=shards, out=tmp_path, callbacks=callbacks, **options).steps > 3
