"""Presets build, survive JSON, name existing objectives, and every parameter gets a gradient."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from firth.formats.huggingface.directory import family_of
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.networks import config_class, network_name
from firth.models.presets import PRESETS, Preset, preset
from firth.models.presets.decoders import DECODERS
from firth.models.presets.earlier import EARLIER
from firth.models.presets.encoder_decoders import ENCODER_DECODERS
from firth.models.presets.encoders import ENCODERS
from firth.models.presets.trio import SIZES, TRIO
from firth.models.transformer import Transformer
from firth.objectives.registry import OBJECTIVES
from firth.training import recipes
from firth.training.fitted_objectives import FITTED
from firth.utils.errors import UsageError

RECIPES = (
    "transformer bert roberta spanbert albert electra deberta distilbert mobilebert modernbert "
    "gpt1 gpt2 gpt3 llama mistral t5 bart trio"
).split()
TRANSFORMERS = ENCODERS | DECODERS | ENCODER_DECODERS | TRIO


TRANSFORMERS = {name: row for name, row in PRESETS.items() if name not in EARLIER}


def test_names_are_unique_and_plain() -> None:
    assert len(PRESETS) == sum(map(len, (ENCODERS, DECODERS, ENCODER_DECODERS, TRIO, EARLIER)))
    for name, row in PRESETS.items():
        assert row.name == name
        assert re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", name)


@pytest.mark.parametrize("row", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_a_preset_is_valid(row: Preset) -> None:
    assert row.parameters == row.count_parameters()  # it builds, with its heads
    assert type(row.config).from_dict(json.loads(json.dumps(row.config.to_dict()))) == row.config
    if row.objective in FITTED:
        return
    assert row.config.architecture in OBJECTIVES[row.objective].architectures
    assert row.recipe in (RECIPES if row.name in TRANSFORMERS else recipes.RECIPES)
    found = family_of(row.config)
    assert (found.name if found else "") == row.config.family
    assert re.match(r"[A-Z].* (et al\. )?\d{4}", row.source)


@pytest.mark.parametrize("row", EARLIER.values(), ids=EARLIER)
def test_a_preset_of_an_earlier_model_is_valid(row: Preset) -> None:
    assert row.parameters in (row.count_parameters(), 0)  # 0: it depends on the text
    config = json.loads(json.dumps(row.config.to_dict()))
    assert config_class(network_name(row.config)).from_dict(config) == row.config
    assert re.match(r".*\d{4}", row.source)


def test_every_recipe_has_a_preset() -> None:
    assert {row.recipe for row in TRANSFORMERS.values()} == set(RECIPES)


@pytest.mark.parametrize(
    ("family", "names"),
    {
        "bert": "bert spanbert",
        "roberta": "roberta",
        "modernbert": "encoder modernbert",
        "modernbert-decoder": "decoder",
        "gpt2": "gpt2 gpt3",
        "llama": "llama llama2 llama3",
        "t5": "t5",
        "bart": "bart",
        "": "seq2seq transformer",
    }.items(),
)
def test_the_families_are_those_of_the_releases(family: str, names: str) -> None:
    ours = {name.split("-")[0] for name, row in TRANSFORMERS.items() if row.config.family == family}
    assert sorted(ours) == names.split()


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("BERT_base", ("'BERT_base'", "bert-base", "albert-base", "bart-base", "firth presets")),
        ("zzz", ("'zzz'", "firth presets")),
    ],
)
def test_an_unknown_preset_is_answered_with_similar_names(
    name: str, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        preset(name)
    assert all(fact in str(error.value) for fact in facts)


@pytest.mark.parametrize("size", SIZES)
def test_the_matched_models_differ_only_as_documented(size: str) -> None:
    encoder, decoder, both, half = (
        preset(name.format(size))
        for name in ("encoder-{}", "decoder-{}", "seq2seq-{}", "seq2seq-{}-half")
    )
    names = "architecture", "family", "num_layers", "num_decoder_layers"
    alike = {name: getattr(encoder.config, name) for name in names}
    for row in (decoder, both, half):
        assert replace(row.config, **alike) == encoder.config
    config = encoder.config
    layers, width, inner = config.num_layers, config.hidden_size, config.ffn_size
    assert both.config.num_layers == both.config.num_decoder_layers == layers
    assert half.config.num_layers == half.config.num_decoder_layers == layers // 2

    # Query, key, value and output; up, gate and down; a norm before each of the two.
    block = 4 * width * width + 3 * width * inner + 2 * width
    # The embedding's norm and the last one, less that of the first block.
    around = width
    cross = 4 * width * width + width
    assert encoder.parameters == decoder.parameters
    assert both.parameters == encoder.parameters + layers * (block + cross) + around
    assert half.parameters == encoder.parameters + layers // 2 * cross + around


# --- learning: one small member of every family

SHRUNK = dict(
    vocab_size=60, num_layers=2, hidden_size=32, num_heads=4, ffn_size=48, max_positions=16
)
DERIVED = dict(
    num_decoder_layers=0, num_kv_heads=0, head_dim=0, local_rope_theta=0.0, windowed_layers=()
)

SMALL = {
    name: replace(preset(name).config, **(SHRUNK | DERIVED | more))
    for name, more in {
        "roberta-base": {},
        "spanbert-base": {},
        "albert-base": dict(embedding_size=16),
        "electra-small": dict(embedding_size=16),
        "electra-base": {},
        "deberta-v3-base": dict(relative_buckets=8, relative_max_distance=16),
        "distilbert-base": {},
        "mobilebert": dict(embedding_size=16, bottleneck_size=16),
        "modernbert-base": dict(windowed_layers=(1,), window=2, local_rope_theta=100.0),
        "gpt1": {},
        "gpt2": {},
        "gpt3-xl": {},
        "llama-7b": {},
        "llama3-8b": dict(num_kv_heads=2),
        "mistral-7b": dict(num_kv_heads=2, windowed_layers=(0, 1), window=3),
        "transformer-base": {},
        "t5-small": {},
        "t5-v1.1-small": {},
        "bart-base": {},
    }.items()
}
SMALL |= {name: row.config for name, row in TRANSFORMERS.items() if "tiny" in name}


def loss_of(network: Transformer) -> Tensor:
    """Compute the sum of the losses of all heads on two random sequences."""
    config, lengths = network.config, [7, 4]
    generator = torch.Generator().manual_seed(3)
    tokens, targets, source = torch.randint(config.vocab_size, (3, 11), generator=generator)
    mask, memory = Mask(lengths) if config.architecture == "encoder" else Mask.causal(lengths), None
    if config.architecture == "encoder-decoder":
        memory = network.encode(source, Mask(lengths))
    memory_mask = None if memory is None else Mask(lengths)
    hidden = network(tokens, mask, memory=memory, memory_mask=memory_mask)
    assert hidden.shape == (11, config.hidden_size)

    first, heads = hidden[[0, 7]], network.heads
    pooled = heads["pooler"](first) if "pooler" in heads else first
    losses = {
        "language": lambda: cross_entropy(network.logits(hidden), targets),
        "pooler": lambda: pooled.square().mean(),
        "pair": lambda: cross_entropy(heads["pair"](pooled), torch.tensor([0, 1])),
        "replaced": lambda: binary_cross_entropy_with_logits(
            heads["replaced"](hidden), (tokens == targets).float()
        ),
        "boundary": lambda: cross_entropy(
            heads["boundary"](
                hidden[[0, 0]], hidden[[3, 3]], torch.tensor([1, 2]), network.tokens.weight
            ),
            targets[1:3],
        ),
    }
    return torch.stack([losses[name]() for name in heads]).sum()


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_has_a_gradient(name: str) -> None:
    network = initialise(Transformer(SMALL[name], preset(name).heads), seed=1)
    loss = loss_of(network.train())
    assert torch.isfinite(loss)
    loss.backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_every_recipe_is_among_the_small_models() -> None:
    assert {preset(name).recipe for name in SMALL} == set(RECIPES)
