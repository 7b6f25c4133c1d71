"""Last words; that guesses and likelihoods are right, `tests/parity/test_scoring.py` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from firth import Model, evaluate
from firth.utils.errors import InputError, MismatchError, UsageError
from tests.inference.conftest import SIZE

MakeModel = Callable[..., Model]


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_the_perplexity_is_that_of_whole_words(
    tokenizer: str, make_model: MakeModel, tmp_path: Path
) -> None:
    """Where all tokens are equally likely, a word of n tokens has a probability of 1 / V ** n."""
    model = make_model("gpt2", tokenizer=tokenizer, bos_token_id=0)
    with torch.no_grad():
        model.network.tokens.weight.zero_()
    words = ["dog", "extraordinarily", "of"]
    path = tmp_path / "a.txt"
    path.write_text("".join(f"The river and the {word}\n" for word in words), encoding="utf-8")
    encode = model.require_tokenizer().encode
    sizes = [len(encode(f"the {word}")) - len(encode("the")) for word in words]
    assert max(sizes) > 1
    found = evaluate(model, task="last-word", data=path)
    assert found.n == 3
    assert found.details["tokens"] == sum(sizes)
    value = found.metrics["perplexity"].value
    assert value == pytest.approx(float(np.exp(np.mean(sizes) * np.log(SIZE))), rel=1e-4)


def test_a_text_that_is_too_long_keeps_its_end(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("gpt2", tokenizer="bpe", bos_token_id=0)
    end = "the dog ran to the river again"
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    long.write_text("noise " * 200 + end + "\n", encoding="utf-8")
    found = evaluate(model, task="last-word", data=long)
    (note,) = found.notes
    assert note.startswith("1 texts")
    # The same as of the end alone, that just fits behind the token that begins a text.
    encode = model.require_tokenizer().encode
    word = len(encode("again again")) - len(encode("again"))
    ids = encode("noise " * 200 + end)[-(63 - word + 1 + word) :]
    short.write_text(model.require_tokenizer().decode(ids) + "\n", encoding="utf-8")
    alone = evaluate(model, task="last-word", data=short)
    assert not alone.notes
    assert found.metrics["perplexity"].value == pytest.approx(alone.metrics["perplexity"].value)


def test_what_cannot_be_measured(make_model: MakeModel, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The dog ran\n\nAlone\n", encoding="utf-8")
    for name in ("bert-tiny", "t5-small"):
        with pytest.raises(MismatchError, match="use a decoder"):
            evaluate(make_model(name), task="last-word", data=path)
    with pytest.raises(InputError, match=r"a.txt line 3: 'Alone' is a single word"):
        evaluate(make_model("gpt2"), task="last-word", data=path, strict=True)
    assert evaluate(make_model("gpt2"), task="last-word", data=path).n == 1
    with pytest.raises(UsageError, match="`convention` is for `task` lm"):
        evaluate(make_model("gpt2"), task="last-word", data=path, convention="ptb")
