"""Shards: what is in them, and that nothing can spoil them."""

from __future__ import annotations

import fcntl
import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth.data.corpus import Corpus
from firth.data.readers import ReadOptions
from firth.data.sentences import sentence_starts
from firth.data.shards import Shards, token_type, write_shard
from firth.formats.tokenizers.loading import load_tokenizer
from firth.jobs.preparation import prepare
from firth.tokenizers.encoding import CachedEncoder, encode_documents
from firth.tokenizers.trainer import KINDS, train_tokenizer
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.conftest import SAMPLE, in_process
from tests.jobs.conftest import sums


def texts_in(folder: Path, split: str = "train") -> list[str]:
    tokenizer = load_tokenizer(folder)
    shards = Shards(folder, split)
    return [tokenizer.decode(shards[i].tolist()) for i in range(len(shards))]


def test_shards_hold_every_document_and_sentence(tmp_path: Path, sample: Path, bert: Path) -> None:
    prepared = prepare([sample], tokenizer=bert, out=tmp_path / "shards", valid_fraction=0)
    tokenizer = load_tokenizer(bert)
    shards = Shards(tmp_path / "shards", tokenizer=tokenizer)
    documents = list(Corpus([sample]))
    assert len(shards) == len(documents) == prepared.report.documents
    assert shards.tokens == sum(shards.lengths) == prepared.splits["train"]["tokens"]
    for i, document in enumerate(documents):
        assert shards[i].tolist() == tokenizer.encode(document)
        assert shards.lengths[i] == len(shards[i])
        bounds = shards.sentences(i)
        pieces = [shards[i][a:b].tolist() for a, b in itertools.pairwise(bounds)]
        edges = itertools.pairwise([*sentence_starts(document), len(document)])
        assert pieces == [tokenizer.encode(document[a:b]) for a, b in edges]
    shards.verify()
    assert load_tokenizer(tmp_path / "shards").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_by_sentence_gives_the_whole_document(sample: Path, kind: str) -> None:
    size = 50 if kind == "char" else 400
    tokenizer, _ = train_tokenizer([sample], kind=kind, vocab_size=size, min_frequency=1)
    documents = [*Corpus([sample]), "Ɗan Ƙofa ya zo. Ya ce: “Sannu!” Na ji daɗi…", "a\nb. C\nD"]
    passage = encode_documents(CachedEncoder(tokenizer.backend), documents)
    starts = np.cumsum([0, *passage.documents])
    for i, document in enumerate(documents):
        assert passage.tokens[starts[i] : starts[i + 1]].tolist() == tokenizer.encode(document)


def test_special_tokens_in_raw_text_are_only_letters(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "a.txt").write_text("The [MASK] is [SEP] open.")
    prepare([tmp_path / "a.txt"], tokenizer=bert, out=tmp_path / "shards", valid_fraction=0)
    specials = {0, 2, 3, 4}  # [PAD], [CLS], [SEP], [MASK]
    assert not specials & set(Shards(tmp_path / "shards")[0].tolist())


def test_large_vocabularies_get_larger_numbers() -> None:
    assert token_type(65_536) == np.uint16
    assert token_type(65_537) == np.uint32


def test_validation_is_by_document_and_follows_the_text(
    tmp_path: Path, long_text: Path, bert: Path
) -> None:
    options = {"tokenizer": bert, "valid_fraction": 0.2, "workers": 1}
    prepare([long_text], out=tmp_path / "a", **options)
    train, valid = texts_in(tmp_path / "a"), texts_in(tmp_path / "a", "valid")
    assert len(train) + len(valid) == 2000
    assert 0.155 < len(valid) / 2000 < 0.245  # five standard deviations
    # The same documents in another order fall on the same sides.
    shuffled = long_text.read_text().split("\n\n")
    random.Random(1).shuffle(shuffled)
    (tmp_path / "b.txt").write_text("\n\n".join(shuffled))
    prepare([tmp_path / "b.txt"], out=tmp_path / "b", **options)
    assert set(texts_in(tmp_path / "b", "valid")) == set(valid)


def test_validation_text_of_its_own(tmp_path: Path, sample: Path, bert: Path) -> None:
    (tmp_path / "valid.txt").write_text("The sea is kind.\n\nThe wind is not.")
    valid = tmp_path / "valid.txt"
    prepare(str(sample), tokenizer=bert, out=tmp_path / "shards", valid=valid)
    assert texts_in(tmp_path / "shards", "valid") == ["The sea is kind.", "The wind is not."]
    assert len(texts_in(tmp_path / "shards")) == len(list(Corpus([sample])))
    valid.write_text("\n")
    with pytest.raises(InputError, match="`valid` hold no document"):
        prepare(sample, tokenizer=bert, out=tmp_path / "empty", valid=valid)


