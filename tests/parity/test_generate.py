"""Greedy and beam search write, token for token, what `transformers.generate` writes: in every
family that writes, also when prompts of unequal length are in one batch.

The reference is a tiny network with random weights that is given one prompt at a time. Two tokens
end a text, and BART's first and last tokens are forced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from firth.formats.huggingface.directory import read_network
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import (
    HISTORY_PAD,
    apply_repetition_penalty,
    apply_temperature,
    block_repeated_ngrams,
    keep_min_p,
    keep_top_k,
    keep_top_p,
)
from firth.inference.generation.token_generation import generate
from firth.models.transformer import Transformer
from tests.nightly import mostly_nightly
from tests.parity.test_families import ROWS, Row

START, PAD = 3, 0
# One of each family; windows and several groups of heads are among them.
WRITERS = {
    row.name: row
    for row in reversed(ROWS)
    if row.name.endswith(("ForCausalLM", "GPTLMHeadModel", "GPT2LMHeadModel", "Generation"))
    and row.id != "Gemma3ForCausalLM-untied"
}
OFTEN = ["Gemma3ForCausalLM", "GPT2LMHeadModel", "BartForConditionalGeneration"]
PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 40]]
MOST = 8
SETTINGS = [
    GenerationConfig(max_new_tokens=MOST),
    GenerationConfig(max_new_tokens=MOST, repetition_penalty=1.7, no_repeat_ngram=2),
    GenerationConfig(max_new_tokens=MOST, method="sample", top_k=1),  # greedy
    GenerationConfig(max_new_tokens=MOST, method="beam", beams=3, n=3),
    GenerationConfig(max_new_tokens=MOST, method="beam", beams=4, n=2, length_penalty=0.3),
    GenerationConfig(max_new_tokens=MOST, method="beam", beams=2, early_stopping=True),
    GenerationConfig(max_new_tokens=MOST, method="beam", beams=3, early_stopping="never"),
    GenerationConfig(max_new_tokens=MOST, method="beam", beams=3, n=2, length_penalty=-1.0),
    GenerationConfig(
        max_new_tokens=MOST, method="beam", beams=5, n=5, repetition_penalty=1.3, no_repeat_ngram=2
    ),
]


class Pair(NamedTuple):
    """A network there and here, and the tokens that end its texts."""

    theirs: Any
    ours: Transformer
    ends: list[int]


@pytest.fixture(scope="module", params=mostly_nightly(WRITERS, always=OFTEN))
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A reference, and the same network here; its end is a token that some texts come to."""
    row: Row = WRITERS[request.param]
    ids = dict(eos_token_id=2, pad_token_id=PAD, bos_token_id=1)
    if "ConditionalGeneration" in row.name:
        ids["decoder_start_token_id"] = START
    reference = replace(row, config=row.config | ids).reference()
    forced = dict(bos=9, eos=11) if "Bart" in row.name else dict(bos=None, eos=None)
    reference.generation_config.forced_bos_token_id = forced["bos"]
    reference.generation_config.forced_eos_token_id = forced["eos"]
    with torch.no_grad():
        reference.get_output_embeddings().weight.mul_(0.4)  # flatter, so that several beams live
    place = tmp_path_factory.mktemp("model")
    reference.save_pretrained(place)
    network = read_network(place).eval()
    found = [generate(network, PROMPTS, settings, eos_token_id=None) for settings in SETTINGS[1:4]]
    later = [set(one.tokens[2:7]) for rows in found for row in rows for one in row]
    common = Counter(token for tokens in later for token in tokens).most_common()
    ends = [token for token, count in common if count <= len(later) // 3]
    return Pair(reference, network, [ends[0], ends[-1]])


def written(
    pair: Pair, prompt: list[int], settings: GenerationConfig
) -> list[tuple[list[int], float]]:
    """What they write behind one prompt, up to the end, with their scores."""
    reference, ends = pair.theirs, pair.ends
    beam = dict(
        num_beams=settings.beams,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        num_return_sequences=settings.n,
    )
    given = torch.tensor([prompt])
    made = reference.generate(
        given,
        attention_mask=torch.ones_like(given),
        generation_config=transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=settings.max_new_tokens,
            repetition_penalty=settings.repetition_penalty,
            no_repeat_ngram_size=settings.no_repeat_ngram,
            eos_token_id=ends,
            pad_token_id=PAD,
            decoder_start_token_id=START,
            forced_bos_token_id=reference.generation_config.forced_bos_token_id,
            forced_eos_token_id=reference.generation_config.forced_eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,
            **(beam if settings.method == "beam" else {}),
        ),
    )
    skip = 1 if reference.config.is_encoder_decoder else len(prompt)
    rows = [row[skip:].tolist() for row in made.sequences]
    scores = made.sequences_scores.tolist() if settings.method == "beam" else [0.0]
    stops = [next((i for i, id in enumerate(row) if id in ends), len(row)) for row in rows]
    return [(row[:stop], score) for row, stop, score in zip(rows, stops, scores, strict=True)]


