"""A directory without `tokenizer.json` has the ids that `transformers` gives, for each family."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from firth.formats.tokenizers.families import BY_CLASS, BY_MODEL
from firth.formats.tokenizers.loading import load_tokenizer
from firth.tokenizers.tokenizer import ROLES, Tokenizer
from tests.conftest import SAMPLE
from tests.nightly import mostly_nightly

sentencepiece = pytest.importorskip("sentencepiece")

PLAIN = [
    "",
    " ",
    "  leading and  double spaces ",
    "Héllo naïve ọ̀rọ̀ Yorùbá ɓera ẹ̀kọ́",
    "東京タワー 😀👍🏽 \u200dZWJ 你好，世界。 次",
    "def f(x):\n\treturn x**2  # comment\n",
    "taaaaasty COVID-19 Transformerify unhappiness, 3,000 ``quotes'' 3.5 (a-b)",
    "ﬁne ½ Ａｂｃ… don't I'll \u00a0nbsp\u3000wide",
    "unseen ᚠᛇᚻ ☃snow ☃☃ نص हिन्दी",
    "\n",
    "x" * 120,
    SAMPLE,
]
SPECIAL = [
    "two lines\r\nof Windows\r\n",
    "inside: [MASK] <mask> </s> <|endoftext|> <extra_id_0> [CLS] <pad> <unk> [UNK]x<s>y en_XX",
    "<special1> and <special9>, [NEW] and [new] and [Boat] and [boat] and <0x0A>",
    "a<mask>b",
    "a <mask> b [MASK] c",
    "▁metaspace ▁▁x",
    "[MASK]",
]
HARD = PLAIN + SPECIAL
SEEN = [text for text in [*SAMPLE.split("\n"), *PLAIN[:-1]] if "unseen" not in text]
TEXT = [text for text in SEEN if text.strip()]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def wordpiece(folder: Path, tokens: list[str]) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(TEXT, trainers.WordPieceTrainer(**_trainer(400, tokens)))
    backend.model.save(str(folder))


def byte_level(folder: Path, tokens: list[str]) -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **_trainer(500, tokens))
    backend.train_from_iterator(TEXT, trainer)
    backend.model.save(str(folder))


def word_pairs(folder: Path, tokens: list[str]) -> None:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(end_of_word_suffix="</w>", **_trainer(500, tokens))
    backend.train_from_iterator(TEXT, trainer)
    backend.model.save(str(folder))


def _trainer(size: int, tokens: list[str]) -> dict[str, Any]:
    return {"vocab_size": size, "special_tokens": tokens, "show_progress": False}


def pieces(file: Path, **options: Any) -> None:
    """Train a model with the `sentencepiece` library itself."""
    usual = dict(model_type="unigram", vocab_size=300, hard_vocab_limit=False)
    quiet = dict(minloglevel=2, num_threads=1, sentence_iterator=iter(TEXT))
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(model_writer=made, **usual | quiet | options)
    file.write_bytes(made.getvalue())


T5 = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
LLAMA = dict(model_type="bpe", vocab_size=700, byte_fallback=True)
LLAMA |= dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
GEMMA = LLAMA | dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>")
GEMMA |= dict(add_dummy_prefix=False, user_defined_symbols=["<mask>", "<turn>", "\n", "▁▁"])
ALBERT = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, user_defined_symbols=["(", ")", "-", "."])
ALBERT |= dict(control_symbols=["[CLS]", "[SEP]", "[MASK]"])
DEBERTA = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]")
DEBERTA |= dict(eos_piece="[SEP]", unk_piece="[UNK]")
XLM_TOKENS = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]


@dataclass(frozen=True)
class Case:
    """A directory, and the class that reads it."""

    model: str  # the model_type
    reference: str  # the tokenizer class of `transformers`
    make: Callable[[Path], None]
    files: dict[str, Any] = field(default_factory=dict)  # further JSON files

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        self.make(folder)
        files = {"config.json": {"model_type": self.model}} | self.files
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return folder

    def with_(self, **files: Any) -> Case:
        names = {name.replace("_json", ".json"): content for name, content in files.items()}
        return Case(self.model, self.reference, self.make, names)

    def settings(self, **settings: Any) -> Case:
        return self.with_(tokenizer_config_json=settings)


MPNET = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
CASES = {
    "bert": Case("bert", "BertTokenizer", lambda f: wordpiece(f, BERT)),
    "electra": Case("electra", "ElectraTokenizer", lambda f: wordpiece(f, BERT)),
    "mobilebert": Case("mobilebert", "MobileBertTokenizer", lambda f: wordpiece(f, BERT)),
    "distilbert": Case("distilbert", "DistilBertTokenizer", lambda f: wordpiece(f, BERT)),
    "mpnet": Case("mpnet", "MPNetTokenizer", lambda f: wordpiece(f, MPNET)),
    "gpt2": Case("gpt2", "GPT2Tokenizer", lambda f: byte_level(f, ["<|endoftext|>"])),
    "roberta": Case("roberta", "RobertaTokenizer", lambda f: byte_level(f, ROBERTA)),
    "bart": Case("bart", "BartTokenizer", lambda f: byte_level(f, ROBERTA)),
    "deberta": Case("deberta", "DebertaTokenizer", lambda f: byte_level(f, BERT)),
    "qwen2": Case("qwen2", "Qwen2Tokenizer", lambda f: byte_level(f, ["<|endoftext|>"])),
    "qwen3": Case("qwen3", "Qwen2Tokenizer", lambda f: byte_level(f, ["<|endoftext|>"])),
    "openai-gpt": Case("openai-gpt", "OpenAIGPTTokenizer", lambda f: word_pairs(f, ["<unk>"])),
    "t5": Case("t5", "T5Tokenizer", lambda f: pieces(f / "spiece.model", **T5)),
    "mt5": Case(
        "mt5",
        "T5Tokenizer",
        lambda f: pieces(f / "spiece.model", byte_fallback=True, **T5 | {"vocab_size": 700}),
    ),
    "albert": Case("albert", "AlbertTokenizer", lambda f: pieces(f / "spiece.model", **ALBERT)),
    "deberta-v2": Case(
        "deberta-v2", "DebertaV2Tokenizer", lambda f: pieces(f / "spm.model", **DEBERTA)
    ),
    "xlm-roberta": Case(
        "xlm-roberta", "XLMRobertaTokenizer", lambda f: pieces(f / "sentencepiece.bpe.model")
    ),
    "mbart": Case("mbart", "MBartTokenizer", lambda f: pieces(f / "sentencepiece.bpe.model")),
    "llama": Case("llama", "LlamaTokenizer", lambda f: pieces(f / "tokenizer.model", **LLAMA)),
    "mistral": Case("mistral", "LlamaTokenizer", lambda f: pieces(f / "tokenizer.model", **LLAMA)),
    "gemma": Case(
        "gemma3_text", "GemmaTokenizer", lambda f: pieces(f / "tokenizer.model", **GEMMA)
    ),
    "xlm": Case("xlm", "XLMTokenizer", lambda f: word_pairs(f, XLM_TOKENS)),
}
NEW = {"content": "[NEW]", "lstrip": False, "rstrip": False, "single_word": False}
SPACED = {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False}
SETTINGS = {
    "cased without accents": CASES["bert"].settings(do_lower_case=False, strip_accents=True),
    "Chinese characters are letters": CASES["bert"].settings(tokenize_chinese_chars=False),
    "no mask in the vocabulary": Case("bert", "BertTokenizer", lambda f: wordpiece(f, BERT[:4])),
    "other roles": Case(
        "bert", "BertTokenizer", lambda f: wordpiece(f, ["<pad>", "<unk>", "<s>", "</s>"])
    ).settings(pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>"),
    "tokens were added": CASES["bert"].with_(
        added_tokens_json={"[NEW]": 400, "[Other]": 401},
        tokenizer_config_json={"additional_special_tokens": ["[NEW]"]},
        special_tokens_map_json={"mask_token": "[MASK]"},
    ),
    "listed added tokens": CASES["bert"].settings(
        added_tokens_decoder={
            "400": {**NEW, "normalized": False, "special": True},
            "401": {**NEW, "content": "[Boat]", "normalized": True, "special": False},
        }
    ),
    "a mask with its space": CASES["roberta"].with_(
        special_tokens_map_json={"mask_token": SPACED | {"single_word": False}}
    ),
    "roberta with a space": CASES["roberta"].settings(add_prefix_space=True),
    "gpt2 with a begin": CASES["gpt2"].settings(add_bos_token=True, pad_token="[PAD]"),
    "gpt2 without its token": Case("gpt2", "GPT2Tokenizer", lambda f: byte_level(f, [])),
    "sentinels listed": CASES["t5"].settings(
        extra_ids=3, additional_special_tokens=[f"<extra_id_{i}>" for i in range(3)]
    ),
    "albert cased": CASES["albert"].settings(do_lower_case=False, keep_accents=True),
    "deberta lower": CASES["deberta-v2"].settings(do_lower_case=True, split_by_punct=True),
    "llama with begin and end": CASES["llama"].settings(add_bos_token=True, add_eos_token=True),
    "llama as it was": CASES["llama"].settings(legacy=True, add_bos_token=True),
    "llama without a space": CASES["llama"].settings(add_prefix_space=False),
    "llama with padding": CASES["llama"].with_(
        added_tokens_json={"<pad>": 700}, special_tokens_map_json={"pad_token": "<pad>"}
    ),
    "mbart in Romanian": CASES["mbart"].settings(src_lang="ro_RO"),
    "xlm with a token more": CASES["xlm"].with_(
        added_tokens_json={"[NEW]": 500}, special_tokens_map_json={"pad_token": "[NEW]"}
    ),
    "xlm with capitals": CASES["xlm"].settings(do_lowercase_and_remove_accent=False),
}


def needed(case: Case) -> None:
    if case.model == "xlm":
        pytest.importorskip("sacremoses")


@pytest.mark.parametrize("name", mostly_nightly([*CASES, *SETTINGS], always=CASES))
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    case = {**CASES, **SETTINGS}[name]
    needed(case)
    folder = case.write(tmp_path / "theirs")
    reference = getattr(transformers, case.reference).from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer) == len(reference)
    for role in ROLES:
        assert tokenizer.special_tokens.get(role) == getattr(reference, f"{role}_token")
        assert tokenizer.special_ids.get(role) == getattr(reference, f"{role}_token_id")
    for text in HARD:
        ids = tokenizer.encode(text, specials=True)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == reference.decode(ids)
        skipped = tokenizer.decode(ids, skip_specials=True)
        assert skipped == reference.decode(ids, skip_special_tokens=True)
    assert_saved_for_transformers(tokenizer, case.model, tmp_path / "ours")


def assert_saved_for_transformers(tokenizer: Tokenizer, model: str, folder: Path) -> None:
    """Save a tokenizer, with and without the model's own config.json beside it."""
    tokenizer.save(folder)
    again = load_tokenizer(folder)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.special_ids == tokenizer.special_ids
    for with_config in (False, True):
        if with_config:
            (folder / "config.json").write_text(json.dumps({"model_type": model}))
        reference = AutoTokenizer.from_pretrained(folder)
        for text in HARD:
            ids = tokenizer.encode(text, specials=True)
            assert reference(text)["input_ids"] == again.encode(text, specials=True) == ids
            assert reference.decode(ids) == tokenizer.decode(ids)
        for role, id in tokenizer.special_ids.items():
            assert getattr(reference, f"{role}_token_id") == id


