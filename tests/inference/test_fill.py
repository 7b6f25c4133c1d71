"""Blanks: found, filled and put back; one by one and together; in Python and as a verb."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from firth import Model, Tokenizer, load, train_tokenizer
from firth.errors import MismatchError, Misuse
from firth.inference.blanks import Blanks, Piece, find_blanks, span_piece, token_piece
from firth.inference.fill import fill_all
from firth.inference.filler import make_filler
from firth.inference.restore import aligned
from firth.models.masks import Mask
from firth.pretraining import pretrain
from firth.text.preparation import prepare
from tests.conftest import SAMPLE

from .conftest import MakeModel

Verb = Any


# ---- blanks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "own", "parts"),
    [
        ("The [MASK] ran.", "[MASK]", ("The ", " ran.")),
        ("The [MASK] ran.", "<mask>", ("The ", " ran.")),  # another family's mark will do
        ("The <mask> ran to ___.", "<mask>", ("The ", " ran to ___.")),  # its own comes first
        ("___ ran to ____", "[MASK]", ("", " ran to ", "")),
        ("<extra_id_4><extra_id_0>", "[MASK]", ("", "", "")),
        ("snake_case __init__ [MASK]", "[MASK]", ("snake_case __init__ ", "")),
    ],
)
def test_marks(text: str, own: str, parts: tuple[str, ...]) -> None:
    assert find_blanks(text, own) == Blanks(parts)


@pytest.mark.parametrize(
    ("parts", "piece", "text"),
    [
        (("The ", " ran"), Piece("dog"), "The dog ran"),
        (("The dog", " ran"), Piece("s", joins_before=True), "The dogs ran"),
        (("The dog ", "."), Piece("s", joins_before=True), "The dogs."),
        (("un", " ran"), Piece("dog"), "un dog ran"),
        (('"', '"'), Piece("dog"), '"dog"'),
        (("", " ran"), Piece("dog", joins_before=True), "dog ran"),
        (("The ", " s"), Piece("dog", joins_behind=True), "The dogs"),
        (("The ", " dog"), Piece(""), "The dog"),
        (("d", "g"), Piece("o", begins=False), "dog"),
    ],
)
def test_what_is_put_in_joins_the_text(parts: tuple[str, str], piece: Piece, text: str) -> None:
    assert Blanks(parts).filled([piece]) == text


SENTENCE = "The old dogs barked, and Ada walked home unhurriedly."
KINDS = {"wordpiece": "bert", "bpe": "roberta", "unigram": None, "bpe-word": None, "char": None}


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    file = tmp_path_factory.mktemp("text") / "sample.txt"
    file.write_text(SAMPLE + SENTENCE, encoding="utf-8")
    sizes = {"char": 40, "bpe-word": 200, "unigram": 200}
    return {
        kind: train_tokenizer(
            [file], kind=kind, specials=specials, vocab_size=sizes.get(kind, 330), workers=1
        )[0]
        for kind, specials in KINDS.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_put_back_where_it_stood_gives_the_text(
    kind: str, every_kind: dict[str, Tokenizer]
) -> None:
    tokenizer = every_kind[kind]
    made = tokenizer.backend.encode(SENTENCE, add_special_tokens=False)
    assert len(made.ids) > 10
    spaces = {"Ġ", "▁"}  # that are tokens of their own: then letters know nothing of a space
    for i, (id, (begin, end)) in enumerate(zip(made.ids, made.offsets, strict=True)):
        if kind != "char" and spaces & set(made.tokens[max(0, i - 1) : i + 1]):
            continue
        # As a person would write it: a blank stands for letters, the space before it stays.
        letters = SENTENCE[begin:end] if kind == "char" else SENTENCE[begin:end].lstrip()
        blanks = Blanks((SENTENCE[: end - len(letters)], SENTENCE[end:]))
        assert blanks.filled([token_piece(tokenizer, id)]) == SENTENCE


@pytest.mark.parametrize("kind", ["wordpiece", "bpe-word", "char"])
def test_a_mark_stands_where_the_blank_stood(kind: str, every_kind: dict[str, Tokenizer]) -> None:
    """In these kinds a full stop does not say whether a space stands before it: the writer does."""
    (id,) = every_kind[kind].encode(".")
    for text in ("Is it [MASK]?", "Is it[MASK]?", "[MASK] it"):
        filled = find_blanks(text).filled([token_piece(every_kind[kind], id)])
        assert filled == text.replace("[MASK]", ".")


def test_a_span_put_back(every_kind: dict[str, Tokenizer]) -> None:
    for kind in ("wordpiece", "bpe", "unigram"):
        tokenizer = every_kind[kind]
        begin, end = SENTENCE.index("dogs"), SENTENCE.index(", and")
        before, through = (len(tokenizer.encode(SENTENCE[:at])) for at in (begin - 1, end))
        piece = span_piece(tokenizer, tokenizer.encode(SENTENCE)[before:through])
        assert Blanks((SENTENCE[:begin], SENTENCE[end:])).filled([piece]) == SENTENCE


# ---- encoders -----------------------------------------------------------------------------------


def shares(model: Model, ids: list[int], place: int) -> torch.Tensor:
    with torch.no_grad():
        hidden = model.network(torch.tensor(ids), Mask([len(ids)]))
        return model.network.logits(hidden[[place]]).softmax(-1)[0]


def test_several_blanks_together_by_trying_all(make_model: MakeModel) -> None:
    """With as many beams as tokens the search is exhaustive for two blanks."""
    model = make_model("bert-tiny")
    tokenizer = model.tokenizer_needed()
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
    assert found.wholes[0].score == pytest.approx(best, rel=1e-4)
    names = [tokenizer.decode([id]).strip() for id in chosen]
    assert found.wholes[0].tokens == names
    assert [whole.score for whole in found.wholes] == sorted(
        (whole.score for whole in found.wholes), reverse=True
    )
    # Each blank by itself: the other stays blank, and all tokens together are certain.
    assert sum(guess.score for guess in found.blanks[0]) == pytest.approx(1.0, abs=1e-4)
    assert found.blanks[0][0].score == pytest.approx(float(one.max()), rel=1e-4)
    assert found.blanks[0][0].text.endswith(" saw [MASK].")


def test_many_texts_at_once_are_answered_as_alone(make_model: MakeModel) -> None:
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
        assert [whole.text for whole in own.wholes] == [whole.text for whole in alone.wholes]


def test_a_little_memory_for_scores_changes_nothing(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = make_model("bert-tiny"), "[MASK] and [MASK] saw [MASK]."
    usual = model.fill(text, top=2)
    monkeypatch.setattr("firth.inference.fill.SCORES", 1)
    monkeypatch.setattr("firth.inference.fill.TOKENS", 1)
    assert [[g.token for g in blank] for blank in model.fill(text, top=2)] == [
        [g.token for g in blank] for blank in usual
    ]


def test_chosen_words(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    tokenizer = model.tokenizer_needed()
    everything = {g.token: g.score for g in model.fill("The ___ ran.", top=len(tokenizer))[0]}
    chosen = model.fill("The ___ ran.", targets=["the", "and"])[0]
    assert {g.token: g.score for g in chosen} == pytest.approx(
        {word: everything[word] for word in ("the", "and")}, rel=1e-5
    )
    with pytest.raises(Misuse, match=r"'unhurriedly' is \d+ tokens to this model \(un"):
        model.fill("The ___ ran.", targets=["unhurriedly"])
    with pytest.raises(Misuse, match="'☃' is not in this model's vocabulary"):
        model.fill("The ___ ran.", targets=["☃"])


def test_a_word_has_another_token_at_the_beginning(every_kind: dict[str, Tokenizer]) -> None:
    """In byte-level BPE, `in` and `Ġin` are different tokens."""
    from firth.inference.fill import word_token

    tokenizer = every_kind["bpe"]
    ids = [word_token(tokenizer, "in", spaced=spaced) for spaced in (True, False)]
    assert [tokenizer.backend.id_to_token(id) for id in ids] == ["Ġin", "in"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("The dog ran.", r"There is no \[MASK\] in the text: write one, or ___, where"),
        ("[MASK] " * 70, r"The text has 72 tokens, the model sees only 64\."),
    ],
)
def test_texts_that_cannot_be_filled(text: str, sentence: str, make_model: MakeModel) -> None:
    with pytest.raises(Misuse, match=sentence):
        make_model("bert-tiny").fill(text)


def test_models_that_cannot_fill(make_model: MakeModel) -> None:
    cases = [
        (make_model("decoder-tiny"), "A decoder sees only what stands before a blank; to fill it"),
        (make_model("electra-small"), "This model has no language head: it makes vectors"),
        (make_model("bert-tiny", "bpe"), "This model's tokenizer has no mask token"),
        (make_model("t5-small", "bpe"), "This model never saw a blank"),
    ]
    for model, sentence in cases:
        with pytest.raises(MismatchError, match=sentence):
            model.fill("The [MASK] ran.")


# ---- a decoder that fills, too ------------------------------------------------------------------


def test_a_hybrid_decoder_fills_from_the_place_before(make_model: MakeModel) -> None:
    model = make_model("decoder-tiny", begin_id=2, end_id=3)
    model.objective = "hybrid"
    tokenizer = model.tokenizer_needed()
    found = model.fill("The [MASK] ran.", top=3)[0]
    ids = [2, *tokenizer.encode("The [MASK] ran."), 3]
    place = ids.index(tokenizer.special_ids["mask"])
    best = shares(model, ids, place - 1).topk(3)
    assert [guess.score for guess in found] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [guess.token for guess in found] == [
        tokenizer.decode([id]).strip() for id in best.indices.tolist()
    ]
    bare = make_model("decoder-tiny", begin_id=None, end_id=None)
    bare.objective = "hybrid"
    with pytest.raises(Misuse, match="Nothing stands before the first blank"):
        bare.fill("[MASK] ran.")


def test_a_run_says_that_it_is_hybrid(
    tmp_path: Path, sample: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizers["wordpiece"].save(tmp_path / "tokenizer")
    shards = tmp_path / "shards"
    options: dict[str, Any] = dict(tokenizer=tmp_path / "tokenizer", workers=1, valid_fraction=0)
    prepare([sample], out=shards, **options)
    small: dict[str, Any] = {"model.width": 32, "model.heads": 2, "model.inner": 48, "length": "32"}
    small |= {"batch": "128", "precision": "fp32"}
    for objective in ("hybrid", "causal"):
        out = tmp_path / objective
        made = pretrain(
            preset="decoder-tiny", data=shards, out=out, objective=objective, steps=2, changes=small
        )
        for model in (made.model, load(out)):
            assert model.objective == objective
            if objective == "hybrid":
                assert len(model.fill("The [MASK] ran.", top=4)[0]) == 4
            else:
                with pytest.raises(MismatchError, match="hybrid objective"):
                    model.fill("The [MASK] ran.")


# ---- encoder-decoders ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_sentinels(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("text") / "sample.txt"
    file.write_text(SAMPLE, encoding="utf-8")
    options: dict[str, Any] = dict(kind="wordpiece", vocab_size=400, sentinels=6, workers=1)
    return train_tokenizer([file], **options)[0]


def writer(make_model: MakeModel, tokenizer: Tokenizer, name: str = "t5-small") -> Model:
    ids = tokenizer.special_ids
    roles = {"start_id": ids["pad"], "end_id": ids["sep"], "padding_id": ids["pad"]}
    made = make_model(name, vocabulary=len(tokenizer), decoder_layers=2, **roles)
    return Model(made.network, tokenizer)


def test_spans_for_several_blanks(make_model: MakeModel, with_sentinels: Tokenizer) -> None:
    model = writer(make_model, with_sentinels)
    found = model.fill_texts(["The [MASK] saw the ___ .", "The ___ saw the ___ ."], top=4)
    assert len(found[0].blanks) == 1  # the first kind of mark that is there
    two = found[1]
    assert len(two.blanks) == 2
    assert 1 <= len(two.wholes) <= 4
    for blank, guesses in enumerate(two.blanks):
        for guess in guesses:  # all whole fillings with the same text in a blank count for it
            same = [w.score for w in two.wholes if w.tokens[blank] == guess.token]
            assert guess.score >= sum(same) - 1e-12
    assert all(text.startswith("The") for text in (whole.text for whole in two.wholes))
    with pytest.raises(Misuse, match="The text has 6 blanks, the model knows only 5"):
        model.fill("___ " * 6)
    with pytest.raises(Misuse, match="how likely words are for one blank, not several"):
        model.fill("___ saw ___", targets=["the"])


def test_which_way_an_encoder_decoder_goes(
    make_model: MakeModel, with_sentinels: Tokenizer, tokenizers: dict[str, Tokenizer]
) -> None:
    network = writer(make_model, with_sentinels).network
    ways = {
        objective: make_filler(network, with_sentinels, objective=objective).way
        for objective in (None, "span-corruption", "infilling")
    }
    assert ways == {None: "spans", "span-corruption": "spans", "infilling": "whole"}
    bart = make_model("bart-base")
    assert make_filler(bart.network, tokenizers["wordpiece"]).way == "whole"


def test_what_was_filled_in_a_text_that_was_written_anew(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    blanks = find_blanks("The [MASK] ran to the [MASK].")
    assert aligned(blanks, tokenizer, "The old dog ran to the river .") == ["old dog", "river"]
    assert aligned(blanks, tokenizer, "The ran to the river.") == ["", "river"]
    assert aligned(blanks, tokenizer, "A dog ran to the river.") is None


def test_a_whole_text_is_scored_with_chosen_words(
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


SENTENCES = [
    "The dog barked at the mailman.",
    "The cat slept on the warm table.",
    "The girl walked home from school.",
    "The boy played with the small boat.",
    "An old woman carried water from the river.",
    "The farmer sold apples at the market.",
]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["infilling", "span-corruption"])
def test_sentences_learned_by_heart_are_filled_right(objective: str, tmp_path: Path) -> None:
    """A run knows its objective, and is asked as it was taught."""
    draw, text = random.Random(0), tmp_path / "text.txt"
    passages = [" ".join(draw.sample(SENTENCES, 4)) for _ in range(400)]
    text.write_text("\n\n".join(passages if objective != "infilling" else SENTENCES * 40))
    options: dict[str, Any] = dict(kind="wordpiece", vocab_size=140, lowercase=True, sentinels=10)
    train_tokenizer([text], workers=1, **options)[0].save(tmp_path / "tokenizer")
    shards = tmp_path / "shards"
    prepare([text], tokenizer=tmp_path / "tokenizer", out=shards, valid_fraction=0, workers=1)
    small: dict[str, Any] = {"model.width": 64, "model.heads": 2, "model.inner": 128}
    small |= {"length": "48", "batch": "512", "precision": "fp32", "rate": "5e-3"}
    run = tmp_path / "run"
    pretrain(
        preset="seq2seq-tiny", data=shards, out=run, objective=objective, steps=400, changes=small
    )
    model = load(run)
    for blank, right in (
        ("The ___ barked at the mailman.", "dog"),
        ("The girl walked ___ from school.", "home"),
        ("The boy ___ the small boat.", "played with"),
    ):
        assert model.fill(blank, top=2)[0][0].token == right


# ---- the verb -----------------------------------------------------------------------------------


def test_the_verb(bert: Path, verb: Verb) -> None:
    found = json.loads(verb("fill", bert, "The [MASK] ran.", "--json", "--top", 3).stdout)
    assert [guess.keys() for guess in found["predictions"]] == [{"token", "score", "text"}] * 3
    guess = found["predictions"][0]
    assert guess["text"].startswith("The")
    several = json.loads(verb("fill", bert, "[MASK] saw ___ and [MASK].", "--json").stdout)
    assert [len(guesses) for guesses in several["predictions"]] == [5, 5]
    assert [len(whole["tokens"]) for whole in several["sentences"]] == [2] * 5
    shown = verb("fill", bert, "The [MASK] ran.").stdout
    assert guess["token"] in shown
    assert " %" in shown
    assert "all together" in verb("fill", bert, "The [MASK] saw [MASK].").stdout
    chosen = json.loads(
        verb("fill", bert, "The ___ ran.", "--targets", "the, and", "--json").stdout
    )
    assert {guess["token"] for guess in chosen["predictions"]} == {"the", "and"}


def test_a_file_of_texts(bert: Path, verb: Verb, tmp_path: Path) -> None:
    """Bad rows are told, the others are filled, and lines stay beside each other."""
    file = tmp_path / "texts.txt"
    file.write_bytes(b"The [MASK] ran.\nno blank\n\n\xff [MASK]\n[MASK] saw [MASK].\n")
    done = verb("fill", bert, "--file", file, "--out", "filled.jsonl")
    assert done.exit_code == 1
    missing = "There is no [MASK] in the text: write one, or ___, where something is missing."
    assert done.stderr.splitlines() == [
        f"{file} line 2: {missing}",
        f"{file} line 3: {missing}",
        f"{file} line 4: byte 26 of the file is not UTF-8; convert it with iconv.",
        "firth: 3 rows were bad, as told above; all others are done.",
    ]
    lines = [json.loads(line) for line in Path("filled.jsonl").read_text().splitlines()]
    assert ["error" in line for line in lines] == [False, True, True, True, False]
    assert (
        verb("fill", bert, "--file", file, "--out", "-").stdout == Path("filled.jsonl").read_text()
    )
    plain = verb("fill", bert, "--file", file).stdout.split("\n")
    assert plain[0] == lines[0]["predictions"][0]["text"]
    assert plain[1:4] == ["", "", ""]
    assert plain[4] == lines[4]["sentences"][0]["text"]
    said = json.loads(verb("fill", bert, "--file", file, "--json").stdout)
    assert said == {"results": lines, "bad": 3}


def test_a_table_of_texts(bert: Path, verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("id\tcloze\n1\tThe ___ ran.\n", encoding="utf-8")
    done = verb("fill", bert, "--file", "texts.tsv", "--column", "cloze", "--json")
    assert json.loads(done.stdout)["results"][0]["text"] == "The ___ ran."
    wrong = verb("fill", bert, "--file", "texts.tsv")
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("firth: texts.tsv line 1 has no column 'text' (it has 'id',")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Give a TEXT with blanks, or --file with one on each line."),
        (["[MASK]", "--file", "x"], "Give a TEXT with blanks, or --file with one on each line."),
        (["[MASK]", "--out", "x.jsonl"], "--out is for the many texts of --file; add --json"),
        (["[MASK]", "--targets", " , "], "--targets takes words with commas between them"),
        (["[MASK]", "--targets", "a", "--top", "3"], "--targets are all shown: leave --top out."),
        (["--file", "x", "--out", "a.csv"], "--out writes JSON lines, so a.csv is not its name"),
        (["x", "--correct", "--top", "3"], "--correct proposes one correction for a word"),
        (["x", "--file", "gone.txt"], "Give a TEXT"),
        (["no blank"], "There is no [MASK] in the text"),
    ],
)
def test_misuse(words: list[str], sentence: str, bert: Path, verb: Verb) -> None:
    done = verb("fill", bert, *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"firth: {sentence}")


def test_a_file_that_is_not_there(bert: Path, verb: Verb) -> None:
    done = verb("fill", bert, "--file", "gone.txt")
    assert (done.exit_code, done.stderr) == (1, "firth: There is no file or folder gone.txt.\n")


def test_nothing_to_do(make_model: MakeModel) -> None:
    assert fill_all(make_model("bert-tiny").filler(), []) == []
