"""The attention of a text on a page: what is stored of long texts and of several."""

from __future__ import annotations

import numpy as np
import pytest

from firth import Model
from firth.inspection import text_attention as module
from firth.inspection.input_text import ModelInput
from firth.inspection.text_attention import TextAttention, text_attention
from firth.utils.attention_view import AttentionView, page_bytes

IDS = tuple(range(10, 60))


def caption(found: TextAttention) -> str:
    view = found.figures()[0]
    assert isinstance(view, AttentionView)
    return view.caption


def test_tokens_after_the_limit_are_not_read(
    seq2seq: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = text_attention(seq2seq, ModelInput(ids=IDS[:16], target_ids=IDS[:4]))
    monkeypatch.setattr(module, "MAX_TOKENS", 16)
    found = text_attention(seq2seq, ModelInput(ids=IDS, target_ids=IDS[:4]))
    assert found.values() == first.values()
    assert "16 tokens" in caption(found)
    assert caption(first) == module.CAPTION


def test_texts_share_the_size_of_a_page(encoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = text_attention(encoder, ModelInput(ids=IDS))
    layers = whole.parts[0].layers
    size = page_bytes([(6, 50, 50)] * len(layers), None)
    monkeypatch.setattr(module, "PAGE_BUDGET", size)
    assert text_attention(encoder, ModelInput(ids=IDS)).stored is None
    shared = text_attention(encoder, ModelInput(ids=IDS), texts_on_page=4)
    assert shared.stored
    assert [one.number for one in shared.parts[0].layers] == [1, 2, 3, 4, 5]
    assert f"the {shared.stored} largest" in caption(shared)
    least = text_attention(encoder, ModelInput(ids=IDS), texts_on_page=15)
    assert [one.number for one in least.parts[0].layers] == [1, 3, 5]
    assert "3 of 5 layers" in caption(least)
    kept, all_of_them = (one.layers[-1].weights.dense() for one in (least.parts[0], whole.parts[0]))
    assert np.array_equal(kept.max(-1), all_of_them.max(-1))