def test_every_family_is_tested() -> None:
    models = {case.model for case in CASES.values()} | {"rembert"}
    assert {id(BY_MODEL[model]) for model in models} == {id(one) for one in BY_MODEL.values()}
    assert {id(one) for one in BY_CLASS.values()} == {id(one) for one in BY_MODEL.values()}


def test_rembert(tmp_path: Path) -> None:
    """`transformers` 5.22 forgets what its own class puts around a text; the text is the same."""
    options = T5 | {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    case = Case(
        "rembert", "RemBertTokenizer", lambda f: pieces(f / "sentencepiece.model", **options)
    )
    reference = transformers.RemBertTokenizer.from_pretrained(case.write(tmp_path / "theirs"))
    tokenizer = load_tokenizer(tmp_path / "theirs")
    for text in HARD:
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == reference.decode(ids)
        framed = [reference.cls_token_id, *ids, reference.sep_token_id]
        assert tokenizer.encode(text, specials=True) == framed


@pytest.mark.parametrize("name", ["bert", "roberta", "t5", "xlm-roberta", "deberta-v2", "xlm"])
def test_pairs(tmp_path: Path, name: str) -> None:
    needed(CASES[name])
    folder = CASES[name].write(tmp_path / "theirs")
    reference = getattr(transformers, CASES[name].reference).from_pretrained(folder)
    encoding = load_tokenizer(folder).backend.encode("the old boat", "the sea")
    expected = reference("the old boat", "the sea", return_token_type_ids=True)
    assert encoding.ids == expected["input_ids"]
    if name in ("bert", "deberta-v2"):
        assert encoding.type_ids == expected["token_type_ids"]
    if name != "xlm":
        whole = reference("the old boat", "the sea", return_offsets_mapping=True)
        assert encoding.offsets == whole["offset_mapping"]


UNIGRAM = dict(vocab_size=300)
OWN = {
    "unigram": UNIGRAM,
    "unigram with bytes": UNIGRAM | dict(byte_fallback=True, vocab_size=700),
    "spaces are kept": UNIGRAM | dict(remove_extra_whitespaces=False),
    "nothing is normalised": UNIGRAM | dict(normalization_rule_name="identity"),
    "lower case": UNIGRAM | dict(normalization_rule_name="nmt_nfkc_cf"),
    "no space before": UNIGRAM | dict(add_dummy_prefix=False),
    "merges": dict(model_type="bpe", vocab_size=500),
    "merges with bytes": LLAMA,
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_a_file_alone_is_read_as_sentencepiece_reads_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    file = tmp_path / "tokenizer.model"
    pieces(file, **options)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) == reference.get_piece_size()
    assert tokenizer.special_ids == {"unk": 0, "bos": 1, "eos": 2}
    for text in PLAIN:
        ids = reference.encode(text)
        assert tokenizer.encode(text) == tokenizer.encode(text, specials=True) == ids, text
    for text in [SAMPLE, "the old boat"]:
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(reference.encode(text))
