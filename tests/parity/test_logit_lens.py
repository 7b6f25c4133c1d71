"""Each layer of the logit lens is what `transformers` computes with its own norm and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.inference.logit_lens import logit_lens
from firth.inference.scoring.token_scoring import ScoringRequest
from tests.parity.reference_models import VOCABULARY, WORDS
from tests.parity.test_text_model import CHOSEN, opened

IDS, SOURCE = (3, 9, 14, 27, 50, 8), (11, 5, 33, 21)
# The module after the last layer, and the head with what comes before it.
THEIRS = {
    "BertForMaskedLM": lambda model, hidden: model.cls(hidden),
    "GPT2LMHeadModel": lambda model, hidden: model.lm_head(model.transformer.ln_f(hidden)),
    "LlamaForCausalLM": lambda model, hidden: model.lm_head(model.model.norm(hidden)),
    "T5ForConditionalGeneration": lambda model, hidden: model.lm_head(
        model.decoder.final_layer_norm(hidden) * model.config.d_model**-0.5
    ),
    "BartForConditionalGeneration": lambda model, hidden: (
        model.lm_head(hidden) + model.final_logits_bias
    ),
}


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.name)
def test_every_layer(row: Any, tmp_path: Path) -> None:
    reference, model = opened(row, tmp_path)
    both = reference.config.is_encoder_decoder
    given: dict[str, Any] = dict(input_ids=torch.tensor([SOURCE if both else IDS]))
    if both:
        given["decoder_input_ids"] = torch.tensor([IDS])
    with torch.no_grad():
        found = reference(**given, output_hidden_states=True)
        layers = found.decoder_hidden_states if both else found.hidden_states
        logits = [*(THEIRS[row.name](reference, hidden[0]) for hidden in layers[:-1])]
        probs = torch.stack([*logits, found.logits[0]]).softmax(-1).numpy()  # (L + 1, T, V)
    request = ScoringRequest(IDS, (), (), SOURCE if both else ())
    encoder = model.config.architecture == "encoder"
    lens = logit_lens(model.transformer, WORDS, request, bidirectional=encoder, top=VOCABULARY)
    ours = np.empty_like(probs)
    np.put_along_axis(ours, lens.candidates, lens.probabilities, axis=-1)
    np.testing.assert_allclose(ours, probs, atol=1e-5)