def test_duplicates_go_and_validation_counts_as_earlier(tmp_path: Path, bert: Path) -> None:
    first, *others = SAMPLE.strip().split("\n\n")
    near = first.replace("wide", "wild")
    (tmp_path / "train.txt").write_text("\n\n".join([*others, others[0], first, near, "", "<br>"]))
    (tmp_path / "valid.txt").write_text(first)
    prepared = prepare(
        [tmp_path / "train.txt"],
        tokenizer=bert,
        out=tmp_path / "shards",
        valid=[tmp_path / "valid.txt"],
        dedup=True,
    )
    assert prepared.report.removed == {"exact duplicate": 2, "near duplicate": 1, "empty": 1}
    assert prepared.splits["train"]["documents"] == len(others)
    assert prepared.splits["valid"]["documents"] == 1


@pytest.fixture
def languages(tmp_path: Path) -> dict[str, list[Path]]:
    """Documents that begin with the name of their source, in one file and in two."""
    for name in ("en", "ha", "ha2"):
        words = random.Random(name)
        lines = (" ".join(words.choices(SAMPLE.split(), k=20)) for _ in range(30))
        text = "\n\n".join(f"{name[:2]} {line}" for line in lines)
        (tmp_path / f"{name}.txt").write_text(text)
    return {"en": [tmp_path / "en.txt"], "ha": [tmp_path / "ha.txt", tmp_path / "ha2.txt"]}


