"""Presets are sound rows: they build, survive JSON, name what exists, and learn."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.models.formats.directory import family_of
from firth.models.initial import initialise
from firth.models.masks import Mask
from firth.models.presets import PRESETS, Preset, preset
from firth.models.presets.decoders import DECODERS
from firth.models.presets.encoder_decoders import ENCODER_DECODERS
from firth.models.presets.encoders import ENCODERS
from firth.models.presets.sizes import PARAMETERS
from firth.models.presets.trio import SIZES, TRIO
from firth.models.transformer import Transformer
from firth.objectives.table import OBJECTIVES

RECIPES = (
    "transformer bert roberta spanbert albert electra deberta distilbert mobilebert modernbert "
    "gpt1 gpt2 gpt3 llama mistral t5 bart trio"
).split()


def test_names_are_unique_and_plain() -> None:
    assert set(PRESETS) == set(PARAMETERS)
    assert len(PRESETS) == sum(map(len, (ENCODERS, DECODERS, ENCODER_DECODERS, TRIO)))
    for name, row in PRESETS.items():
        assert row.name == name
        assert re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", name)


@pytest.mark.parametrize("row", PRESETS.values(), ids=PRESETS)
def test_a_row_is_sound(row: Preset) -> None:
    assert row.counted() > 1_000_000  # it builds, with its heads
    assert PARAMETERS.get(row.name) == row.counted(), "firth/models/presets/sizes.py lists it"
    assert ModelConfig.from_dict(json.loads(json.dumps(row.config.to_dict()))) == row.config
    assert row.config.architecture in OBJECTIVES[row.objective].architectures
    assert row.recipe in RECIPES
    assert re.match(r"[A-Z].* (et al\. )?\d{4}", row.source)


def test_every_recipe_has_a_preset() -> None:
    assert {row.recipe for row in PRESETS.values()} == set(RECIPES)


@pytest.mark.parametrize("row", PRESETS.values(), ids=PRESETS)
def test_a_network_is_written_as_its_family_does(row: Preset) -> None:
    found = family_of(row.config)
    assert (found.name if found else "") == row.config.family


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
    ours = {name.split("-")[0] for name, row in PRESETS.items() if row.config.family == family}
    assert sorted(ours) == names.split()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "BERT_base",
            "There is no preset 'BERT_base'; did you mean bert-base, albert-base or bart-base, "
            "or another one that `firth presets` lists?",
        ),
        ("zzz", "There is no preset 'zzz'; `firth presets` lists those there are."),
    ],
)
def test_an_unknown_name_is_answered_with_those_near_it(name: str, message: str) -> None:
    with pytest.raises(Misuse, match=re.escape(message)):
        preset(name)


@pytest.mark.parametrize("size", SIZES)
def test_the_trio_differs_only_where_it_says(size: str) -> None:
    encoder, decoder, both, half = (
        preset(name.format(size))
        for name in ("encoder-{}", "decoder-{}", "seq2seq-{}", "seq2seq-{}-half")
    )
    names = "architecture", "family", "layers", "decoder_layers"
    alike = {name: getattr(encoder.config, name) for name in names}
    for row in (decoder, both, half):
        assert replace(row.config, **alike) == encoder.config
    layers, width, inner = encoder.config.layers, encoder.config.width, encoder.config.inner
    assert both.config.layers == both.config.decoder_layers == layers
    assert half.config.layers == half.config.decoder_layers == layers // 2

    # Query, key, value and output; up, gate and down; a norm before each of the two.
    block = 4 * width * width + 3 * width * inner + 2 * width
    # The embedding's norm and the last one, less that of the first block.
    around = width
    cross = 4 * width * width + width
    assert encoder.parameters == decoder.parameters
    assert both.parameters == encoder.parameters + layers * (block + cross) + around
    assert half.parameters == encoder.parameters + layers // 2 * cross + around


# --- learning: one small member of every family

SHRUNK = dict(vocabulary=60, layers=2, width=32, heads=4, inner=48, context=16)
DERIVED = dict(decoder_layers=0, kv_heads=0, head_width=0, local_theta=0.0, windowed=())

SMALL = {
    name: replace(preset(name).config, **(SHRUNK | DERIVED | more))
    for name, more in {
        "roberta-base": {},
        "spanbert-base": {},
        "albert-base": dict(embedding_width=16),
        "electra-small": dict(embedding_width=16),
        "electra-base": {},
        "deberta-v3-base": dict(buckets=8, distance=16),
        "distilbert-base": {},
        "mobilebert": dict(embedding_width=16, bottleneck=16),
        "modernbert-base": dict(windowed=(1,), window=2, local_theta=100.0),
        "gpt1": {},
        "gpt2": {},
        "gpt3-xl": {},
        "llama-7b": {},
        "llama3-8b": dict(kv_heads=2),
        "mistral-7b": dict(kv_heads=2, windowed=(0, 1), window=3),
        "transformer-base": {},
        "t5-small": {},
        "t5-v1.1-small": {},
        "bart-base": {},
    }.items()
}
SMALL |= {name: preset(name).config for name in PRESETS if "tiny" in name}


def loss_of(network: Transformer) -> Tensor:
    """The sum of what the heads have to learn from two sequences of random tokens."""
    config, lengths = network.config, [7, 4]
    generator = torch.Generator().manual_seed(3)
    tokens, targets, source = torch.randint(config.vocabulary, (3, 11), generator=generator)
    mask, memory = Mask(lengths) if config.architecture == "encoder" else Mask.causal(lengths), None
    if config.architecture == "encoder-decoder":
        memory = network.encode(source, Mask(lengths))
    memory_mask = None if memory is None else Mask(lengths)
    hidden = network(tokens, mask, memory=memory, memory_mask=memory_mask)
    assert hidden.shape == (11, config.width)

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
def test_every_parameter_learns(name: str) -> None:
    network = initialise(Transformer(SMALL[name], preset(name).heads), seed=1)
    loss = loss_of(network.train())
    assert torch.isfinite(loss)
    loss.backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_one_of_every_family_learns() -> None:
    assert {preset(name).recipe for name in SMALL} == set(RECIPES)
