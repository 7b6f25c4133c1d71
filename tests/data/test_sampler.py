"""The sampler: complete epochs in random order, and resuming from a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from firth.data.sampler import Sampler, SamplerPosition, in_order
from firth.data.shards import Shards
from firth.jobs.preparation import prepare
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import InputError, UsageError
from tests.conftest import SAMPLE


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Prepare the sample in several shards, with sentinels in the vocabulary."""
    folder = tmp_path_factory.mktemp("batches")
    text = folder / "sample.txt"
    text.write_text(SAMPLE * 3, encoding="utf-8")
    tokenizer, _ = train_tokenizer([text], kind="wordpiece", vocab_size=450, sentinels=30)
    tokenizer.save(folder / "tokenizer")
    out = folder / "shards"
    prepare([text], tokenizer=folder / "tokenizer", out=out, valid_fraction=0, shard_tokens=700)
    loaded = Shards(out)
    assert len(loaded.entries) > 3
    return loaded


def test_epochs_have_every_token_once_in_a_new_order(shards: Shards) -> None:
    sampler = Sampler(shards, seed=3)
    position = SamplerPosition()
    orders: list[list[int]] = []
    for epoch in range(2):
        counts = [np.zeros(length, dtype=int) for length in shards.lengths]
        order: list[int] = []
        while position.epoch == epoch and position.token < shards.tokens:
            left = shards.tokens - position.token
            # The last batch has the remaining tokens.
            spans, position = sampler.take(position, length=50, tokens=min(64, left), frame=0)
            columns = zip(spans.documents, spans.starts, spans.ends, strict=True)
            for document, start, end in columns:
                counts[document][start:end] += 1
                order.append(int(document))
        assert all((count == 1).all() for count in counts)
        orders.append(list(dict.fromkeys(order)))
        position = SamplerPosition(epoch + 1, 0)
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def test_spans_have_the_tokens_of_their_documents(shards: Shards) -> None:
    sampler = Sampler(shards)
    spans, _ = sampler.take(SamplerPosition(), length=40, tokens=2000)
    packed = sampler.gather(spans, first=2, last=3)
    assert packed.lengths.max() <= 40
    assert 2000 - 16 < len(packed.tokens) <= 2000
    columns = zip(spans.documents, spans.starts, spans.ends, packed.rows(), strict=True)
    for document, start, end, row in columns:
        assert row.tolist() == [2, *shards[int(document)][start:end], 3]


def test_special_tokens_at_document_ends_only(shards: Shards) -> None:
    sampler = Sampler(shards)
    spans, _ = sampler.take(SamplerPosition(), length=40, tokens=2000)
    packed = sampler.gather(spans, first=2, last=3, first_everywhere=False, last_everywhere=False)
    for i, row in enumerate(packed.rows()):
        whole = shards.lengths[spans.documents[i]]
        assert (row[0] == 2) == (spans.starts[i] == 0)
        assert (row[-1] == 3) == (spans.ends[i] == whole)


