"""How likely answers are: against `transformers`, one answer and one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from firth import Model, train_tokenizer
from firth.inference import answering, rows
from firth.inference.answering import Question, choose, put, write
from firth.inference.candidates import CONTENT_FREE, Speaker
from firth.inference.completions import Teller
from firth.inference.prompt import make_wording
from firth.inference.rows import Asked
from firth.models.masks import Mask
from tests.conftest import SAMPLE
from tests.inference.conftest import MakeModel

WORDS = ("boat", "far away", "the sea was calm")  # of one and of several tokens
SHOTS = (({"text": "The sea was calm."}, "boat"), ({"text": "It rained."}, "far away"))
GPT = dict(name="gpt2", tokenizer="bpe", context=128, begin_id=1, end_id=2)
T5 = dict(padding_id=0, end_id=1, start_id=3)


def theirs(model: Model, path: Path, kind: str) -> tuple[Any, Any]:
    """The same network and tokenizer, as `transformers` opens them."""
    model.save(path)
    network = getattr(transformers, kind).from_pretrained(path).eval()
    return network, transformers.AutoTokenizer.from_pretrained(path)


def speaker(model: Model, *, cloze: bool = False) -> Speaker:
    assert model.tokenizer is not None
    return Speaker(model.network, model.tokenizer, cloze=cloze)


def asked(texts: Sequence[str], shots: int = 2) -> list[Question]:
    return [Question({"text": text}, SHOTS[:shots], WORDS) for text in texts]


@torch.no_grad()
def log_probability(logits: torch.Tensor, id: int) -> float:
    return float(logits.double().log_softmax(-1)[id])


def test_a_decoder_is_asked_how_it_goes_on(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(**GPT)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForCausalLM")
    wording = make_wording("classify", r"Text: {text}\nLabel: {label}.")
    texts = ["The boat was far.", "calm", "Ünïcode!"]
    for text, said in zip(texts, choose(speaker(model), wording, asked(texts)), strict=True):
        before = (
            "Text: The sea was calm.\nLabel: boat.\n\nText: It rained.\nLabel: far away.\n\n"
            f"Text: {text}\nLabel:"
        )
        assert said.put.before == before + " "
        for word, total in zip(WORDS, said.sums, strict=True):
            ids = [1, *tokenizer(before, add_special_tokens=False).input_ids]
            hand = 0.0
            for id in tokenizer(f" {word}", add_special_tokens=False).input_ids:
                hand += log_probability(reference(torch.tensor([ids])).logits[0, -1], id)
                ids.append(id)
            assert total == pytest.approx(hand, abs=1e-4)


def test_a_blank_is_filled_with_all_tokens_of_a_word_at_once(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model("bert-tiny", context=128)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForMaskedLM")
    wording = make_wording("classify", cloze=True)
    texts = ["The boat was far.", "calm"]
    found = choose(speaker(model, cloze=True), wording, asked(texts, shots=1), by_mean=True)
    for text, said in zip(texts, found, strict=True):
        means = []
        for word in WORDS:
            ids = tokenizer(word, add_special_tokens=False).input_ids
            blanks = " ".join(["[MASK]"] * len(ids))
            read = tokenizer(f"The sea was calm. It was boat.\n{text} It was {blanks}.")
            logits = reference(**{k: torch.tensor([v]) for k, v in read.items()}).logits[0]
            places = [i for i, id in enumerate(read.input_ids) if id == tokenizer.mask_token_id]
            pairs = zip(places, ids, strict=True)
            means.append(np.mean([log_probability(logits[place], id) for place, id in pairs]))
        shares = np.exp(means) / np.exp(means).sum()
        assert np.exp(said.logs) == pytest.approx(shares, abs=1e-5)


def test_an_encoder_decoder_writes_what_it_was_asked(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("t5-small", **T5)
    reference, _ = theirs(model, tmp_path, "T5ForConditionalGeneration")
    assert model.tokenizer is not None
    wording = make_wording("classify", "{text} => {label}")
    said = next(choose(speaker(model), wording, asked(["The boat."])))
    source = [*model.tokenizer.encode(said.put.before.rstrip()), 1]
    for word, total in zip(WORDS, said.sums, strict=True):
        written, hand = [3], 0.0
        for id in model.tokenizer.encode(word):
            given = dict(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written])
            )
            hand += log_probability(reference(**given).logits[0, -1], id)
            written.append(id)
        assert total == pytest.approx(hand, abs=1e-4)


def test_bart_reads_and_writes_between_its_tokens(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bart-base", start_id=3, end_id=3, begin_id=2, padding_id=0)
    reference, tokenizer = theirs(model, tmp_path, "BartForConditionalGeneration")
    wording = make_wording("classify", "{text} => {label}")
    said = next(choose(speaker(model), wording, asked(["The boat."], shots=0)))
    read = tokenizer("The boat. =>", return_tensors="pt").input_ids
    assert read[0, [0, -1]].tolist() == [2, 3]
    for word, total in zip(WORDS, said.sums, strict=True):
        written, hand = [3, 2], 0.0
        for id in tokenizer(word, add_special_tokens=False).input_ids:
            given = dict(input_ids=read, decoder_input_ids=torch.tensor([written]))
            hand += log_probability(reference(**given).logits[0, -1], id)
            written.append(id)
        assert total == pytest.approx(hand, abs=1e-4)


@torch.no_grad()
def test_a_decoder_that_learned_to_fill_blanks_is_asked_one_place_before(
    make_model: MakeModel,
) -> None:
    model = make_model("gpt2", context=64, begin_id=2, end_id=3)
    assert model.tokenizer is not None
    wording = make_wording("classify", "{text} It was [MASK] today.")
    said = next(choose(speaker(model, cloze=True), wording, asked(["The boat."], shots=0)))
    for word, total in zip(WORDS, said.sums, strict=True):
        left, right = (model.tokenizer.encode(text) for text in ("The boat. It was", "today."))
        ids = model.tokenizer.encode(word)
        blanks = [model.tokenizer.special_ids["mask"]] * len(ids)
        row = torch.tensor([2, *left, *blanks, *right, 3])
        logits = model.network.logits(model.network(row, Mask([len(row)])))  # it sees both ways
        hand = sum(log_probability(logits[len(left) + i], id) for i, id in enumerate(ids))
        assert total == pytest.approx(hand, abs=1e-4)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer with T5's sentinels."""
    file = tmp_path_factory.mktemp("text") / "sample.txt"
    file.write_text(SAMPLE, encoding="utf-8")
    options: dict[str, Any] = dict(vocab_size=300, specials="t5", sentinels=4, workers=1)
    return train_tokenizer([file], kind="unigram", **options)[0]


