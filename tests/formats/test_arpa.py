"""ARPA files are read and written; an error names the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from firth import Model, load
from firth.models.masks import Mask
from firth.utils.errors import InputError, MismatchError

# p(a) = 0.5, p(b) = 0.3, p(</s>) = p(<unk>) = 0.1; p(b | a) = 0.8, p(a | <s>) = 0.9
FILE = """
\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-1\t<unk>
-99\t<s>\t-1
-1\t</s>
-0.30103\ta\t-0.69897
-0.5228787\tb

\\2-grams:
-0.09691\ta b
-0.0457575\t<s> a

\\end\\
"""


def read(path: Path, text: str) -> Model:
    path.write_text(text, encoding="utf-8")
    return load(path)


def test_a_file_by_hand(tmp_path: Path) -> None:
    model = read(tmp_path / "model.arpa", FILE)
    ids = model.require_tokenizer().encode("a b z")
    tokens = torch.tensor([model.config.bos_token_id, *ids, model.config.eos_token_id])
    logits = model.network.logits(model.network(tokens[:-1], Mask.causal([4])))
    probs = logits.exp().gather(1, tokens[1:, None])[:, 0]
    assert probs.tolist() == pytest.approx([0.9, 0.8, 0.1, 0.1], rel=1e-4)
    assert logits.exp()[1, ids[0]] == pytest.approx(0.2 * 0.5, rel=1e-4)  # p(a | a) backs off


def test_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.write_bytes(gzip.compress(FILE.encode()))
    assert load(path).config.vocab_size == 5
    path.write_bytes(gzip.compress(FILE.encode())[:-12])
    with pytest.raises(InputError, match="gz"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("\\data\\", "data", "line 2"),
        ("a b", "a c", "line 14"),
        ("-0.30103", "0.3", "line 10"),
        ("-0.30103", "half", "line 10"),
        ("\tb\n\n", "\ta\n\n", "line 11"),
        ("2=2", "2=3", "line 17"),
        ("\ta b", "\ta b b b", "line 14"),
        ("\\2-grams:", "\\end\\", "line"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    with pytest.raises(InputError, match=f"model.arpa, {line}"):
        read(tmp_path / "model.arpa", FILE.replace(old, new, 1))


def test_contexts_must_be_there(tmp_path: Path) -> None:
    longer = FILE.replace("2=2", "2=2\nngram 3=1").replace("\\end", "\\3-grams:\n-1 b a b\n\n\\end")
    with pytest.raises(MismatchError, match="b a b"):
        read(tmp_path / "model.arpa", longer)
    twice = FILE.replace("<s> a", "a b")
    with pytest.raises(InputError, match="twice"):
        read(tmp_path / "model.arpa", twice)
