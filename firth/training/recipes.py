"""Recipes: how each family was pre-trained, as its paper says, and how that fits a smaller budget.

A paper's warm-up and batch are those of its own budget. Within another one, the warm-up keeps its
number of steps up to a tenth of the run, and the batch shrinks until 1,500 steps fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.training.optim import OptimizerConfig
from firth.training.settings import Settings

LONGEST_WARMUP = 0.1  # of a run
STEPS = 1500  # at least so many, if the budget is not counted in steps
SMALLEST_BATCH = 1024  # tokens
USUAL_BATCH = {"cpu": 8192, "cuda": 131_072}  # tokens, where the budget is in steps
SPEED = {"cpu": 10_000, "cuda": 400_000}  # tokens a second, about, where it is in minutes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row: what differs from the defaults, and where it is written."""

    source: str
    warmup: int  # steps
    batch: int  # tokens of a step
    length: str = "512"
    schedule: str = "linear"
    floor: float = 0.0
    optimizer: OptimizerConfig
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # of an objective


def _adam(rate: float, beta2: float, eps: float, decay: float, clip: float) -> OptimizerConfig:
    return OptimizerConfig(rate=rate, beta2=beta2, eps=eps, decay=decay, clip=clip)


# Adam 1e-4, 0.9/0.999, decay 0.01, 10,000 steps of warm-up, then linear (Devlin et al. 2019, A.2).
_BERT = Recipe(
    source="Devlin et al. 2019, A.2",
    warmup=10_000,
    batch=256 * 512,
    length="128:0.9,512",
    optimizer=_adam(1e-4, 0.999, 1e-6, 0.01, 1.0),
)