def test_a_blank_is_a_sentinel_to_t5(make_model: MakeModel, tmp_path: Path, filler: Any) -> None:
    model = make_model("t5-small", padding_id=0, end_id=1, start_id=0)
    model.tokenizer = filler
    reference, _ = theirs(model, tmp_path, "T5ForConditionalGeneration")
    wording = make_wording("classify", "{text} It was [MASK] today.")
    said = next(choose(speaker(model), wording, asked(["The boat."], shots=0)))
    hole = filler.backend.token_to_id("<extra_id_0>")
    source = [*filler.encode("The boat. It was"), hole, *filler.encode(" today."), 1]
    for word, total in zip(WORDS, said.sums, strict=True):
        written, hand = [0, hole], 0.0
        for id in filler.encode(word):
            given = dict(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([written])
            )
            hand += log_probability(reference(**given).logits[0, -1], id)
            written.append(id)
        assert total == pytest.approx(hand, abs=1e-4)


def test_calibration_by_hand(make_model: MakeModel) -> None:
    """Zhao et al. 2021: shares are divided by their mean over texts that say nothing."""
    model = make_model(**GPT)
    wording = make_wording("classify", "{text} => {label}")
    plain, calibrated = (
        next(choose(speaker(model), wording, asked(["The boat."]), calibrate=yes))
        for yes in (False, True)
    )
    free = choose(speaker(model), wording, asked(CONTENT_FREE))
    usual = np.mean([np.exp(said.logs) for said in free], axis=0)
    hand = np.exp(plain.logs) / usual
    assert np.exp(calibrated.logs) == pytest.approx(hand / hand.sum(), rel=1e-4)
    assert not np.allclose(calibrated.logs, plain.logs, atol=0.1)
    nothing = next(choose(speaker(model), wording, asked(["N/A"]), calibrate=True))
    assert nothing.put.before.endswith("N/A => ")


