"""Blanks are filled here as `transformers` fills them: the same tokens, the same probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors

from firth.formats.huggingface.directory import read_network
from firth.inference.infilling.fill_methods import BlankFiller, make_filler
from firth.inference.infilling.span_filling import (
    allowed_span_tokens,
    generate_fills,
    max_fill_tokens,
)
from firth.model import Model, load
from firth.tokenizers.tokenizer import SENTINEL, Tokenizer
from tests.parity.reference_models import VOCABULARY
from tests.parity.test_families import ROWS, Row

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# One row of each family that fills masks (a second one only tests the network once more).
FAMILIES = {row.name: row for row in reversed(ROWS) if row.name.endswith("MaskedLM")}
TEXTS = ["the dog [MASK] loudly .", "[MASK] cat sat on a [MASK] , [MASK] the dog"]
WORDS = "the a dog cat sat on loudly barked . , and old ##s ##ed".split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_tokenizer(sentinels: int = 0) -> Tokenizer:
    """WordPiece with as many tokens as the networks of `test_families` have."""
    marks = [SENTINEL.format(i) for i in range(sentinels)]
    tokens = [*SPECIALS, *WORDS, *marks]
    tokens += [f"word{chr(97 + i)}" for i in range(VOCABULARY - len(tokens))]
    ids = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.add_special_tokens([*SPECIALS, *marks])
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS, strict=True)
    config = {f"{role}_token": token for role, token in roles}
    return Tokenizer(backend, {**config, "tokenizer_class": "PreTrainedTokenizerFast"})


def pipeline(row: Row, path: Path) -> Any:
    """Their pipeline for a network and a tokenizer, saved there."""
    row.reference().save_pretrained(path)
    make_tokenizer().save(path)
    return transformers.pipeline("fill-mask", model=str(path), device="cpu")


@pytest.mark.parametrize("row", FAMILIES.values(), ids=FAMILIES)
def test_every_family_fills_masks_as_their_pipeline(row: Row, tmp_path: Path) -> None:
    ask = pipeline(row, tmp_path)
    found = load(tmp_path).fill_texts(TEXTS, top=4)  # both texts in one call of the network
    for text, own in zip(TEXTS, found, strict=True):
        theirs = ask(text, top_k=4)
        lists = theirs if isinstance(theirs[0], list) else [theirs]
        assert len(lists) == len(own.blanks)
        for expected, guesses in zip(lists, own.blanks, strict=True):
            assert [guess["token_str"] for guess in expected] == [guess.token for guess in guesses]
            for guess, mine in zip(expected, guesses, strict=True):
                assert mine.score == pytest.approx(guess["score"], rel=1e-4)


def test_chosen_words_have_the_probabilities_of_their_pipeline(tmp_path: Path) -> None:
    ask = pipeline(FAMILIES["BertForMaskedLM"], tmp_path)
    theirs = {row["token_str"]: row["score"] for row in ask(TEXTS[0], targets=["cat", "old", "a"])}
    ours = {g.token: g.score for g in load(tmp_path).fill(TEXTS[0], targets=["cat", "old", "a"])[0]}
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert list(ours) == list(theirs)


# ---- encoder-decoders ---------------------------------------------------------------------------


def filler_of(row: Row, tokenizer: Tokenizer, path: Path) -> tuple[Any, BlankFiller]:
    """Their network, and ours with the same weights; [SEP] ends a text, [PAD] begins one."""
    reference = row.reference()
    ids = dict(pad_token_id=0, decoder_start_token_id=0, bos_token_id=2, eos_token_id=3)
    for config in (reference.config, reference.generation_config):
        for name, id in (ids | {"forced_eos_token_id": None}).items():
            setattr(config, name, id)
    reference.save_pretrained(path)
    model = Model(read_network(path).eval(), tokenizer)
    return reference, make_filler(model.network, tokenizer)


def generated(reference: Any, ids: tuple[int, ...], width: int, **options: Any) -> Any:
    """Their beam search with sums of log-probabilities."""
    return reference.generate(
        torch.tensor([ids]),
        num_beams=width,
        num_return_sequences=width,
        length_penalty=0.0,
        early_stopping=False,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def without_padding(row: list[int], sentinel: int = -1) -> tuple[int, ...]:
    """A row of theirs up to the end token, or with the last sentinel."""
    last = next((i for i, id in enumerate(row) if id in (3, sentinel)), len(row))
    return tuple(row[: last + (sentinel in row[last : last + 1])])


T5 = next(row for row in ROWS if row.name == "T5ForConditionalGeneration")
BART = next(row for row in ROWS if row.name == "BartForConditionalGeneration")


@pytest.mark.parametrize("text", ["the <extra_id_0> barked .", "a <extra_id_0> on <extra_id_1> ."])
def test_spans_are_those_of_their_beam_search(text: str, tmp_path: Path) -> None:
    """Under the same rule: sentinels in their order, text between them."""
    tokenizer, width = make_tokenizer(sentinels=8), 4
    reference, filler = filler_of(T5, tokenizer, tmp_path)
    question = filler.encode(text)
    blanks, (ours,) = len(question.blanks), generate_fills(filler, [question], width)
    allowed, last = allowed_span_tokens(filler, blanks), tokenizer.sentinel_ids[blanks]
    theirs = generated(
        reference,
        question.ids,
        width,
        prefix_allowed_tokens_fn=lambda _, written: (
            allowed(written[1:].tolist()).nonzero().flatten().tolist()
        ),
        max_new_tokens=max_fill_tokens(filler, question),
        eos_token_id=[3, last],
    )
    assert [found.tokens for found in ours] == [
        without_padding(row[1:].tolist(), last) for row in theirs.sequences
    ]
    assert [found.logprob for found in ours] == pytest.approx(
        theirs.sequences_scores.tolist(), rel=1e-4
    )


def test_a_text_is_written_anew_as_by_their_beam_search(tmp_path: Path) -> None:
    tokenizer, width = make_tokenizer(), 3
    reference, filler = filler_of(BART, tokenizer, tmp_path)
    assert filler.method == "whole"
    questions = [filler.encode(text) for text in ("the [MASK] barked .", "a cat sat on [MASK]")]
    found = generate_fills(filler, questions, width)
    for question, ours in zip(questions, found, strict=True):
        limit = max_fill_tokens(filler, question)
        theirs = generated(reference, question.ids, width, max_new_tokens=limit)
        expected = [without_padding(row[1:].tolist()) for row in theirs.sequences]
        assert [one.tokens for one in ours] == expected
        assert [one.logprob for one in ours] == pytest.approx(
            theirs.sequences_scores.tolist(), rel=1e-4
        )


@torch.no_grad()
def test_the_probability_of_a_span_by_hand(tmp_path: Path) -> None:
    """The product over its tokens, times the probability that it ends there, either way."""
    tokenizer = make_tokenizer(sentinels=8)
    reference, filler = filler_of(T5, tokenizer, tmp_path)
    model = Model(filler.network, tokenizer)
    (guesses,) = model.fill("the ___ barked .", targets=["old dog", "cat"])
    first, second = tokenizer.sentinel_ids[:2]
    source = torch.tensor([[*tokenizer.encode("the <extra_id_0> barked ."), 3]])
    for guess in guesses:
        span = tokenizer.encode(guess.token)
        written = torch.tensor([[0, first, *span]])
        logs = reference(input_ids=source, decoder_input_ids=written).logits[0].log_softmax(-1)
        inside = logs[range(len(span) + 1), [first, *span]].sum()
        ends = logs[-1, [second, 3]].exp().sum()
        assert guess.score == pytest.approx(float(inside.exp() * ends), rel=1e-4)
    assert {guess.text for guess in guesses} == {"the old dog barked .", "the cat barked ."}
