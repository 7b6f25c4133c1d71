"""The perplexity of running text, and what each convention counts.

A network whose scores are all the same finds every token as likely as every other: each costs the
logarithm of the vocabulary's size, so all figures can be calculated by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import Model, evaluate
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.tasks import perplexity
from firth.tasks.task import TaskMetadata
from firth.tokenizers import encoding
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.conftest import SAMPLE
from tests.inference.conftest import SIZE

MakeModel = Callable[..., Model]
WIKI = " = The River = \n \n The dog ran to the garden . \n It was naïve . \n"


@pytest.fixture
def uniform(make_model: MakeModel) -> Model:
    """Every token is as likely as every other."""
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    with torch.no_grad():
        model.network.tokens.weight.zero_()
    return model


def count(model: Model, *texts: str) -> int:
    return sum(len(model.require_tokenizer().encode(text)) for text in texts)


def values(model: Model, path: Path, **options: Any) -> tuple[dict[str, float], dict[str, Any]]:
    found = evaluate(model, task="lm", data=path, **options)
    return {name: metric.value for name, metric in found.metrics.items()}, found.details


def test_wikitext_counts_words_and_the_ends_of_lines(uniform: Model, tmp_path: Path) -> None:
    path = tmp_path / "wiki.txt"
    path.write_text(WIKI, encoding="utf-8")
    found, details = values(uniform, path, convention="wikitext")
    tokens = count(uniform, WIKI)
    words = 4 + 0 + 7 + 4 + 4  # of four lines, and an <eos> for each
    assert details["counts"]["tokens"] == tokens
    assert details["counts"]["words"] == words
    assert next(iter(found)) == "word_perplexity"
    assert found["word_perplexity"] == pytest.approx(SIZE ** (tokens / words), rel=1e-5)
    assert found["token_perplexity"] == pytest.approx(SIZE, rel=1e-5)
    # The same when the last line has no end.
    path.write_text(WIKI[:-1], encoding="utf-8")
    assert values(uniform, path, convention="wikitext")[0] == pytest.approx(found)
    path.write_bytes(WIKI.replace("\n", "\r\n").encode())
    assert values(uniform, path, convention="wikitext")[0] == pytest.approx(found)


def test_ptb_counts_as_wikitext_does(uniform: Model, tmp_path: Path) -> None:
    path = tmp_path / "ptb.txt"
    path.write_text(" no it was n't black monday \n but while N <unk> fell \n", encoding="utf-8")
    found, details = values(uniform, path, convention="ptb")
    assert details["counts"]["words"] == 6 + 1 + 5 + 1
    assert next(iter(found)) == "word_perplexity"


def test_enwik8_counts_bytes_of_the_whole_file(uniform: Model, tmp_path: Path) -> None:
    path, text = tmp_path / "enwik8.txt", "<page>\r\n  naïve — [[dog]]\n\n\n</page>"
    path.write_bytes(text.encode())
    found, details = values(uniform, path, convention="enwik8")
    assert details["counts"]["bytes"] == len(text.encode()) == path.stat().st_size
    bits = count(uniform, text) * math.log2(SIZE)
    assert found["bits_per_byte"] == pytest.approx(bits / len(text.encode()), rel=1e-5)
    assert found["bits_per_character"] == pytest.approx(bits / len(text), rel=1e-5)
    assert next(iter(found)) == "bits_per_byte"


def test_plain_takes_every_document_by_itself(uniform: Model, tmp_path: Path) -> None:
    texts = ["The dog ran.\nIt was old.", "The river rose — naïve."]
    text, rows = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    rows.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    for path in (text, rows):
        found = evaluate(uniform, task="lm", data=path)
        assert found.n == 2
        counts = found.details["counts"]
        assert counts == {
            "tokens": count(uniform, *texts),
            "words": 6 + 5,
            "characters": sum(map(len, texts)),
            "bytes": sum(len(t.encode()) for t in texts),
        }
        word = found.metrics["word_perplexity"].value
        assert word == pytest.approx(SIZE ** (counts["tokens"] / 11), rel=1e-5)
    assert evaluate(uniform, task="lm", data=text, limit=1).n == 1


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_a_stream_has_the_tokens_of_the_whole(
    tokenizer: str, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at white space into parts of any size, a text loses and gains no token."""
    model = make_model("gpt2", tokenizer=tokenizer, bos_token_id=0)
    text = (SAMPLE + "\n\n   two   spaces \t\n \n").replace(". ", ".   ") * 3
    path = tmp_path / "long.txt"
    path.write_text(text, encoding="utf-8")
    first: dict[str, float] = {}
    for size in (7, 64, 1024):
        monkeypatch.setattr(perplexity, "PART_CHARACTERS", size)
        monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 5 * size)
        found, details = values(model, path, convention="enwik8", context=24, stride=20)
        assert details["counts"]["tokens"] == count(model, text)
        assert details["counts"]["characters"] == len(text)
        first = first or found
        assert found == pytest.approx(first)


def test_parts_beyond_counting_are_counted_with_their_neighbours(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(SAMPLE.split()[:50]) + "\n", encoding="utf-8")
    before, details = values(model, path)
    monkeypatch.setattr(perplexity, "MAX_PARTS", 8)
    after, same = values(model, path)
    assert after == pytest.approx(before)
    assert same["counts"] == details["counts"]


def test_more_to_look_back_on_changes_what_is_likely(make_model: MakeModel, tmp_path: Path) -> None:
    """One window over all is the exact chain of probabilities; a short one forgets."""
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    text = SAMPLE[:100].replace("\n", " ")
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    whole = values(model, path, context=64, stride=32)
    assert whole[1]["counts"]["tokens"] <= 63
    assert values(model, path, context=64, stride=5)[0] == pytest.approx(whole[0])
    assert values(model, path, context=4, stride=1)[0] != pytest.approx(whole[0])