def test_the_source_of_every_document_is_kept(
    tmp_path: Path, languages: dict[str, list[Path]], bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{name}={','.join(map(str, paths))}" for name, paths in languages.items()]
    words += ["--tokenizer", bert, "--valid-fraction", 0.3, "--dedup", "--json"]
    made = in_process("prepare", *words, "--out", tmp_path / "one", "--workers", 1).json
    in_process("prepare", *words, "--out", tmp_path / "two", "--workers", 2)
    for split in ("train", "valid"):
        shards = Shards(tmp_path / "one", split)
        named = [shards.source_names[i] for i in shards.sources]
        assert named == [text[:2] for text in texts_in(tmp_path / "one", split)]
        assert set(named) == {"en", "ha"}
        assert shards.source_tokens == {name: made["sources"][name][split] for name in languages}
    options = {"tokenizer": bert, "valid_fraction": 0.3, "dedup": True, "shard_tokens": 500}
    options |= {"workers": 1}
    prepare(languages, out=tmp_path / "whole", **options)

    def interrupted(folder: Path, name: str, passages: Any) -> Any:
        if name == "train-00003":
            raise KeyboardInterrupt
        return write_shard(folder, name, passages)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("firth.jobs.prepare_output.write_shard", interrupted)
        prepare(languages, out=tmp_path / "again", **options)
    assert prepare(languages, out=tmp_path / "again", **options).resumed
    assert sums(tmp_path / "again") == sums(tmp_path / "whole")
    assert sums(tmp_path / "one") == sums(tmp_path / "two")


def test_other_sources_are_other_shards(
    tmp_path: Path, languages: dict[str, list[Path]], bert: Path
) -> None:
    out = tmp_path / "out"
    prepare(languages, tokenizer=bert, out=out, workers=1)
    with pytest.raises(MismatchError, match="other text or with other options"):
        prepare({"x": languages["en"], "ha": languages["ha"]}, tokenizer=bert, out=out)
    with pytest.raises(MismatchError, match="other text or with other options"):
        prepare([*languages["en"], *languages["ha"]], tokenizer=bert, out=out)


def test_invalid_sources(tmp_path: Path, languages: dict[str, list[Path]], bert: Path) -> None:
    en, other = languages["en"][0], tmp_path / "a=b.txt"
    common = ["--tokenizer", bert, "--out", tmp_path / "out"]
    for words, facts in {
        (f"en={en}", other): "a=b.txt",
        (f"en={en}", "--valid", other): "--valid en=",
        (f"en={en}", "--valid", f"sw={other}"): "'sw'",
        (en, "--valid", f"sw={other}"): "'sw'",
        (f"text={en}",): "'text'",
    }.items():
        other.write_text("A file whose name has the form of a source.")
        failed = in_process("prepare", *words, *common)
        assert failed.returncode == 2
        assert facts in failed.error
    assert in_process("prepare", other, *common, "--valid-fraction", 0).returncode == 0
    with pytest.raises(UsageError, match="'two words'"):
        prepare({"two words": en}, tokenizer=bert, out=tmp_path / "x")


def test_what_is_there_is_left_alone_or_refused(tmp_path: Path, sample: Path, bert: Path) -> None:
    out = tmp_path / "shards"
    first = prepare([sample], tokenizer=bert, out=out)
    before = (out / "index.json").stat().st_mtime_ns
    assert prepare([sample], tokenizer=bert, out=out).splits == first.splits
    assert (out / "index.json").stat().st_mtime_ns == before
    train_tokenizer([sample], kind="bpe", vocab_size=300)[0].save(tmp_path / "bpe")
    with pytest.raises(MismatchError, match="another tokenizer"):
        prepare([sample], tokenizer=tmp_path / "bpe", out=out)
    with pytest.raises(MismatchError, match="another tokenizer"):
        Shards(out, tokenizer=load_tokenizer(tmp_path / "bpe"))
    with pytest.raises(MismatchError, match="other text or with other options"):
        prepare([sample], tokenizer=bert, out=out, dedup=True)
    for folder in ("notes.partial", "mine"):
        thesis = tmp_path / folder / "thesis.doc"
        thesis.parent.mkdir()
        thesis.write_text("precious")
        with pytest.raises(UsageError, match=folder):
            prepare([sample], tokenizer=bert, out=tmp_path / folder.removesuffix(".partial"))
        assert thesis.read_text() == "precious"


def test_a_second_process_is_refused(tmp_path: Path, sample: Path, bert: Path) -> None:
    (tmp_path / "shards.partial").mkdir()
    with open(tmp_path / "shards.partial/prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FirthError, match="Another process is writing"):
            prepare([sample], tokenizer=bert, out=tmp_path / "shards")


def test_nothing_left_is_an_error_and_leaves_nothing(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "a.txt").write_text("<br>\n\n\x01")
    with pytest.raises(InputError, match=r"No documents are left of .* \(2 empty\)"):
        prepare([tmp_path / "a.txt"], tokenizer=bert, out=tmp_path / "shards")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_bad_row_leaves_nothing_under_the_final_name(tmp_path: Path, bert: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"txt": "not"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl line 2 has no field 'text'"):
        prepare([tmp_path / "a.jsonl"], tokenizer=bert, out=tmp_path / "shards", strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_standard_input_is_never_taken_for_what_it_was(tmp_path: Path, bert: Path) -> None:
    words = ["prepare", "-", "--tokenizer", bert, "--valid-fraction", 0, "--out", tmp_path / "out"]
    assert in_process(*words, input="the sea").returncode == 0
    assert in_process(*words, input="the wind").returncode == 1
    assert texts_in(tmp_path / "out") == ["the sea"]


def test_invalid_options(tmp_path: Path, sample: Path, bert: Path) -> None:
    cases: list[tuple[type[FirthError], str, dict[str, Any]]] = [
        (InputError, "validation", dict(valid_fraction=0.9999)),
        (InputError, "15 exact duplicate", dict(valid=[sample], dedup=True)),
        (UsageError, "not both", dict(valid=[sample], valid_fraction=0.1)),
        (UsageError, "`valid_fraction` .*1.5", dict(valid_fraction=1.5)),
        (UsageError, "`dedup` .*only once", dict(paths=["-"], dedup=True)),
    ]
    for kind, facts, options in cases:
        with pytest.raises(kind, match=facts):
            prepare(**{"paths": [sample], "tokenizer": bert, "out": tmp_path / "x", **options})


def test_shards_that_are_damaged_say_so(tmp_path: Path, sample: Path, bert: Path) -> None:
    out = tmp_path / "shards"
    prepare([sample], tokenizer=bert, out=out, valid_fraction=0)
    with pytest.raises(InputError, match="'valid'"):
        Shards(out, "valid")
    with pytest.raises(IndexError):
        Shards(out)[10**6]
    tokens = out / "train-00000.tokens.npy"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    with pytest.raises(InputError, match=r"tokens\.npy is damaged"):
        Shards(out).verify()
    tokens.write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"tokens\.npy is missing or damaged"):
        Shards(out)[0]
    (out / "index.json").write_text("[]")
    with pytest.raises(InputError, match="is not an index of shards"):
        Shards(out)
    with pytest.raises(InputError, match="holds no shards"):
        Shards(tmp_path)


@pytest.mark.nightly
def test_a_line_of_100_megabytes_in_bounded_memory(tmp_path: Path, bert: Path) -> None:
    text = tmp_path / "text8.txt"
    words = " ".join(SAMPLE.split())
    text.write_text((words + " ") * (100_000_000 // len(words)), encoding="utf-8")
    # A process's own ru_maxrss counts the memory of whoever started it; VmHWM does not.
    code = (
        "import re, resource, sys; from firth.jobs.preparation import prepare; "
        "p = prepare([sys.argv[1]], tokenizer=sys.argv[2], out=sys.argv[3], valid_fraction=0); "
        "own = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]; "
        "print(p.report.words, own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    arguments = [sys.executable, "-c", code, str(text), str(bert), str(tmp_path / "shards")]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    counted, parent, child = map(int, done.stdout.split())
    assert counted == len(words.split()) * (100_000_000 // len(words))
    assert (parent + 2 * child) / 1024 < 1000  # megabytes, with two workers at their worst


def test_reading_options_reach_the_shards(tmp_path: Path, sample: Path, bert: Path) -> None:
    lines = ReadOptions(documents="line")
    prepare([sample], tokenizer=bert, out=tmp_path / "x", reading=lines, valid_fraction=0)
    assert len(Shards(tmp_path / "x")) == len([x for x in SAMPLE.splitlines() if x.strip()])