@pytest.mark.parametrize("calibrate", [False, True])
def test_neither_batches_nor_neighbours_make_a_difference(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, calibrate: bool
) -> None:
    model = make_model(**GPT)
    wording = make_wording("classify", "{text} => {label}")
    texts = [line for line in SAMPLE.splitlines() if line.strip()][:9]
    together = list(choose(speaker(model), wording, asked(texts), calibrate=calibrate))
    monkeypatch.setattr(answering, "AT_ONCE", 2)
    for text, said in zip(texts, together, strict=True):
        alone = next(choose(speaker(model), wording, asked([text]), calibrate=calibrate))
        assert said.logs == pytest.approx(alone.logs, abs=1e-4)
    again = choose(speaker(model), wording, asked(texts), calibrate=calibrate)
    for said, other in zip(together, again, strict=True):
        assert said.logs == pytest.approx(other.logs, abs=1e-4)


def test_examples_that_all_questions_share_are_read_once(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And give what they give when each prompt is read whole."""
    texts = [" ".join(line.split()[:4]) for line in SAMPLE.splitlines() if line.strip()][:9]
    wording = make_wording("classify", "{text} => {label}")
    seen: list[int] = []
    for changes in ({}, dict(positions="rotary", window=4, windowed=(1,))):
        model = make_model(**{**GPT, **changes})
        model.network.tokens.register_forward_hook(lambda _, given, out: seen.append(len(out)))
        once = [said.logs for said in choose(speaker(model), wording, asked(texts))]
        read, seen[:] = sum(seen), []
        with monkeypatch.context() as patch:
            patch.setattr(rows, "ALIKE", 10**9)
            whole = [said.logs for said in choose(speaker(model), wording, asked(texts))]
        assert read < 0.8 * sum(seen)
        seen.clear()
        np.testing.assert_allclose(once, whole, atol=1e-4)


@pytest.mark.parametrize(("name", "cloze"), [("gpt2", False), ("bert-tiny", True), ("t5-small", 0)])
def test_the_first_examples_go_where_there_is_no_room(
    make_model: MakeModel, name: str, cloze: bool
) -> None:
    kinds = {"gpt2": GPT, "bert-tiny": {}, "t5-small": T5}
    model = make_model(**{**kinds[name], "name": name, "context": 40})
    who, wording = speaker(model, cloze=bool(cloze)), make_wording("classify", "{text}: {label}")
    many = Question({"text": "The end."}, SHOTS * 30, WORDS)
    own = put(who, wording, many)
    assert 0 < own.dropped < 60
    assert own.shots == many.shots[own.dropped :]
    assert who.size(own.before, own.after, WORDS) <= 40
    one_more = wording.prompt(many.shots[own.dropped - 1 :], many.values)
    assert who.size(*one_more, WORDS) > 40
    long = Question({"text": "far " * 300}, SHOTS, WORDS)
    assert put(who, wording, long).cut
    read: list[Asked] = [who.ask(own.before, own.after, word) for word in WORDS]
    cut = put(who, wording, long)
    read += [who.ask(cut.before, cut.after, word) for word in WORDS]
    assert all(len(row.row) <= 40 and len(row.source) <= 40 for row in read)
    assert all(np.isfinite(said.logs).all() for said in choose(who, wording, [many, long]))


def test_answers_are_written_as_transformers_writes_them(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model(**GPT)
    reference, tokenizer = theirs(model, tmp_path, "AutoModelForCausalLM")
    wording = make_wording("seq2seq", "{source} => {target}")
    shots = (({"source": "boat"}, "sea"),)
    questions = [Question({"source": text}, shots) for text in ("far", "the calm sea", "The")]
    written = list(write(speaker(model), wording, questions, most=6))
    for question, said in zip(questions, written, strict=True):
        text = f"boat => sea\n{question.values['source']} =>"
        read = torch.tensor([[1, *tokenizer(text, add_special_tokens=False).input_ids]])
        made = reference.generate(read, max_new_tokens=6, do_sample=False)[0]
        text = tokenizer.decode(made[read.shape[1] :])
        assert said.text == text.split("\n")[0].strip()


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        GPT,
        GPT | {"begin_id": None},
        {"name": "t5-small", **T5},
        {"name": "bart-base", "padding_id": 0, "end_id": 2, "start_id": 2},
    ],
)
def test_what_is_scored_and_what_goes_on_are_framed_alike(
    changes: dict[str, Any], taught: bool, make_model: MakeModel
) -> None:
    model = make_model(**changes)
    assert model.tokenizer is not None
    own = Speaker(model.network, model.tokenizer, taught=taught)
    teller = Teller(network=model.network, tokenizer=model.tokenizer, taught=taught)
    row = own.ask("The sea", "", "boat")
    read = row.source or row.row[: len(row.row) - len(row.targets) + 1]
    assert teller.ask("The sea").ids == read
