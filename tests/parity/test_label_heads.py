"""Label heads compute what `transformers` computes, and load there again unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from firth.formats.huggingface.directory import FAMILIES, read_network, write_network
from firth.model import load
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.special_tokens import with_special_tokens
from firth.tokenizers.trainer import train_tokenizer
from tests.conftest import SAMPLE
from tests.nightly import mostly_nightly
from tests.parity.reference_models import VOCABULARY as V
from tests.parity.reference_models import randomize

# DeBERTa's code there is compiled in a way that torch calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

LENGTHS = (9, 4, 6)
BERT = dict(
    vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40
)
LLAMA = BERT | dict(num_key_value_heads=1, head_dim=12, pad_token_id=0)
GPT = dict(vocab_size=V, n_embd=24, n_layer=2, n_head=2, n_positions=64, pad_token_id=0)
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT | dict(pad_token_id=1),
    "xlm-roberta": BERT | dict(pad_token_id=1),
    "electra": BERT | dict(embedding_size=16),
    "distilbert": dict(vocab_size=V, dim=24, n_layers=2, n_heads=2, hidden_dim=40),
    "albert": BERT | dict(embedding_size=16),
    "rembert": BERT | dict(input_embedding_size=16, output_embedding_size=20),
    "deberta-v2": BERT
    | dict(relative_attention=True, share_att_key=True, norm_rel_ebd="layer_norm")
    | dict(pos_att_type=["p2c", "c2p"], position_buckets=8, type_vocab_size=0),
    "mobilebert": BERT
    | dict(embedding_size=16, intra_bottleneck_size=12, num_feedforward_networks=2),
    "mpnet": BERT,
    "xlm": dict(vocab_size=V, emb_dim=24, n_layers=2, n_heads=2, pad_token_id=2),
    "modernbert": BERT | dict(pad_token_id=0, classifier_pooling="mean"),
    "modernbert-decoder": BERT | dict(pad_token_id=0),
    "openai-gpt": GPT,
    "gpt2": GPT,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": {name: value for name, value in LLAMA.items() if name != "head_dim"},
    "qwen3": LLAMA,
    "gemma3_text": LLAMA,
}
CLASSES = [
    (family.name, head.cls, name)
    for family in FAMILIES
    for name, head in family.task_heads.items()
    if name != "choose" or family.name in ("bert", "distilbert", "electra")
]
CLASSES = list(dict.fromkeys(CLASSES))
# All heads of BERT, and one head of each other family.
OFTEN = [row for row in CLASSES if row[0] == "bert"]
OFTEN += {row[0]: row for row in CLASSES if row[0] != "bert"}.values()
LABELS = ["bad", "fair", "good"]


def reference(family: str, name: str) -> Any:
    """Build the reference with random weights."""
    made = getattr(transformers, name)
    bare = name.endswith(("QuestionAnswering", "MultipleChoice"))
    labels = {} if bare else {"id2label": dict(enumerate(LABELS))}
    return randomize(made(made.config_class(**CONFIGS[family], **labels)), std=0.15)


@torch.no_grad()
def theirs(network: Any, rows: list[Tensor], head: str) -> Tensor:
    """Return the reference's logits of each sequence, or of each token."""
    found = []
    for row in rows:
        if head == "choose":
            found.append(network(row[None, None]).logits)
            continue
        said = network(row[None])
        if head == "span":
            found.append(torch.stack([said.start_logits[0], said.end_logits[0]], dim=-1))
        else:
            found.append(said.logits[0] if head == "tag" else said.logits)
    return torch.cat(found)


@torch.no_grad()
def ours(network: Transformer, rows: list[Tensor]) -> Tensor:
    lengths = [len(row) for row in rows]
    mask = Mask(lengths) if network.config.architecture == "encoder" else Mask.causal(lengths)
    hidden = network.eval()(torch.cat(rows), mask)
    return network.label_logits(hidden, mask.starts)


@pytest.mark.parametrize(
    ("family", "name", "head"),
    mostly_nightly(CLASSES, always=OFTEN),
    ids=[row[1] for row in CLASSES],
)
def test_logits_and_saved_weights_match(family: str, name: str, head: str, tmp_path: Path) -> None:
    network = reference(family, name)
    network.save_pretrained(tmp_path / "theirs")
    read = read_network(tmp_path / "theirs")
    assert read.config.label_head == head
    if head in ("classify", "tag"):
        assert list(read.config.labels) == LABELS
    torch.manual_seed(1)
    rows = [torch.randint(3, V, (length,)) for length in LENGTHS]
    wanted = theirs(network, rows, head)
    assert wanted.abs().max() > 0.01
    torch.testing.assert_close(ours(read, rows), wanted, atol=2e-5, rtol=1e-4)

    assert write_network(read, tmp_path / "ours") == family
    again, said = type(network).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    for key, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    assert again.config.id2label == network.config.id2label


def test_a_classifier_of_transformers_is_loaded(tmp_path: Path) -> None:
    """The class and labels in config.json name the task; also in older files."""
    network = reference("roberta", "RobertaForSequenceClassification")
    network.config.problem_type = "multi_label_classification"
    network.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.task is not None
    found = (model.task.task, model.task.labels, model.task.label_type)
    assert found == ("classify", tuple(LABELS), "many")


@pytest.mark.parametrize("begins", [False, True])
@torch.no_grad()
def test_a_decoder_of_transformers_classifies_what_its_tokenizer_gives(
    begins: bool, tmp_path: Path
) -> None:
    """Firth's own decoders read a text between BOS and EOS."""
    tokenizer, _ = train_tokenizer(SAMPLE.splitlines(), kind="bpe", vocab_size=300, workers=1)
    ids: dict[str, Any] = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    sizes: dict[str, Any] = dict(vocab_size=300, n_embd=16, n_layer=2, n_head=2, num_labels=3)
    torch.manual_seed(0)
    network = transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(**sizes, **ids, initializer_range=0.5)
    ).eval()
    network.save_pretrained(tmp_path)
    with_special_tokens(tokenizer, [0] if begins else [], []).save(tmp_path)
    model, text = load(tmp_path), "the sea was calm"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, return_tensors="pt")
    wanted = network(**theirs).logits[0].softmax(-1).tolist()
    for loaded in (model, _saved(model, tmp_path / "saved")):
        scores = loaded.predict(text)["scores"]
        assert list(scores.values()) == pytest.approx(wanted, rel=1e-4)
        assert len(loaded.tokens(text)) == theirs["input_ids"].shape[1]


def _saved(model: Any, folder: Path) -> Any:
    model.save(folder)
    return load(folder)
