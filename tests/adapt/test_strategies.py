"""Every strategy on every architecture: identity, merging, saving, switching, removal."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from firth.adapt.apply import AppliedStrategy, activate, apply, get_adapters, merge, remove, unmerge
from firth.adapt.registry import STRATEGIES, parse_strategy
from firth.adapt.saving import load_adapter, save_adapter
from firth.models.transformer import Transformer
from firth.utils.errors import MismatchError, UsageError
from tests.adapt.harness import (
    ADAPTERS,
    OWN,
    TRAINED,
    cases,
    difference,
    fresh,
    outputs_of,
    randomized,
)
from tests.models.small import run, samples

IDENTICAL = [spec for spec in [*ADAPTERS, *OWN] if parse_strategy(spec).row.starts_as_identity]
MERGING = [spec for spec in ADAPTERS if parse_strategy(spec).row.mergeable]
SUMMING = [spec for spec in ADAPTERS if parse_strategy(spec).row.additive]


def test_every_strategy_is_tested() -> None:
    assert {parse_strategy(spec).name for spec in [*ADAPTERS, *OWN]} == set(STRATEGIES)


@pytest.mark.parametrize(("kind", "spec"), cases(*IDENTICAL))
def test_a_new_adapter_changes_no_output(kind: str, spec: str) -> None:
    network = fresh(kind, torch.float32)
    before = outputs_of(network, kind)
    apply(network, spec, heads=TRAINED)
    assert torch.equal(outputs_of(network, kind), before)


def learn(network: Transformer, kind: str) -> None:
    """One step downhill with what requires a gradient."""
    hidden = torch.cat(run(network, samples(kind)))
    scores = torch.cat([hidden, network.heads["pooler"](hidden)], dim=-1)
    weights = torch.linspace(-1, 1, scores.shape[-1], dtype=scores.dtype)
    (scores.tanh() @ weights).square().mean().backward()
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    torch.optim.SGD(learning, lr=0.5).step()


@pytest.mark.parametrize(("kind", "spec"), cases(*ADAPTERS, *OWN))
def test_only_the_named_parameters_change(kind: str, spec: str) -> None:
    network = fresh(kind)
    adapted = apply(network, spec, heads=TRAINED) if spec in OWN else randomized(network, spec)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    learn(network, kind)
    after = network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed  # not all: where a softmax saturates, a gradient may be lost in rounding
    assert changed <= set(adapted.parameters)
    assert all(parameter.grad is not None for parameter in adapted.parameters.values())
    assert adapted.trainable_parameters == sum(
        parameter.numel() for parameter in adapted.parameters.values()
    )
    assert 0 < adapted.trainable_fraction <= 1


@pytest.mark.parametrize(("kind", "spec"), cases(*MERGING))
def test_merged_and_unmerged_compute_the_same(kind: str, spec: str) -> None:
    network = fresh(kind)
    base = {name: value.clone() for name, value in network.state_dict().items()}
    plain = outputs_of(network, kind)
    adapted = randomized(network, spec)
    unmerged = outputs_of(network, kind)
    assert difference(unmerged, plain) > 1e-3
    merge(network)
    assert list(network.state_dict()) == list(base)
    assert difference(outputs_of(network, kind), unmerged) < 1e-10
    unmerge(network)
    assert torch.equal(outputs_of(network, kind), unmerged)
    weights = network.state_dict()
    kept = [name for name in base if name not in adapted.parameters]
    assert all(torch.equal(weights[name], base[name]) for name in kept)
    merge(network, keep=False)
    assert not get_adapters(network)
    assert difference(outputs_of(network, kind), unmerged) < 1e-10


@pytest.mark.parametrize(("kind", "spec"), cases(*ADAPTERS, "probe"))
def test_saved_adapters_are_loaded_unchanged(kind: str, spec: str, tmp_path: Path) -> None:
    network = fresh(kind)
    adapted = randomized(network, spec)
    save_adapter(adapted, tmp_path, base="a small one")
    again = fresh(kind)
    loaded = load_adapter(again, tmp_path)
    assert torch.equal(outputs_of(again, kind), outputs_of(network, kind))
    if "projection" not in spec:  # which is folded away
        assert loaded.strategy == adapted.strategy
        assert {n: p.shape for n, p in loaded.parameters.items()} == {
            n: p.shape for n, p in adapted.parameters.items()
        }


@pytest.mark.parametrize(("kind", "spec"), cases(*ADAPTERS))
def test_several_adapters_are_swapped_and_removed(kind: str, spec: str) -> None:
    network = fresh(kind)
    base = {name: value.clone() for name, value in network.state_dict().items()}
    plain = outputs_of(network, kind)
    randomized(network, spec, "a", seed=1)
    first = outputs_of(network, kind)
    randomized(network, spec, "b", seed=2)
    second = outputs_of(network, kind)
    assert (
        min(difference(plain, first), difference(plain, second), difference(first, second)) > 1e-3
    )
    activate(network, "a")
    assert torch.equal(outputs_of(network, kind), first)
    activate(network, ())
    assert torch.equal(outputs_of(network, kind), plain)
    twin = deepcopy(network)
    activate(twin, "b")
    assert torch.equal(outputs_of(twin, kind), second)
    assert torch.equal(outputs_of(network, kind), plain)
    remove(network, "b")
    remove(network, "a")
    after = network.state_dict()
    assert list(after) == list(base)
    assert all(torch.equal(after[name], value) for name, value in base.items())
    assert torch.equal(outputs_of(network, kind), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize(("kind", "spec"), cases(*SUMMING))
def test_adapters_are_summed_with_weights(kind: str, spec: str) -> None:
    """The weights are those of the base and 0.7 and 0.3 of what each alone makes of them."""
    network = fresh(kind)
    base = fresh(kind).state_dict()
    alone: list[dict[str, torch.Tensor]] = []
    for name, seed in (("a", 1), ("b", 2)):
        randomized(network, spec, name, seed)
        merge(network)
        alone.append({key: value.clone() for key, value in network.state_dict().items()})
        unmerge(network)
    activate(network, {"a": 0.7, "b": 0.3})
    summed = fresh(kind)
    mixed = {k: v + 0.7 * (alone[0][k] - v) + 0.3 * (alone[1][k] - v) for k, v in base.items()}
    mixed |= {k: v for k, v in alone[1].items() if k.startswith("heads.")}  # the last one's
    summed.load_state_dict(mixed)
    assert difference(outputs_of(network, kind), outputs_of(summed, kind)) < 1e-10
    merge(network)
    assert difference(outputs_of(network, kind), outputs_of(summed, kind)) < 1e-10


@pytest.mark.parametrize(("kind", "spec"), cases("lora:rank=3", "prefix:3", "prompt:3"))
def test_packed_single_and_dense_agree(kind: str, spec: str) -> None:
    network = fresh(kind)
    randomized(network, spec)
    packed = outputs_of(network, kind)
    with torch.no_grad():
        single = torch.cat([run(network, [sample])[0] for sample in samples(kind)])
        assert difference(packed[:, : single.shape[1]], single) < 1e-10
        for stack in filter(None, (network.encoder, network.decoder)):
            stack.dense = True
        assert difference(packed, outputs_of(network, kind)) < 1e-10


def test_a_network_without_biases_says_so() -> None:
    with pytest.raises(MismatchError, match="no biases"):
        apply(fresh("llama"), "bitfit")


def test_adapters_of_all_strategies_on_one_network() -> None:
    network = fresh("bert")
    seen = {}
    for spec in ADAPTERS:
        name = spec.replace(":", "-").replace("=", "").replace(",", "").replace("+", "")
        randomized(network, spec, name)
        seen[name] = outputs_of(network, "bert")
    for name, output in reversed(seen.items()):
        activate(network, name)
        assert torch.equal(outputs_of(network, "bert"), output)


def test_half_precision_has_adapters_in_single_precision() -> None:
    network = fresh("bert", torch.bfloat16)
    before = outputs_of(network, "bert")
    for spec in ADAPTERS:
        if spec in IDENTICAL:
            apply(network, spec)
            assert torch.equal(outputs_of(network, "bert"), before)
            remove(network, "default")
        adapted = randomized(network, spec)
        changes = adapted.modules.values()
        assert all(p.dtype == torch.float32 for change in changes for p in change.parameters())
        assert outputs_of(network, "bert").dtype == torch.bfloat16
        remove(network, "default")


def test_checkpointed_activations_have_the_same_gradients() -> None:
    gradients = []
    for on in (False, True):
        network = fresh("t5")
        adapted = randomized(network, "prefix:3")
        network.train()
        for stack in network.stacks:
            stack.checkpointing = on
        torch.cat(run(network, samples("t5"))).square().mean().backward()
        gradients.append([p.grad for n, p in adapted.parameters.items() if "prefix" in n])
    torch.testing.assert_close(*gradients)


def misuse(call: object, *arguments: object, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments, **options)  # type: ignore[operator]
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "spec", "facts"),
    [
        ("bert", "lora:targets=q_proj", ["'q_proj'", "query, key, value, output, up, down", "qkv"]),
        ("bert", "lora:rank=17", ["17", "16 x 16", "encoder.blocks.0.attention.query"]),
        ("bert", "freeze:3", ["freeze:3", "2 blocks"]),
        ("albert", "freeze:2", ["freeze:2", "1 block, shared by all layers"]),
        ("bert", "prefix:32", ["prefix", "length 32", "32 positions"]),
        ("bert", "prefix:where=decoder", ["decoder", "encoder"]),
        ("bert", "prompt:tokens=40", ["0 to 39"]),
        ("bert", "ia3:inputs=query", ["encoder.blocks.0.attention.query", "shared"]),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused(kind: str, spec: str, facts: list[str]) -> None:
    network = fresh(kind)
    message = misuse(apply, network, spec)
    assert all(fact in message for fact in facts), message
    assert not get_adapters(network)


def test_an_unknown_head_is_refused() -> None:
    message = misuse(apply, fresh("bert"), "lora", heads=["classify"])
    assert "'classify'" in message
    assert "language, pooler" in message


def test_misuse_of_adapters_is_explained() -> None:
    network = fresh("bert")
    apply(network, "lora:rank=2", name="a")
    assert "already has an adapter 'a'" in misuse(apply, network, "lora:rank=2", name="a")
    assert "cannot be called 'a.b'" in misuse(apply, network, "lora:rank=2", name="a.b")
    assert "cannot be called 'keys'" in misuse(apply, network, "lora:rank=2", name="keys")
    for use in (activate, remove):
        assert "no adapter 'b'; there are a" in misuse(use, network, "b")
    assert "adapters (a); merge or remove them" in misuse(apply, network, "full")
    apply(network, "ia3", name="c")
    assert "must be 0 or 1" in misuse(activate, network, {"c": 0.5})
    activate(network, ["a", "c"])
    assert "only if all are additive" in misuse(merge, network)
    apply(network, "prompt:2", name="d")
    assert "cannot be merged" in misuse(merge, network)
    activate(network, "a")
    merge(network)
    assert "unmerge or remove them first" in misuse(activate, network, "c")
    assert "unmerge or remove them first" in misuse(apply, network, "lora:rank=2", name="e")


def test_a_head_belongs_to_its_adapter() -> None:
    network = fresh("bert")
    own = network.heads["pooler"]
    first = apply(network, "lora:rank=2", name="a", heads=["pooler"])
    second = apply(network, "lora:rank=2", name="b", heads=["pooler"])
    assert network.heads["pooler"] is second.heads["pooler"] is not own
    activate(network, "a")
    assert network.heads["pooler"] is first.heads["pooler"]
    activate(network, ())
    assert network.heads["pooler"] is own
    assert isinstance(own, nn.Module)


def test_the_language_head_stays_as_pretraining_made_it() -> None:
    adapted: AppliedStrategy = apply(fresh("bert"), "lora:rank=2", heads=["language"])
    assert not adapted.heads
    assert not any(name.startswith("heads.") for name in adapted.parameters)
