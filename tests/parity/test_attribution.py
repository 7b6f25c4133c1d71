"""Integrated gradients equal a plain loop over the gradients of `transformers`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.formats.huggingface.directory import read_network
from firth.inspection import attribution
from firth.inspection.attribution import token_gradients
from firth.inspection.explained_output import ExplainedOutput, InputRow
from firth.inspection.token_outputs import _token_score
from firth.tokenizers.tokenizer import Tokenizer
from tests.parity.test_families import ROWS, Row

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
FAMILIES = {row.name: row for row in reversed(ROWS)}  # the first row of each class
NAMES = (
    *("BertForMaskedLM", "AlbertForMaskedLM", "ModernBertForMaskedLM", "DebertaV2ForMaskedLM"),
    *("MobileBertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM"),
    *("Gemma3ForCausalLM", "MT5ForConditionalGeneration", "BartForConditionalGeneration"),
)
IDS, DECODER, TARGET, NEUTRAL = [2, 17, 33, 9, 41, 3], [1, 22], 30, 50
POINTS = 200  # of the midpoint rule


def their_log_odds(reference: Any, embeddings: Tensor, position: int) -> Tensor:
    inputs: dict[str, Any] = {"inputs_embeds": embeddings}
    if reference.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([DECODER]).expand(len(embeddings), -1)
    found = reference(**inputs)
    logits = getattr(found, "logits", None)
    logits = found.prediction_logits if logits is None else logits
    log_probs = logits[:, position].double().log_softmax(-1)[:, TARGET]
    return log_probs - torch.log(-torch.expm1(log_probs))


def their_gradients(reference: Any, position: int) -> tuple[Tensor, float]:
    """Sum the gradients at the middle of equal steps."""
    matrix = reference.get_input_embeddings()
    x, baseline = matrix(torch.tensor(IDS)).detach(), matrix(torch.tensor(IDS)).detach().clone()
    baseline[1:-1] = matrix(torch.tensor(NEUTRAL)).detach()
    points = baseline + ((torch.arange(POINTS) + 0.5) / POINTS)[:, None, None] * (x - baseline)
    points.requires_grad_()
    [slopes] = torch.autograd.grad(their_log_odds(reference, points, position).sum(), points)
    ends = their_log_odds(reference, torch.stack([baseline, x]), position).detach()
    return (slopes.mean(0) * (x - baseline)).sum(-1), float(ends[1] - ends[0])


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_a_loop_over_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row: Row = FAMILIES[name]
    reference = row.reference()
    reference.save_pretrained(tmp_path)
    network = read_network(tmp_path).eval()
    pair = network.config.architecture == "encoder-decoder"
    position = {"encoder": 2, "decoder": len(IDS) - 1}.get(network.config.architecture, 1)
    ids = np.array(IDS)
    explained = ExplainedOutput(
        name="",
        tokenizer=cast(Tokenizer, None),
        row=InputRow(ids, np.zeros_like(ids), np.array([position])),
        score=partial(_token_score, [TARGET]),
        is_text=np.array([False, *[True] * (len(IDS) - 2), False]),
        attention="causal" if network.config.architecture == "decoder" else "bidirectional",
        decoder_tokens=np.array(DECODER) if pair else None,
    )
    neutral = network.token_embeddings(network.stacks[0]).weight[NEUTRAL].detach()
    ours = token_gradients(network, explained, neutral)
    wanted, difference = their_gradients(reference, position)
    assert ours.difference == pytest.approx(difference, abs=1e-3)
    assert abs(ours.scores.sum() - difference) <= 0.01 * abs(difference)
    monkeypatch.setattr(attribution, "TOLERANCE", 1e-3)
    ours = token_gradients(network, explained, neutral)
    np.testing.assert_allclose(ours.scores, wanted, atol=0.01)
    assert (ours.scores[[0, -1]] == 0).all()
