"""Each step's probabilities are those of generation, its attention that of the whole text."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from firth import UsageError, load
from firth.adapt.apply import apply
from firth.inference.attention_maps import attention_arrays
from firth.inspection import generation_steps as module
from firth.inspection.generation_steps import generation_steps
from firth.utils.errors import MismatchError
from firth.utils.figures import BarChart, Heatmap, Tabs, WeightedText

TEXT = "The dog ran"
SAMPLED: dict[str, Any] = dict(method="sample", temperature=1.4, top_k=50, seed=4)


@pytest.mark.parametrize("settings", [{}, SAMPLED, dict(beams=2)], ids=["greedy", "sample", "beam"])
@pytest.mark.parametrize("name", ["stories-decoder", "stories-seq2seq"])
def test_probabilities_are_those_of_generation(name: str, settings: dict[str, Any]) -> None:
    model = load(name)
    found = generation_steps(model, TEXT, max_new_tokens=6, **settings)
    [done] = model.completions(TEXT, max_new_tokens=6, **settings)
    [completion] = done.completions
    assert found.text == completion.text
    ended = completion.finish_reason == "end"
    assert [step.id for step in found.steps][: len(found.steps) - ended] == list(completion.tokens)
    total = sum(math.log(step.probability) for step in found.steps)
    assert total == pytest.approx(completion.logprob, abs=1e-3), "computed with the cache"
    for step in found.steps:
        assert (step.sampling_probability is not None) == ("seed" in settings)
        assert (step.id in [one.id for one in step.candidates]) == (step.rank <= 5)


def test_attention_of_a_decoder() -> None:
    """Every step has the last row of attention on the text so far, as in `Model.attention`."""
    model = load("stories-decoder")
    found = generation_steps(model, TEXT, max_new_tokens=4)
    [attention] = found.attention
    prompt = model.text_generator().encode_prompt(TEXT).ids
    ids = [*prompt, *(step.id for step in found.steps)]
    whole = attention_arrays(model.network, ids[:-1], layers=[-1])["decoder"][0].mean(0)  # (T, T)
    np.testing.assert_allclose(attention.weights, whole[-4:], atol=1e-6)
    for i, length in enumerate(attention.lengths):
        so_far = attention_arrays(model.network, ids[: len(prompt) + i], layers=[-1])["decoder"]
        assert length == len(prompt) + i
        np.testing.assert_allclose(attention.weights[i, :length], so_far[0].mean(0)[-1], atol=1e-5)
        assert not attention.weights[i, length:].any()
    both = generation_steps(model, TEXT, max_new_tokens=4, layers=[1, -1]).attention[0]
    first = generation_steps(model, TEXT, max_new_tokens=4, layers=[1]).attention[0]
    np.testing.assert_allclose(both.weights, (attention.weights + first.weights) / 2, atol=1e-6)
    assert both.layers == (1, 5)


def test_attention_of_an_encoder_decoder() -> None:
    model = load("stories-seq2seq")
    found = generation_steps(model, TEXT, max_new_tokens=3)
    source = model.text_generator().encode_prompt(TEXT).ids
    read = [model.config.decoder_start_token_id or 0, *(step.id for step in found.steps[:-1])]
    whole = attention_arrays(model.network, source, read, layers=[-1])
    assert [part.part for part in found.attention] == ["decoder", "cross"]
    for part in found.attention:
        np.testing.assert_allclose(part.weights, whole[part.part][0].mean(0), atol=1e-6)
        assert part.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert len(found.attention[1].tokens) == len(source)
    assert found.attention[1].lengths == [len(source)] * 3


def test_figures_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABS", 2)
    monkeypatch.setattr(module, "MAX_COLUMNS", 5)
    monkeypatch.setattr(module, "MAX_PIECES", 3)
    found = generation_steps(load("stories-decoder"), TEXT, max_new_tokens=3)
    _, heatmap, tabs = found.figures()
    assert isinstance(heatmap, Heatmap)
    assert heatmap.rows == tuple(f"{i}. {step.token}" for i, step in enumerate(found.steps, 1))
    assert list(heatmap.columns) == [*found.attention[0].tokens[-5:]]
    assert math.isnan(heatmap.values[0][-1]), "a later token"
    assert isinstance(tabs, Tabs)
    assert tabs.names == heatmap.rows[:2]
    bars, text = tabs.figures[1]
    assert isinstance(bars, BarChart)
    assert bars.bars[0].value == found.steps[1].probability
    assert isinstance(text, WeightedText)
    assert [piece.text for piece in text.pieces] == ["·dog", "·ran", found.steps[0].token]
    values = json.loads(json.dumps(found.values()))
    assert values["steps"][1]["token"] == found.steps[1].token
    assert [len(row) for row in values["attention"][0]["weights"]] == found.attention[0].lengths


def test_trained_prefixes_are_further_tokens() -> None:
    model = load("stories-decoder")
    apply(model.network, "prefix:2")
    found = generation_steps(model, TEXT, max_new_tokens=2)
    [attention] = found.attention
    assert attention.tokens[:3] == ("prefix 1", "prefix 2", "<s>")
    assert attention.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert attention.lengths == [6, 7]


def test_wrong_input() -> None:
    model = load("stories-decoder")
    with pytest.raises(UsageError, match="layer 9"):
        generation_steps(model, TEXT, layers=[9])
    with pytest.raises(UsageError, match="layers"):
        generation_steps(model, TEXT, layers=[])
    with pytest.raises(UsageError, match="n=2"):
        generation_steps(model, TEXT, n=2, method="sample")
    with pytest.raises(MismatchError, match="encoder"):
        generation_steps(load("stories-encoder"), TEXT)