def test_many_prompts_at_once_give_what_they_give_one_by_one(pair: Pair) -> None:
    reasons, reached = set(), set()
    for settings in SETTINGS:
        found = generate(pair.ours, PROMPTS, settings, eos_token_id=pair.ends)
        for prompt, ours in zip(PROMPTS, found, strict=True):
            expected = written(pair, prompt, settings)
            assert [list(one.tokens) for one in ours] == [tokens for tokens, _ in expected]
            if settings.method == "beam":
                scores = [score for _, score in expected]
                assert [one.score for one in ours] == pytest.approx(scores, rel=1e-4, abs=1e-4)
            reasons |= {one.finish_reason for one in ours}
            reached |= {one.eos_token_id for one in ours}
    assert reasons == {"end", "length"}
    assert reached <= {None, *pair.ends}


def test_beams_of_a_model_with_three_end_tokens(tmp_path: Path) -> None:
    """The running beams are as many as without them."""
    torch.manual_seed(45)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.LlamaConfig(vocab_size=12, **sizes, initializer_range=1.0)
    reference = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        head = reference.lm_head.weight
        head[2:5] = 1.5 * head[2] * torch.tensor([[1.0], [1.01], [0.99]])
    reference.save_pretrained(tmp_path)
    settings = GenerationConfig(max_new_tokens=8, method="beam", beams=2, n=2)
    pair = Pair(reference, read_network(tmp_path).eval(), [2, 3, 4])
    [found] = generate(pair.ours, [[1, 5, 6, 7]], settings, eos_token_id=pair.ends)
    expected = written(pair, [1, 5, 6, 7], settings)
    assert [list(one.tokens) for one in found] == [tokens for tokens, _ in expected]


# --- filters

FILTERS: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "temperature": (TemperatureLogitsWarper(0.7), lambda scores, _: apply_temperature(scores, 0.7)),
    "top-k": (TopKLogitsWarper(5), lambda scores, _: keep_top_k(scores, 5)),
    "top-k of few": (TopKLogitsWarper(500), lambda scores, _: keep_top_k(scores, 500)),
    "top-p": (TopPLogitsWarper(0.8), lambda scores, _: keep_top_p(scores, 0.8)),
    "top-p of one": (TopPLogitsWarper(0.01), lambda scores, _: keep_top_p(scores, 0.01)),
    "min-p": (MinPLogitsWarper(0.1), lambda scores, _: keep_min_p(scores, 0.1)),
    "min-p of one": (MinPLogitsWarper(1.0), lambda scores, _: keep_min_p(scores, 1.0)),
    "repetition": (
        RepetitionPenaltyLogitsProcessor(1.4),
        lambda s, past: apply_repetition_penalty(s, past, 1.4),
    ),
    **{
        f"{n}-grams": (
            NoRepeatNGramLogitsProcessor(n),
            lambda scores, past, n=n: block_repeated_ngrams(scores, past, n),
        )
        for n in (1, 2, 3, 4, 40)
    },
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_does_what_theirs_does(name: str) -> None:
    """On drawn scores, some of them equal, and on histories that repeat themselves."""
    theirs, ours = FILTERS[name]
    generator = torch.Generator().manual_seed(4)
    scores = (3 * torch.randn(16, 40, generator=generator)).round(decimals=1)
    histories = torch.randint(0, 3, (16, 25), generator=generator)
    found = ours(scores, histories)
    torch.testing.assert_close(found, theirs(histories, scores.clone()), rtol=0, atol=0)
    if name not in ("top-k of few", "40-grams"):
        assert not torch.equal(found, scores)


@pytest.mark.parametrize("scale", [1, 8])  # a nucleus of thousands of tokens, and of a few
def test_the_nucleus_of_a_large_vocabulary_is_theirs(scale: int) -> None:
    scores = scale * torch.randn(4, 6000, generator=torch.Generator().manual_seed(6))
    expected = TopPLogitsWarper(0.8)(torch.zeros(4, 1), scores.clone())
    torch.testing.assert_close(keep_top_p(scores, 0.8), expected, rtol=0, atol=0)
    each = torch.tensor([[0.8], [0.5], [0.8], [0.9]])
    torch.testing.assert_close(keep_top_p(scores, each)[::2], expected[::2], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["repetition", "1-grams", "2-grams", "3-grams"])
def test_texts_of_unequal_length_have_histories_of_their_own(name: str) -> None:
    theirs, ours = FILTERS[name]
    generator = torch.Generator().manual_seed(5)
    scores, lengths = torch.randn(5, 12, generator=generator), [1, 2, 9, 4, 14]
    past = [torch.randint(0, 4, (length,), generator=generator) for length in lengths]
    padded = torch.full((5, 14), HISTORY_PAD)
    for row, own in zip(padded, past, strict=True):
        row[14 - len(own) :] = own
    each = [theirs(own[None], row[None].clone()) for own, row in zip(past, scores, strict=True)]
    torch.testing.assert_close(ours(scores, padded), torch.cat(each), rtol=0, atol=0)
