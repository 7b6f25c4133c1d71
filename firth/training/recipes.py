"""Pre-training recipes: the published hyperparameters of each family, scaled to the given budget.

The warm-up keeps the paper's number of steps, up to a tenth of the run; the batch size is the
paper's, or smaller so that the budget is at least 1,500 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.models.config import ModelConfig
from firth.training.config import TrainingConfig
from firth.training.optim import OptimizerConfig
from firth.utils.errors import UsageError

MAX_WARMUP = 0.1  # fraction of the run
MIN_STEPS = 1500  # for budgets in tokens or minutes
MIN_BATCH = 1024  # tokens
MAX_BATCH = {"cpu": 8192, "cuda": 131_072}  # tokens, for budgets in steps
TOKENS_PER_SECOND = {"cpu": 10_000, "cuda": 400_000}  # estimate, for budgets in minutes


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """The hyperparameters of one family, with their source."""

    source: str
    warmup_steps: int
    batch_tokens: int  # tokens per optimizer step
    max_length: str = "512"
    full_sentences: bool = False
    schedule: str = "linear"
    min_lr_ratio: float = 0.0
    optimizer: OptimizerConfig
    objective_options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by objective


def _adam(rate: float, beta2: float, eps: float, decay: float, clip: float) -> OptimizerConfig:
    return OptimizerConfig(
        learning_rate=rate, beta2=beta2, eps=eps, weight_decay=decay, max_grad_norm=clip
    )


# Adam 1e-4, 0.9/0.999, decay 0.01, 10,000 steps of warm-up, then linear (Devlin et al. 2019, A.2).
_BERT = PretrainRecipe(
    source="Devlin et al. 2019, A.2",
    warmup_steps=10_000,
    batch_tokens=256 * 512,
    max_length="128:0.9,512",
    optimizer=_adam(1e-4, 0.999, 1e-6, 0.01, 1.0),
)

RECIPES = {
    "transformer": PretrainRecipe(
        source="Vaswani et al. 2017, 5.3; linear in place of the inverse square root",
        warmup_steps=4000,
        batch_tokens=25_000,
        optimizer=_adam(7e-4, 0.98, 1e-9, 0.0, 0.0),
    ),
    "bert": _BERT,
    "roberta": PretrainRecipe(
        source="Liu et al. 2019, table 9",
        warmup_steps=24_000,
        batch_tokens=8192 * 512,
        optimizer=_adam(6e-4, 0.98, 1e-6, 0.01, 0.0),
    ),
    "spanbert": PretrainRecipe(
        source="Joshi et al. 2020, 4.2",
        warmup_steps=10_000,
        batch_tokens=256 * 512,
        optimizer=_adam(1e-4, 0.999, 1e-8, 0.1, 1.0),
    ),
    "albert": PretrainRecipe(
        source="Lan et al. 2020, 4.1; AdamW with BERT's rate in place of LAMB",
        warmup_steps=3125,
        batch_tokens=4096 * 512,
        optimizer=_adam(1e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "electra": PretrainRecipe(
        source="Clark et al. 2020, table 6",
        warmup_steps=10_000,
        batch_tokens=256 * 512,
        optimizer=_adam(2e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "deberta": PretrainRecipe(
        source="He et al. 2021 (v3), table 9",
        warmup_steps=10_000,
        batch_tokens=8192 * 512,
        optimizer=_adam(6e-4, 0.98, 1e-6, 0.01, 1.0),
    ),
    "distilbert": PretrainRecipe(
        source="Sanh et al. 2019 and its training code",
        warmup_steps=5000,
        batch_tokens=4000 * 128,
        max_length="512",
        optimizer=_adam(5e-4, 0.98, 1e-6, 0.0, 5.0),
    ),
    "mobilebert": PretrainRecipe(
        source="Sun et al. 2020, 4.3; AdamW in place of LAMB",
        warmup_steps=10_000,
        batch_tokens=2048 * 512,
        optimizer=_adam(5e-4, 0.999, 1e-6, 0.01, 1.0),
    ),
    "modernbert": PretrainRecipe(
        source="Warner et al. 2024, table 3; AdamW in place of StableAdamW",
        warmup_steps=1500,
        batch_tokens=4608 * 1024,
        max_length="1024",
        schedule="wsd",
        optimizer=_adam(8e-4, 0.98, 1e-6, 1e-5, 1.0),
        objective_options={"masked": {"mask_prob": 0.3}},
    ),
    "gpt1": PretrainRecipe(
        source="Radford et al. 2018, 4.1",
        warmup_steps=2000,
        batch_tokens=64 * 512,
        schedule="cosine",
        optimizer=_adam(2.5e-4, 0.999, 1e-8, 0.01, 1.0),
    ),
    "gpt2": PretrainRecipe(
        source="not in Radford et al. 2019; GPT-3's for the same size",
        warmup_steps=700,
        batch_tokens=512 * 1024,
        max_length="1024",
        schedule="cosine",
        min_lr_ratio=0.1,
        optimizer=_adam(6e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "gpt3": PretrainRecipe(
        source="Brown et al. 2020, table 2.1 and appendix B",
        warmup_steps=750,  # 375 million tokens
        batch_tokens=500_000,
        max_length="2048",
        schedule="cosine",
        min_lr_ratio=0.1,
        optimizer=_adam(6e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "llama": PretrainRecipe(
        source="Touvron et al. 2023, 2.3",
        warmup_steps=2000,
        batch_tokens=4_000_000,
        max_length="2048",
        schedule="cosine",
        min_lr_ratio=0.1,
        optimizer=_adam(3e-4, 0.95, 1e-8, 0.1, 1.0),
    ),
    "t5": PretrainRecipe(
        source="Raffel et al. 2020, 3.1.2; AdamW and cosine in place of AdaFactor",
        warmup_steps=10_000,
        batch_tokens=128 * 512,
        schedule="cosine",
        min_lr_ratio=0.1,
        optimizer=_adam(1e-3, 0.98, 1e-8, 0.0, 1.0),
    ),
    "bart": PretrainRecipe(
        source="Lewis et al. 2020 and its training code",
        warmup_steps=10_000,
        batch_tokens=8000 * 512,
        optimizer=_adam(4e-4, 0.98, 1e-6, 0.01, 0.1),
    ),
    # Windows are longer than the papers', because no state is carried from one to the next.
    "bengio": PretrainRecipe(
        source="our measurements: docs/earlier-models.md; AdamW in place of SGD",
        warmup_steps=100,
        batch_tokens=8192,
        max_length="128",
        schedule="cosine",
        optimizer=_adam(1e-2, 0.99, 1e-8, 0.01, 1.0),
    ),
    "elmo": PretrainRecipe(
        source="Peters et al. 2018 and its training code; AdamW in place of Adagrad",
        warmup_steps=500,
        batch_tokens=3 * 128 * 20,
        max_length="128",
        optimizer=_adam(6e-3, 0.98, 1e-8, 0.0, 1.0),
    ),
    "trio": PretrainRecipe(
        source="our measurements: docs/pretraining.md and docs/learning.md",
        warmup_steps=500,
        batch_tokens=65_536,
        max_length="64:0.8,256",
        full_sentences=True,
        schedule="wsd",
        optimizer=OptimizerConfig(
            optimizer="muon", learning_rate=4e-3, beta2=0.98, weight_decay=0.1, max_grad_norm=1.0
        ),
        objective_options={
            objective: {"mask_prob": "0.3-0.15"}
            for objective in ("masked", "hybrid", "hybrid-batches")
        },
    ),
}
RECIPES["mistral"] = RECIPES["llama"]
RECIPES["lstm"] = RECIPES["awd-lstm"] = RECIPES["bengio"]

# Larger models have smaller learning rates and larger batches (GPT-3: Brown et al. 2020, table
# 2.1), by the smallest hidden size they apply to.
LEARNING_RATES = {
    "gpt3": {768: 6e-4, 1024: 3e-4, 1536: 2.5e-4, 2048: 2e-4, 2560: 1.6e-4, 4096: 1.2e-4}
    | {5120: 1e-4, 12288: 0.6e-4},
    "llama": {4096: 3e-4, 6656: 1.5e-4},
    "electra": {0: 5e-4, 768: 2e-4},
    "roberta": {768: 6e-4, 1024: 4e-4},
    "trio": {0: 4e-3, 512: 2e-3},
    "lstm": {0: 1e-2, 400: 3e-3},
    "awd-lstm": {0: 1e-2, 400: 3e-3},
}
BATCH_TOKENS = {"gpt3": {2048: 1_000_000, 4096: 2_000_000, 12288: 3_200_000}}


def scale_recipe(
    recipe: str,
    config: ModelConfig,
    *,
    steps: int = 0,
    tokens: int = 0,
    minutes: float = 0.0,
    device: str = "cpu",
    seed: int = 0,
) -> TrainingConfig:
    """Scale a family's recipe to a training budget.

    >>> from firth.models.presets import preset
    >>> recipe = scale_recipe("bert", preset("bert-base").config, steps=1_000_000, device="cuda")
    >>> recipe.optimizer.learning_rate, recipe.warmup, recipe.max_length
    (0.0001, 0.01, '128:0.9,512')
    >>> scale_recipe("bert", preset("bert-base").config, tokens=15_000_000).batch_tokens
    '10000'
    """
    if not steps and not tokens and not minutes:
        raise UsageError("Missing training budget: give steps, tokens or minutes.")
    row = RECIPES[recipe]
    published = int(_by_size(BATCH_TOKENS, recipe, config, row.batch_tokens))
    batch = min(published, MAX_BATCH.get(device, MAX_BATCH["cpu"]))
    speed = TOKENS_PER_SECOND.get(device, TOKENS_PER_SECOND["cpu"])
    expected_tokens = tokens or int(60 * minutes * speed)
    if expected_tokens:
        batch = min(published, max(MIN_BATCH, expected_tokens // MIN_STEPS))
    num_steps = steps or expected_tokens // batch
    warmup_steps = row.warmup_steps * row.batch_tokens / published  # the same number of tokens
    warmup = min(MAX_WARMUP, warmup_steps / num_steps) if num_steps else MAX_WARMUP
    rate = _by_size(LEARNING_RATES, recipe, config, row.optimizer.learning_rate)
    return TrainingConfig(
        steps=steps,
        tokens=tokens,
        minutes=minutes,
        max_length=_limit(_length_stages(row.max_length, config), config.max_positions),
        batch_tokens=str(batch),
        full_sentences=row.full_sentences,
        optimizer=row.optimizer,
        schedule=row.schedule,
        warmup=warmup,
        min_lr_ratio=row.min_lr_ratio,
        seed=seed,
    ).with_overrides({"learning_rate": rate})


def _by_size(
    table: Mapping[str, Mapping[int, float]], recipe: str, config: ModelConfig, default: float
) -> float:
    """Look up a value by the model's hidden size.

    >>> from firth.models.presets import preset
    >>> sizes = ("gpt3-small", "gpt3-xl", "gpt3-13b", "gpt3-175b")
    >>> [_by_size(BATCH_TOKENS, "gpt3", preset(size).config, 500_000) for size in sizes]
    [500000, 1000000, 2000000, 3200000]
    """
    sizes = table.get(recipe, {})
    return next(
        (sizes[size] for size in reversed(list(sizes)) if config.hidden_size >= size), default
    )


def _length_stages(stages: str, config: ModelConfig) -> str:
    """Use one length for encoder-decoders: longer texts need sentinels not seen before."""
    return stages.split(",")[-1] if config.architecture == "encoder-decoder" else stages


def _limit(stages: str, max_positions: int) -> str:
    """Limit the lengths of all stages to the model's positions.

    >>> _limit("128:0.9,512", 256), _limit("128:0.9,512", 64)
    ('128:0.9,256', '64:0.9,64')
    """
    parts = [part.split(":") for part in stages.split(",")]
    return ",".join(":".join([str(min(int(size), max_positions)), *rest]) for size, *rest in parts)