def test_sentence_starts_of_spans(shards: Shards) -> None:
    sampler = Sampler(shards)
    spans, _ = sampler.take(SamplerPosition(), length=60, tokens=1000, frame=0)
    packed = sampler.gather(spans)
    starts = set(sampler.sentence_starts(spans).tolist())
    assert set(packed.starts[:-1].tolist()) <= starts
    tokenizer = Tokenizer.load(shards.path)
    dots = {tokenizer.encode(mark)[0] for mark in ".?!"}
    for start in starts - set(packed.starts.tolist()):
        before = packed.tokens[max(0, start - 3) : start].tolist()
        assert dots & set(before), "a sentence begins after the end of another"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_depend_on_the_position_only(shards: Shards, name: str) -> None:
    objective, vocabulary = OBJECTIVES[name], Tokenizer.load(shards.path).vocabulary

    def batches(sampler: Sampler, position: SamplerPosition, sizes: list[int]) -> Iterator[object]:
        for tokens in sizes:  # sizes and lengths change on the way
            drawn, position = objective.draw(sampler, position, length=tokens // 8, tokens=tokens)
            batch = objective.build(sampler, drawn, vocabulary, length=tokens // 8)
            targets = [prediction.targets.tolist() for prediction in batch.predictions.values()]
            yield position, batch.inputs.tokens.tolist(), targets

    sizes = [256, 256, 512, 384, 640, 256] * 3
    whole = list(batches(Sampler(shards, seed=5), SamplerPosition(), sizes))
    assert whole[-1][0].epoch >= 1  # type: ignore[index]
    for stop in (1, 7, 15):
        position = whole[stop - 1][0]  # type: ignore[index]
        assert list(batches(Sampler(shards, seed=5), position, sizes[stop:])) == whole[stop:]
    other = list(batches(Sampler(shards, seed=6), SamplerPosition(), sizes[:2]))
    assert other != whole[:2]


def test_batches_do_not_depend_on_the_number_of_workers(shards: Shards) -> None:
    objective, vocabulary = OBJECTIVES["masked"], Tokenizer.load(shards.path).vocabulary

    def run(workers: int) -> list[list[int]]:
        sampler = Sampler(shards)

        def jobs() -> Iterator[Callable[[], list[int]]]:
            position = SamplerPosition()
            for _ in range(30):
                drawn, position = objective.draw(sampler, position, length=64, tokens=512)
                yield partial(build, drawn)

        def build(drawn: object) -> list[int]:
            return objective.build(sampler, drawn, vocabulary).inputs.tokens.tolist()

        return list(in_order(jobs(), workers))

    assert run(1) == run(2) == run(5)


def test_half_of_the_pairs_are_consecutive(shards: Shards) -> None:
    sampler = Sampler(shards, seed=1)
    position = SamplerPosition()
    consecutive = pairs = 0
    for _ in range(60):
        (first, second, follows), position = sampler.take_pairs(
            position, length=64, tokens=640, random_half=True
        )
        same = first.documents == second.documents
        np.testing.assert_array_equal(same, follows)
        np.testing.assert_array_equal(first.ends[follows], second.starts[follows])
        for document, start, end in zip(first.documents, first.starts, first.ends, strict=True):
            bounds = shards.sentences(int(document))
            assert start in bounds
            assert end in bounds
        consecutive += follows.sum()
        pairs += len(follows)
    assert pairs > 400
    assert consecutive / pairs == pytest.approx(0.5, abs=0.12)  # 5 standard deviations
    assert position.epoch >= 1


def test_pairs_for_sentence_order_are_consecutive(shards: Shards) -> None:
    (first, second, follows), _ = Sampler(shards).take_pairs(
        SamplerPosition(), length=64, tokens=2000, random_half=False
    )
    assert follows.all()
    np.testing.assert_array_equal(first.documents, second.documents)
    np.testing.assert_array_equal(first.ends, second.starts)


def prepared(folder: Path, text: str, shards: Shards) -> Shards:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text(text)
    out = folder / "shards"
    prepare([folder / "a.txt"], tokenizer=shards.path, out=out, valid_fraction=0)
    return Shards(out)


def test_text_without_pairs_is_an_error(tmp_path: Path, shards: Shards) -> None:
    one = Sampler(prepared(tmp_path / "one", "The sea. The wind.", shards))
    with pytest.raises(InputError, match="needs two documents"):
        one.take_pairs(SamplerPosition(), length=64, tokens=512, random_half=True)
    lone = Sampler(prepared(tmp_path / "lone", "The sea.\n\nThe wind.", shards))
    with pytest.raises(InputError, match=r"No document .* has two sentences"):
        lone.take_pairs(SamplerPosition(), length=64, tokens=512, random_half=False)


def test_too_short_lengths_are_an_error(shards: Shards) -> None:
    sampler = Sampler(shards)
    with pytest.raises(UsageError, match="length of 1 has no room"):
        sampler.take(SamplerPosition(), length=1, tokens=512)
    with pytest.raises(UsageError, match="length of 2 has no room"):
        sampler.take(SamplerPosition(), length=32, tokens=2)
    with pytest.raises(UsageError, match="at least 5, not 4"):
        sampler.take_pairs(SamplerPosition(), length=4, tokens=512, random_half=False)


def test_documents_of_one_token(tmp_path: Path, shards: Shards) -> None:
    tiny = prepared(tmp_path, "a\n\nthe\n\na boat and a sea of stories", shards)
    vocabulary = Tokenizer.load(shards.path).vocabulary
    for name, objective in OBJECTIVES.items():
        if name in ("masked-nsp", "masked-sop"):
            continue
        drawn, _ = objective.draw(Sampler(tiny), SamplerPosition(), length=32, tokens=256)
        batch = objective.build(Sampler(tiny), drawn, vocabulary, length=32)
        assert sum(len(p.targets) for p in batch.predictions.values()) > 0


def test_spans_of_full_sentences(shards: Shards) -> None:
    sampler, position = Sampler(shards, seed=3, full_sentences=True), SamplerPosition()
    counts = [np.zeros(length, dtype=int) for length in shards.lengths]
    divided = 0
    while position.epoch == 0:
        spans, position = sampler.take(position, length=40, tokens=200)
        assert (spans.ends - spans.starts + 2).sum() <= 200
        for document, start, end in zip(spans.documents, spans.starts, spans.ends, strict=True):
            if spans.keys is not None and position.epoch == 0:
                counts[document][start:end] += 1
            bounds = set(shards.sentences(int(document)).tolist())
            inside = bounds & set(range(start + 1, end))
            if end not in bounds:  # only a sentence that is too long is divided
                divided += 1
                assert not inside
                assert end - start == 38
    assert divided
    order = sampler.order(0)[:-20]  # the last batch of the epoch has documents of the next
    assert all((counts[document] == 1).all() for document in order)


def test_full_sentences_of_a_decoder_begin_with_bos(shards: Shards) -> None:
    vocabulary = Tokenizer.load(shards.path).vocabulary
    row, first = OBJECTIVES["causal"], vocabulary.id("bos", "cls")
    begins = {}
    for full in (False, True):
        sampler = Sampler(shards, full_sentences=full)
        spans, _ = row.draw(sampler, SamplerPosition(), length=40, tokens=2000)
        tokens = row.build(sampler, spans, vocabulary).inputs
        begins[full] = (tokens.tokens[tokens.starts[:-1]] == first).tolist()
        ends = tokens.tokens[tokens.starts[1:] - 1] == vocabulary.id("eos", "sep")
        assert (ends == (spans.ends == shards.lengths[spans.documents])).all()
        assert (~ends).any()
    assert all(begins[True])
    assert not all(begins[False])