RECIPES = {
    "transformer": Recipe(
        source="Vaswani et al. 2017, 5.3; linear in place of the inverse square root",
        warmup=4000,
        batch=25_000,
        optimizer=_adam(7e-4, 0.98, 1e-9, 0.0, 0.0),
    ),
    "bert": _BERT,
    "roberta": Recipe(
        source="Liu et al. 2019, table 9",
        warmup=24_000,
        batch=8192 * 512,
        optimizer=_adam(6e-4, 0.98, 1e-6, 0.01, 0.0),
    ),
    "spanbert": Recipe(
        source="Joshi et al. 2020, 4.2",
        warmup=10_000,
        batch=256 * 512,
        optimizer=_adam(1e-4, 0.999, 1e-8, 0.1, 1.0),
    ),
    "albert": Recipe(
        source="Lan et al. 2020, 4.1; AdamW with BERT's rate in place of LAMB",
        warmup=3125,
        batch=4096 * 512,
        optimizer=_adam(1e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "electra": Recipe(
        source="Clark et al. 2020, table 6",
        warmup=10_000,
        batch=256 * 512,
        optimizer=_adam(2e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "deberta": Recipe(
        source="He et al. 2021 (v3), table 9",
        warmup=10_000,
        batch=8192 * 512,
        optimizer=_adam(6e-4, 0.98, 1e-6, 0.01, 1.0),
    ),
    "distilbert": Recipe(
        source="Sanh et al. 2019 and its training code",
        warmup=5000,
        batch=4000 * 128,
        length="512",
        optimizer=_adam(5e-4, 0.98, 1e-6, 0.0, 5.0),
    ),
    "mobilebert": Recipe(
        source="Sun et al. 2020, 4.3; AdamW in place of LAMB",
        warmup=10_000,
        batch=2048 * 512,
        optimizer=_adam(5e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "modernbert": Recipe(
        source="Warner et al. 2024, table 3; AdamW in place of StableAdamW",
        warmup=1500,
        batch=4608 * 1024,
        length="1024",
        schedule="wsd",
        optimizer=_adam(8e-4, 0.98, 1e-6, 1e-5, 1.0),
        options={"masked": {"rate": 0.3}},
    ),
    "gpt1": Recipe(
        source="Radford et al. 2018, 4.1",
        warmup=2000,
        batch=64 * 512,
        schedule="cosine",
        optimizer=_adam(2.5e-4, 0.999, 1e-8, 0.01, 1.0),
    ),
    "gpt2": Recipe(
        source="Radford et al. 2019 keeps silent; GPT-3's for the same size",
        warmup=700,
        batch=512 * 1024,
        length="1024",
        schedule="cosine",
        floor=0.1,
        optimizer=_adam(6e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "gpt3": Recipe(
        source="Brown et al. 2020, table 2.1 and appendix B",
        warmup=750,  # 375 million tokens
        batch=500_000,
        length="2048",
        schedule="cosine",
        floor=0.1,
        optimizer=_adam(6e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "llama": Recipe(
        source="Touvron et al. 2023, 2.3",
        warmup=2000,
        batch=4_000_000,
        length="2048",
        schedule="cosine",
        floor=0.1,
        optimizer=_adam(3e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "t5": Recipe(
        source="Raffel et al. 2020, 3.1.2; AdamW and cosine in place of AdaFactor",
        warmup=10_000,
        batch=128 * 512,
        schedule="cosine",
        floor=0.1,
        optimizer=_adam(1e-3, 0.98, 1e-8, 0.0, 1.0),
    ),
    "bart": Recipe(
        source="Lewis et al. 2020 and its training code",
        warmup=10_000,
        batch=8000 * 512,
        optimizer=_adam(4e-4, 0.98, 1e-6, 0.01, 0.1),
    ),
    "trio": Recipe(
        source="measured here: docs/pretraining.md and docs/performance.md",
        warmup=500,
        batch=65_536,
        length="64:0.8,256",
        schedule="wsd",
        optimizer=OptimizerConfig(kind="muon", rate=4e-3, beta2=0.98, decay=0.1, clip=1.0),
        options={"masked": {"rate": 0.3}},
    ),
}
RECIPES["mistral"] = RECIPES["llama"]

# GPT-3's rate falls with size (Brown et al. 2020, table 2.1): from a width on, so much.
RATES_BY_WIDTH = {
    "gpt3": {768: 6e-4, 1024: 3e-4, 1536: 2.5e-4, 2048: 2e-4, 2560: 1.6e-4, 4096: 1.2e-4}
    | {5120: 1e-4, 12288: 0.6e-4},
    "llama": {4096: 3e-4, 6656: 1.5e-4},
    "electra": {0: 5e-4, 768: 2e-4},
    "roberta": {768: 6e-4, 1024: 4e-4},
    "trio": {0: 4e-3, 512: 2e-3},
}


def settings_for(
    recipe: str,
    config: ModelConfig,
    *,
    steps: int = 0,
    tokens: int = 0,
    minutes: float = 0.0,
    device: str = "cpu",
    seed: int = 0,
) -> Settings:
    """A family's recipe, cut to a budget.

    >>> from firth.models.presets import preset
    >>> settings = settings_for("bert", preset("bert-base").config, steps=1_000_000, device="cuda")
    >>> settings.optimizer.rate, settings.warmup, settings.length
    (0.0001, 0.01, '128:0.9,512')
    >>> settings_for("bert", preset("bert-base").config, tokens=15_000_000).batch
    '10000'
    """
    if not steps and not tokens and not minutes:
        raise Misuse("Say how long to learn: steps, tokens or minutes.")
    row = RECIPES[recipe]
    batch = min(row.batch, USUAL_BATCH.get(device, USUAL_BATCH["cpu"]))
    expected = tokens or int(60 * minutes * SPEED.get(device, SPEED["cpu"]))
    if expected:
        batch = min(row.batch, max(SMALLEST_BATCH, expected // STEPS))
    count = steps or expected // batch
    warmup = min(LONGEST_WARMUP, row.warmup / count) if count else LONGEST_WARMUP
    rates = RATES_BY_WIDTH.get(recipe, {})
    rate = next((r for w, r in reversed(rates.items()) if config.width >= w), row.optimizer.rate)
    return Settings(
        steps=steps,
        tokens=tokens,
        minutes=minutes,
        length=_within(_steady(row.length, config), config.context),
        batch=str(batch),
        optimizer=row.optimizer,
        schedule=row.schedule,
        warmup=warmup,
        floor=row.floor,
        seed=seed,
    ).changed({"rate": rate})


def _steady(stages: str, config: ModelConfig) -> str:
    """Behind an encoder, one length all along: longer texts have sentinels never met before."""
    return stages.split(",")[-1] if config.architecture == "encoder-decoder" else stages


def _within(stages: str, context: int) -> str:
    """Stages of lengths, none beyond the context.

    >>> _within("128:0.9,512", 256), _within("128:0.9,512", 64)
    ('128:0.9,256', '64:0.9,64')
    """
    parts = [part.split(":") for part in stages.split(",")]
    return ",".join(":".join([str(min(int(size), context)), *rest]) for size, *rest in parts)