def test_a_masked_model_has_a_pseudo_perplexity(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bert-tiny")
    texts = ["The dog ran to the garden.", "The old river rose."]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    found = evaluate(model, task="lm", data=path)
    each = list(pseudo_log_likelihoods(model.network, model.require_tokenizer(), texts))
    total, tokens = sum(score.sum for score in each), sum(score.tokens for score in each)
    assert found.metrics["pseudo_perplexity"].value == pytest.approx(math.exp(-total / tokens))
    assert not any(name.startswith("token") or "bits" in name for name in found.metrics)
    assert "not comparable" in found.notes[0]
    # A document beyond the context is read in pieces, each token of which is hidden once.
    pieces = evaluate(model, task="lm", data=path, context=8)
    assert pieces.details["counts"]["tokens"] == tokens


def test_of_a_dialogue_only_what_the_assistant_says(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    said = [("user", "Who ran to the river?"), ("assistant", "The dog.")]
    row = {"messages": [{"role": role, "content": text} for role, text in said]}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    found = evaluate(model, task="lm", data=path)
    encode = model.require_tokenizer().encode
    whole = encode("user: Who ran to the river?\nassistant: The dog.")
    counts = found.details["counts"]
    assert counts["words"] == 2
    assert 0 < counts["tokens"] < len(whole) / 2
    path.write_text(json.dumps({"messages": row["messages"][:1]}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a.jsonl line 1: .*assistant"):
        evaluate(model, task="lm", data=path)


def test_a_model_without_a_beginning_says_what_it_does_not_score(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=None)
    path = tmp_path / "a.txt"
    path.write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    found = evaluate(model, task="lm", data=path)
    assert found.details["counts"]["tokens"] == count(model, "The dog ran.", "The river rose.") - 2
    assert "the first token of each text is not scored" in found.notes[0]


def test_it_is_scored_in_32_bits(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    path = tmp_path / "a.txt"
    path.write_text(SAMPLE[:200], encoding="utf-8")
    half = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    half.network.bfloat16()
    with torch.no_grad():
        for parameter, other in zip(
            model.network.parameters(), half.network.parameters(), strict=True
        ):
            parameter.copy_(other)
    assert values(half, path)[0] == pytest.approx(values(model, path)[0], rel=1e-6)
    assert half.network.tokens.weight.dtype == torch.bfloat16  # the caller's model is as it was


def test_a_run_that_was_taught_text_is_measured_when_asked(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """By itself it answers as it was taught: passages with their end."""
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0, eos_token_id=0)
    model.task = TaskMetadata(task="lm", max_length=64)
    path = tmp_path / "a.txt"
    path.write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    assert list(evaluate(model, data=path).metrics) == ["perplexity"]
    asked = evaluate(model, data=path, task="lm").metrics
    assert asked == evaluate(model, data=path, convention="plain").metrics
    assert "bits_per_byte" in asked


WRONG: list[tuple[dict[str, Any], type[FirthError], str]] = [
    (
        {"convention": "wiki"},
        UsageError,
        "There is no convention 'wiki'; there are plain, wikitext",
    ),
    ({"context": 65}, UsageError, "`context` is 2 to 64 tokens for this model, not 65"),
    ({"context": 8, "stride": 8}, UsageError, "`stride` is 1 to 7 tokens in a window of 8"),
    ({"by_word": True}, UsageError, "`by_word` is for `task` minimal-pairs"),
    ({"columns": {"label": "x"}}, UsageError, "The columns of lm are text, not 'label'"),
]


@pytest.mark.parametrize(("options", "error", "says"), WRONG)
def test_wrong_options(
    options: dict[str, Any], error: type[FirthError], says: str, make_model: MakeModel, sample: Path
) -> None:
    with pytest.raises(error, match=says):
        evaluate(make_model("gpt2", tokenizer="bpe"), task="lm", data=sample, **options)


def test_models_and_files_that_cannot(make_model: MakeModel, tmp_path: Path) -> None:
    decoder = make_model("gpt2", tokenizer="bpe")
    file = tmp_path / "a.txt"
    file.write_text("The dog ran.\n", encoding="utf-8")
    with pytest.raises(MismatchError, match="An encoder-decoder has no likelihood of a whole text"):
        evaluate(make_model("t5-small"), task="lm", data=file)
    with pytest.raises(UsageError, match="`stride` is for decoders"):
        evaluate(make_model("bert-tiny"), task="lm", data=file, stride=4)
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        evaluate(decoder, task="lm", data=tmp_path)
    for convention in ("plain", "enwik8"):
        file.write_bytes(b"fine\n\xff\xfe bad\n")
        with pytest.raises(InputError, match=r"a.txt line 2: byte 5 of the file is not UTF-8"):
            evaluate(decoder, task="lm", data=file, convention=convention, strict=True)
        assert "line 2" in " ".join(evaluate(decoder, task="lm", data=file).notes)
        file.write_text("", encoding="utf-8")
        with pytest.raises(InputError, match=r"a.txt has no text"):
            evaluate(decoder, task="lm", data=file, convention=convention)


def test_the_interval_holds_the_figure_and_shrinks_with_the_text(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    words, widths = SAMPLE.split(), []
    for size in (8, 64):
        path = tmp_path / f"{size}.txt"
        documents = [" ".join(words[i : i + 5]) for i in range(size)]
        path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        metric = evaluate(model, task="lm", data=path).metrics["token_perplexity"]
        assert metric.low < metric.value < metric.high
        widths.append(np.log(metric.high / metric.low))
    assert widths[1] < widths[0]
