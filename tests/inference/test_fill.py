"""Filling blanks: how they are found and filled, in Python and on the command line."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from firth import Model, Tokenizer, load, train_tokenizer
from firth.inference.batching import batch_by_length
from firth.inference.infilling.blanks import (
    BlankedText,
    BlankFill,
    find_blanks,
    span_fill,
    token_fill,
)
from firth.inference.infilling.fill_methods import make_filler
from firth.inference.infilling.mask_filling import fill_batch, word_token
from firth.inference.infilling.span_filling import extract_fills
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.models.masks import Mask
from firth.utils.errors import MismatchError, UsageError
from tests.inference.conftest import KINDS, SAMPLE_FILE, SENTENCES, MakeModel, memorize

Verb = Any


@pytest.mark.parametrize(
    ("text", "own", "parts"),
    [
        ("The [MASK] ran.", "[MASK]", ("The ", " ran.")),
        ("The [MASK] ran.", "<mask>", ("The ", " ran.")),  # the mask of another family
        ("___ ran to ____", "[MASK]", ("", " ran to ", "")),
        ("<extra_id_4><extra_id_0>", "[MASK]", ("", "", "")),
        ("snake_case __init__ [MASK]", "[MASK]", ("snake_case __init__ ", "")),
    ],
)
def test_blanks_are_found(text: str, own: str, parts: tuple[str, ...]) -> None:
    assert find_blanks(text, own) == BlankedText(parts)


@pytest.mark.parametrize(
    ("parts", "piece", "text"),
    [
        (("The dog", " ran"), BlankFill("s", joins_before=True), "The dogs ran"),
        (("un", " ran"), BlankFill("dog"), "un dog ran"),
        (('"', '"'), BlankFill("dog"), '"dog"'),
        (("", " ran"), BlankFill("dog", joins_before=True), "dog ran"),
        (("The ", " s"), BlankFill("dog", joins_after=True), "The dogs"),
        (("The ", " dog"), BlankFill(""), "The dog"),
        (("d", "g"), BlankFill("o", starts_word=False), "dog"),
    ],
)
def test_fills_join_the_text(parts: tuple[str, str], piece: BlankFill, text: str) -> None:
    assert BlankedText(parts).filled([piece]) == text


SENTENCE = "The old dogs barked, and Ada walked home unhurriedly."


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_can_be_filled_back_in(kind: str, kinds: dict[str, Tokenizer]) -> None:
    tokenizer = kinds[kind]
    made = tokenizer.backend.encode(SENTENCE, add_special_tokens=False)
    assert len(made.ids) > 10
    spaces = {"Ġ", "▁"}  # that are tokens of their own: then letters know nothing of a space
    for i, (id, (begin, end)) in enumerate(zip(made.ids, made.offsets, strict=True)):
        if kind != "char" and spaces & set(made.tokens[max(0, i - 1) : i + 1]):
            continue
        # As a person would write it: a blank stands for letters, the space before it stays.
        letters = SENTENCE[begin:end] if kind == "char" else SENTENCE[begin:end].lstrip()
        blanks = BlankedText((SENTENCE[: end - len(letters)], SENTENCE[end:]))
        assert blanks.filled([token_fill(tokenizer, id)]) == SENTENCE


@pytest.mark.parametrize("kind", ["wordpiece", "bpe-word", "char"])
def test_fills_keep_the_spacing_of_the_blank(kind: str, kinds: dict[str, Tokenizer]) -> None:
    """In these kinds a full stop does not determine the space before it: the text does."""
    (id,) = kinds[kind].encode(".")
    for text in ("Is it [MASK]?", "Is it[MASK]?", "[MASK] it"):
        filled = find_blanks(text).filled([token_fill(kinds[kind], id)])
        assert filled == text.replace("[MASK]", ".")


def test_a_span_can_be_filled_back_in(kinds: dict[str, Tokenizer]) -> None:
    for kind in ("wordpiece", "bpe", "unigram"):
        tokenizer = kinds[kind]
        begin, end = SENTENCE.index("dogs"), SENTENCE.index(", and")
        before, through = (len(tokenizer.encode(SENTENCE[:at])) for at in (begin - 1, end))
        piece = span_fill(tokenizer, tokenizer.encode(SENTENCE)[before:through])
        assert BlankedText((SENTENCE[:begin], SENTENCE[end:])).filled([piece]) == SENTENCE


# ---- encoders


def shares(model: Model, ids: list[int], place: int) -> torch.Tensor:
    with torch.no_grad():
        hidden = model.network(torch.tensor(ids), Mask([len(ids)]))
        return model.network.logits(hidden[[place]]).softmax(-1)[0]


def test_joint_fills_equal_exhaustive_search(make_model: MakeModel) -> None:
    """With as many beams as tokens the search is exhaustive for two blanks."""
    model = make_model("bert-tiny")
    tokenizer = model.require_tokenizer()
    text = "The [MASK] saw [MASK]."
    found = model.fill_texts([text], top=len(tokenizer))[0]
    ids = tokenizer.encode(text, specials=True)
    first, second = (i for i, id in enumerate(ids) if id == tokenizer.special_ids["mask"])
    one = shares(model, ids, first)
    best, chosen = 0.0, (0, 0)
    for id in range(len(tokenizer)):
        row = [*ids[:first], id, *ids[first + 1 :]]
        two = shares(model, row, second)
        if float(one[id] * two.max()) > best:
            best, chosen = float(one[id] * two.max()), (id, int(two.argmax()))
    assert found.sentences[0].score == pytest.approx(best, rel=1e-4)
    names = [tokenizer.decode([id]).strip() for id in chosen]
    assert found.sentences[0].tokens == names
    assert [whole.score for whole in found.sentences] == sorted(
        (whole.score for whole in found.sentences), reverse=True
    )
    # Each blank by itself: the other stays blank, and all tokens together are certain.
    assert sum(guess.score for guess in found.blanks[0]) == pytest.approx(1.0, abs=1e-4)
    assert found.blanks[0][0].score == pytest.approx(float(one.max()), rel=1e-4)
    assert found.blanks[0][0].text.endswith(" saw [MASK].")


def test_fills_do_not_depend_on_the_batch(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    texts = ["The [MASK] ran.", "[MASK]", "A [MASK] and a [MASK] and one more [MASK] ran away."] * 3
    together = model.fill_texts(texts, top=3)
    for text, own in zip(texts, together, strict=True):
        alone = model.fill_texts([text], top=3)[0]
        assert [[g.token for g in blank] for blank in own.blanks] == [
            [g.token for g in blank] for blank in alone.blanks
        ]
        flat = [guess.score for blank in own.blanks for guess in blank]
        assert flat == pytest.approx([g.score for blank in alone.blanks for g in blank], rel=1e-4)
        assert [whole.text for whole in own.sentences] == [whole.text for whole in alone.sentences]


def test_small_chunks_of_logits_change_nothing(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = make_model("bert-tiny"), "[MASK] and [MASK] saw [MASK]."
    usual = model.fill(text, top=2)
    monkeypatch.setattr("firth.inference.infilling.mask_filling.MAX_LOGITS", 1)
    one_row = partial(batch_by_length, max_tokens=1)
    monkeypatch.setattr("firth.inference.infilling.mask_filling.batch_by_length", one_row)
    assert [[g.token for g in blank] for blank in model.fill(text, top=2)] == [
        [g.token for g in blank] for blank in usual
    ]


def test_targets(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    tokenizer = model.require_tokenizer()
    everything = {g.token: g.score for g in model.fill("The ___ ran.", top=len(tokenizer))[0]}
    chosen = model.fill("The ___ ran.", targets=["the", "and"])[0]
    assert {g.token: g.score for g in chosen} == pytest.approx(
        {word: everything[word] for word in ("the", "and")}, rel=1e-5
    )
    with pytest.raises(UsageError, match=r"'unhurriedly' is \d+ tokens .*\(un"):
        model.fill("The ___ ran.", targets=["unhurriedly"])
    with pytest.raises(UsageError, match=r"'☃'.*vocabulary"):
        model.fill("The ___ ran.", targets=["☃"])


def test_a_word_has_another_token_at_the_beginning(kinds: dict[str, Tokenizer]) -> None:
    """In byte-level BPE, `in` and `Ġin` are different tokens."""
    tokenizer = kinds["bpe"]
    ids = [word_token(tokenizer, "in", spaced=spaced) for spaced in (True, False)]
    assert [tokenizer.backend.id_to_token(id) for id in ids] == ["Ġin", "in"]


def test_models_that_cannot_fill(make_model: MakeModel) -> None:
    cases = [
        (make_model("decoder-tiny"), "decoder.*hybrid"),
        (make_model("electra-small"), "no language head"),
        (make_model("bert-tiny", "bpe"), "no mask token"),
        (make_model("t5-small", "bpe"), "neither sentinels .* nor a mask token"),
    ]
    for model, sentence in cases:
        with pytest.raises(MismatchError, match=sentence):
            model.fill("The [MASK] ran.")


# ---- decoders


def test_hybrid_decoder_predicts_at_the_position_before(make_model: MakeModel) -> None:
    model = make_model("decoder-tiny", bos_token_id=2, eos_token_id=3)
    model.objective = "hybrid"
    tokenizer = model.require_tokenizer()
    found = model.fill("The [MASK] ran.", top=3)[0]
    ids = [2, *tokenizer.encode("The [MASK] ran."), 3]
    place = ids.index(tokenizer.special_ids["mask"])
    best = shares(model, ids, place - 1).topk(3)
    assert [guess.score for guess in found] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [guess.token for guess in found] == [
        tokenizer.decode([id]).strip() for id in best.indices.tolist()
    ]
    bare = make_model("decoder-tiny", bos_token_id=None, eos_token_id=None)
    bare.objective = "hybrid"
    with pytest.raises(UsageError, match="blank at the beginning"):
        bare.fill("[MASK] ran.")


def test_the_objective_of_a_run_determines_the_method(
    tmp_path: Path, sample: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizers["wordpiece"].save(tmp_path / "tokenizer")
    shards = tmp_path / "shards"
    options: dict[str, Any] = dict(tokenizer=tmp_path / "tokenizer", workers=1, valid_fraction=0)
    prepare([sample], out=shards, **options)
    small: dict[str, Any] = {"model.hidden_size": 32, "model.num_heads": 2, "model.ffn_size": 48}
    small |= {"max_length": "32", "batch_tokens": "128", "precision": "fp32"}
    for objective in ("hybrid", "causal"):
        out = tmp_path / objective
        given = dict(preset="decoder-tiny", objective=objective, steps=2, overrides=small)
        made = pretrain(data=shards, out=out, **given)
        for model in (made.model, load(out)):
            assert model.objective == objective
            if objective == "hybrid":
                assert len(model.fill("The [MASK] ran.", top=4)[0]) == 4
            else:
                with pytest.raises(MismatchError, match="hybrid"):
                    model.fill("The [MASK] ran.")


# ---- encoder-decoders


@pytest.fixture(scope="module")
def with_sentinels() -> Tokenizer:
    options: dict[str, Any] = dict(kind="wordpiece", vocab_size=400, sentinels=6, workers=1)
    return train_tokenizer([SAMPLE_FILE], **options)[0]


def writer(make_model: MakeModel, tokenizer: Tokenizer, name: str = "t5-small") -> Model:
    ids = tokenizer.special_ids
    roles = dict(decoder_start_token_id=ids["pad"], eos_token_id=ids["sep"])
    roles["pad_token_id"] = ids["pad"]
    made = make_model(name, vocab_size=len(tokenizer), num_decoder_layers=2, **roles)
    return Model(made.network, tokenizer)


def test_spans_for_several_blanks(make_model: MakeModel, with_sentinels: Tokenizer) -> None:
    model = writer(make_model, with_sentinels)
    found = model.fill_texts(["The [MASK] saw the dog.", "The ___ saw the ___ ."], top=4)
    assert len(found[0].blanks) == 1
    two = found[1]
    assert len(two.blanks) == 2
    assert 1 <= len(two.sentences) <= 4
    for blank, guesses in enumerate(two.blanks):
        for guess in guesses:  # all whole fillings with the same text in a blank count for it
            same = [w.score for w in two.sentences if w.tokens[blank] == guess.token]
            assert guess.score >= sum(same) - 1e-12
    assert all(text.startswith("The") for text in (whole.text for whole in two.sentences))
    with pytest.raises(UsageError, match=r"6 blanks.*5"):
        model.fill("___ " * 6)
    with pytest.raises(UsageError, match="one blank only"):
        model.fill("___ saw ___", targets=["the"])


def test_methods_of_encoder_decoders(
    make_model: MakeModel, with_sentinels: Tokenizer, tokenizers: dict[str, Tokenizer]
) -> None:
    network = writer(make_model, with_sentinels).network
    ways = {
        objective: make_filler(network, with_sentinels, objective=objective).method
        for objective in (None, "span-corruption", "infilling")
    }
    assert ways == {None: "spans", "span-corruption": "spans", "infilling": "whole"}
    bart = make_model("bart-base")
    assert make_filler(bart.network, tokenizers["wordpiece"]).method == "whole"


def test_a_language_model_with_an_encoder_cannot_fill(
    make_model: MakeModel, with_sentinels: Tokenizer
) -> None:
    network = writer(make_model, with_sentinels).network
    with pytest.raises(MismatchError, match=r"prefix-seq2seq.*firth generate"):
        make_filler(network, with_sentinels, objective="prefix-seq2seq")


@pytest.mark.parametrize("objective", ["causal-denoising", "prefix-denoising"])
def test_spans_of_a_decoder(
    objective: str, make_model: MakeModel, with_sentinels: Tokenizer
) -> None:
    """The probability of a span and both of its ends, after the corrupted text."""
    ids, bidirectional = with_sentinels.special_ids, objective == "prefix-denoising"
    roles = dict(eos_token_id=ids["sep"], prefix_lm=bidirectional)
    made = make_model("gpt2", vocab_size=len(with_sentinels), **roles)
    model = Model(made.network, with_sentinels, objective=objective)
    (guesses,) = model.fill("The ___ ran.", targets=["dog", "old dog"])
    first, second, *_ = with_sentinels.sentinel_ids
    source = [*with_sentinels.encode("The <extra_id_0> ran."), ids["sep"]]
    for guess in guesses:
        total, span = 0.0, with_sentinels.encode(guess.token)
        for end in (second, ids["sep"]):
            target = [first, *span, end]
            tokens = torch.tensor([*source, *target[:-1]])
            mask = Mask([len(tokens)], prefix=[len(source) if bidirectional else 0])
            with torch.no_grad():
                logs = made.network.logits(made.network(tokens, mask)).log_softmax(-1)
            rows = range(len(source) - 1, len(tokens))
            total += float(logs[rows, target].sum().exp())
        assert guess.score == pytest.approx(total, rel=1e-3)
    two = model.fill_texts(["The ___ saw the ___ ."], top=3)[0]
    assert len(two.blanks) == 2
    with pytest.raises(UsageError, match="context is 46"):
        model.fill("dog " * 60 + "___")


def test_fills_of_a_regenerated_text(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    blanks = find_blanks("The [MASK] ran to the [MASK].")
    assert extract_fills(blanks, tokenizer, "The old dog ran to the river .") == [
        "old dog",
        "river",
    ]
    assert extract_fills(blanks, tokenizer, "The ran to the river.") == ["", "river"]
    assert extract_fills(blanks, tokenizer, "A dog ran to the river.") is None


def test_targets_in_a_regenerated_text(
    make_model: MakeModel, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizers["wordpiece"]
    model = writer(make_model, tokenizer, "bart-base")
    (guesses,) = model.fill("The [MASK] ran.", targets=["dog", "old dog"])
    source = torch.tensor(tokenizer.encode("The [MASK] ran.", specials=True))
    for guess in guesses:
        target = tokenizer.encode(f"The {guess.token} ran.", specials=True)
        written = torch.tensor([tokenizer.special_ids["pad"], *target[:-1]])
        mask = Mask([len(source)])
        with torch.no_grad():
            memory = model.network.encode(source, mask)
            causal = Mask.causal([len(written)])
            hidden = model.network(written, causal, memory=memory, memory_mask=mask)
            logs = model.network.logits(hidden).log_softmax(-1)
        by_hand = float(logs[range(len(target)), target].sum().exp())
        assert guess.score == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("objective", ["infilling", "span-corruption"])
def test_memorized_sentences_are_filled_correctly(objective: str, tmp_path: Path) -> None:
    """The objective of a run determines how it fills blanks."""
    draw = random.Random(0)
    passages = [" ".join(draw.sample(SENTENCES, 4)) for _ in range(400)]
    text = SENTENCES * 40 if objective == "infilling" else passages
    model = load(memorize(text, tmp_path, "seq2seq-tiny", 800, objective))
    blanks = {
        "The ___ barked at the mailman.": "dog",
        "The girl walked ___ from school.": "home",
        "The boy ___ the small boat.": "played with",
    }
    for blank, right in blanks.items():
        (targets,) = model.fill(blank, targets=list(blanks.values()))
        assert targets[0].token == right, targets
        (guesses,) = model.fill(blank, top=3)
        assert any(guess.token.startswith(right) for guess in guesses), guesses


# ---- the command line


def test_the_verb(bert: Path, verb: Verb) -> None:
    found = json.loads(verb("fill", bert, "The [MASK] ran.", "--json", "--top", 3).stdout)
    assert [guess.keys() for guess in found["predictions"]] == [{"token", "score", "text"}] * 3
    guess = found["predictions"][0]
    assert guess["text"].startswith("The")
    several = json.loads(verb("fill", bert, "[MASK] saw the dog and [MASK].", "--json").stdout)
    assert [len(guesses) for guesses in several["predictions"]] == [5, 5]
    assert [len(whole["tokens"]) for whole in several["sentences"]] == [2] * 5
    shown = verb("fill", bert, "The [MASK] ran.").stdout
    assert guess["token"] in shown
    assert " %" in shown
    assert "sentence" in verb("fill", bert, "The [MASK] saw [MASK].").stdout
    chosen = json.loads(
        verb("fill", bert, "The ___ ran.", "--targets", "the, and", "--json").stdout
    )
    assert {guess["token"] for guess in chosen["predictions"]} == {"the", "and"}


def test_blanks_of_two_notations_are_refused(bert: Path, verb: Verb, tmp_path: Path) -> None:
    refused = verb("fill", bert, "The [MASK] saw ___.")
    assert refused.exit_code == 2
    assert all(mark in refused.stderr for mark in ("[MASK]", "___"))
    (tmp_path / "texts.txt").write_text("<mask> ran.\n<mask> and <extra_id_0>\n\u200b\u2060\n")
    done = verb("fill", bert, "--file", "texts.txt", "--json")
    assert [row is None for row in json.loads(done.stdout)["results"]] == [False, True, True]
    assert "texts.txt line 2" in done.stderr
    assert "texts.txt line 3" in done.stderr


def test_a_file_of_texts(bert: Path, verb: Verb, tmp_path: Path) -> None:
    """Bad rows are reported, the others are filled, and output lines match input lines."""
    file = tmp_path / "texts.txt"
    file.write_bytes(b"The [MASK] ran.\nno blank\n\n\xff [MASK]\n[MASK] saw [MASK].\n")
    done = verb("fill", bert, "--file", file, "--out", "filled.jsonl")
    assert done.exit_code == 0
    errors = done.stderr.splitlines()
    assert [f"{file} line {i}" in error for i, error in enumerate(errors[:3], 2)] == [True] * 3
    assert "[MASK]" in errors[0]
    assert "empty" in errors[1]
    assert "byte 26" in errors[2]
    assert errors[3].startswith("3 rows")
    lines = [json.loads(line) for line in Path("filled.jsonl").read_text().splitlines()]
    assert [line is None for line in lines] == [False, True, True, True, False]
    assert (
        verb("fill", bert, "--file", file, "--out", "-").stdout == Path("filled.jsonl").read_text()
    )
    plain = verb("fill", bert, "--file", file).stdout.split("\n")
    assert plain[0] == lines[0]["predictions"][0]["text"]
    assert plain[1:4] == ["", "", ""]
    assert plain[4] == lines[4]["sentences"][0]["text"]
    said = json.loads(verb("fill", bert, "--file", file, "--json").stdout)
    assert said == {"results": lines, "bad": 3, "notes": errors}


def test_a_table_of_texts(bert: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("id\tcloze\n1\tThe ___ ran.\n", encoding="utf-8")
    done = verb("fill", bert, "--file", "texts.tsv", "--column", "cloze", "--json")
    assert json.loads(done.stdout)["results"][0]["text"] == "The ___ ran."
    assert "gone.txt" in verb("fill", bert, "--file", "gone.txt").stderr
    wrong = verb("fill", bert, "--file", "texts.tsv")
    assert wrong.exit_code == 1
    assert "texts.tsv line 1 has no column 'text' (it has 'id'," in wrong.stderr


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], ["TEXT", "--file"]),
        (["[MASK]", "--file", "x"], ["TEXT", "--file"]),
        (["[MASK]", "--out", "x.jsonl"], ["--out", "--file"]),
        (["[MASK]", "--targets", " , "], ["--targets"]),
        (["[MASK]", "--targets", "a", "--top", "3"], ["--targets", "--top"]),
        (["--file", "x", "--out", "a.csv"], ["--out", "a.jsonl"]),
        (["x", "--correct", "--top", "3"], ["--correct"]),
        (["no blank"], ["[MASK]", "___"]),
        (["[MASK] " * 70], ["72 tokens", "64 tokens"]),
    ],
)
def test_invalid_options(words: list[str], facts: list[str], bert: Path, verb: Verb) -> None:
    done = verb("fill", bert, *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("firth: ")
    assert all(fact in done.stderr for fact in facts)


def test_nothing_to_do(make_model: MakeModel) -> None:
    assert fill_batch(make_model("bert-tiny").blank_filler(), []) == []
