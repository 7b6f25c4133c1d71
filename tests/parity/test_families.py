"""Every family computes what `transformers` computes, and is saved so that `transformers` loads it
without a missing, unexpected or changed weight.

The reference is a tiny model with random weights. It gets padded rows, ours a packed batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from firth.formats.huggingface.directory import read_network, write_network
from firth.inference.logit_lens import logit_lens
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states
from firth.models.transformer import Transformer, count_parameters
from tests.nightly import mostly_nightly
from tests.parity.reference_models import (
    DEBERTA,
    MODERN,
    VOCABULARY,
    WORDS,
    assert_close,
    assert_same_attention,
    bart,
    bert,
    forward_ours,
    forward_theirs,
    llama,
    randomize,
    t5,
)

# DeBERTa's implementation there uses the deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@dataclass(frozen=True)
class Row:
    """A class of `transformers` and the values of its config."""

    name: str
    what: str
    config: dict[str, Any]
    change: Callable[[Any], None] = field(default=lambda reference: None)

    @property
    def std(self) -> float:
        """Of the weights: large enough to matter, small where no norm bounds the hidden states, or
        where attention scores have no scale."""
        return 0.15 if self.name.startswith(("MobileBert", "T5", "MT5")) else 0.25

    @property
    def id(self) -> str:
        return f"{self.name}-{self.what}"

    @property
    def is_double(self) -> bool:
        """Whether the reference computes in float64 all the way (not with rotary angles, …)."""
        rotary = ("Llama", "Mistral", "Qwen", "Gemma", "ModernBert")
        single = (*rotary, "T5", "MT5", "DebertaV2", "XLMWith", "XLMModel")
        return not self.name.startswith(single)

    def reference(self, dtype: torch.dtype = torch.float32) -> Any:
        """Build the reference with random weights, norms and biases too."""
        made = getattr(transformers, self.name)
        reference = made(made.config_class(**self.config)).to(dtype)
        self.change(reference)
        return randomize(reference, self.std)


def untie(reference: Any) -> None:
    """Give a model an output matrix of its own, as T5 v1.1 and mT5 have it."""
    reference.lm_head.weight = nn.Parameter(torch.empty_like(reference.lm_head.weight))


def one_bias(path: str) -> Callable[[Any], None]:
    """In an untied head, `transformers` has a second bias that it never uses."""

    def change(reference: Any) -> None:
        head = reference.get_submodule(path)
        head.decoder.bias = head.bias

    return change


TIED, UNTIED = dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)
ODD = dict(hidden_size=30, num_attention_heads=6)
GPT = dict(vocab_size=VOCABULARY, n_embd=24, n_layer=3, n_head=4, n_positions=20)
ENDS = dict(bos_token_id=1, eos_token_id=1)
DISTIL = dict(
    vocab_size=VOCABULARY, dim=24, n_layers=3, n_heads=4, hidden_dim=40, max_position_embeddings=20
)
MOBILE = dict(embedding_size=8, intra_bottleneck_size=12, num_feedforward_networks=3)
XLM = dict(vocab_size=VOCABULARY, emb_dim=24, n_layers=3, n_heads=4, max_position_embeddings=20)
BIASES = dict(norm_bias=True, classifier_bias=True)
WINDOWS = dict(use_sliding_window=True, sliding_window=4)
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GATED = dict(feed_forward_proj="gated-gelu")
BUCKETS = dict(position_buckets=16)
FEW = dict(relative_attention_num_buckets=8, relative_attention_max_distance=9)

# The sequences are longer than the original contexts; some frequencies change, others do not.
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=0.3)
LLAMA3 |= dict(high_freq_factor=1.5, original_max_position_embeddings=12)
YARN: dict[str, Any] = dict(rope_type="yarn", rope_theta=100.0, factor=3.0, beta_fast=1.2)
YARN |= dict(beta_slow=0.1, original_max_position_embeddings=8)
MSCALE = dict(truncate=False, mscale=2.0, mscale_all_dim=0.5)
LINEAR = dict(rope_type="linear", factor=2.5)
TWO_ROPES = {
    "full_attention": dict(LINEAR, rope_theta=500.0),
    "sliding_attention": dict(rope_type="default", rope_theta=50.0),
}

ROWS = [
    Row("BertForMaskedLM", "eps", bert(layer_norm_eps=1e-3)),
    Row("BertForMaskedLM", "untied", bert(**UNTIED), one_bias("cls.predictions")),
    Row("BertForMaskedLM", "one-segment", bert(type_vocab_size=1)),
    Row("BertForPreTraining", "relu", bert(hidden_act="relu")),
    Row("BertForNextSentencePrediction", "plain", bert()),
    Row("BertModel", "odd-heads", bert() | ODD),
    Row("RobertaForMaskedLM", "one-segment", bert(type_vocab_size=1)),
    Row("RobertaForMaskedLM", "silu", bert(hidden_act="silu", pad_token_id=5)),  # head: gelu
    Row("RobertaForMaskedLM", "untied", bert(**UNTIED), one_bias("lm_head")),
    Row("RobertaModel", "odd-heads", bert(layer_norm_eps=1e-5) | ODD),
    Row("XLMRobertaForMaskedLM", "plain", bert(type_vocab_size=1, layer_norm_eps=1e-5)),
    Row("DistilBertForMaskedLM", "relu", DISTIL | dict(activation="relu")),
    Row("DistilBertForMaskedLM", "untied", DISTIL | UNTIED),
    Row("DistilBertModel", "sinusoidal", DISTIL | dict(sinusoidal_pos_embds=True)),
    Row("AlbertForPreTraining", "plain", bert(embedding_size=8)),
    Row("AlbertForMaskedLM", "wide-table", bert(embedding_size=24, layer_norm_eps=1e-3)),
    Row("AlbertForMaskedLM", "untied", bert(**UNTIED, embedding_size=8), one_bias("predictions")),
    Row("AlbertModel", "odd-heads", bert(embedding_size=7) | ODD),
    Row("RemBertForMaskedLM", "plain", bert(input_embedding_size=8, output_embedding_size=10)),
    Row("RemBertModel", "odd-heads", bert(input_embedding_size=8) | ODD),
    Row("ElectraForMaskedLM", "narrow-table", bert(embedding_size=8)),
    Row("ElectraForMaskedLM", "relu", bert(embedding_size=8, hidden_act="relu")),
    Row("ElectraForPreTraining", "relu", bert(embedding_size=24, hidden_act="relu")),
    Row("ElectraModel", "odd-heads", bert(embedding_size=30) | ODD),
    Row("DebertaV2ForMaskedLM", "v3", bert(**DEBERTA, position_biased_input=False)),
    Row("DebertaV2ForMaskedLM", "segments", bert(**DEBERTA | BUCKETS, type_vocab_size=2)),
    Row("DebertaV2Model", "odd-heads", bert(**DEBERTA | dict(max_relative_positions=-1)) | ODD),
    Row("MobileBertForPreTraining", "pooled", bert(**MOBILE)),
    Row("MobileBertForPreTraining", "unpooled", bert(**MOBILE, classifier_activation=False)),
    Row("MobileBertForNextSentencePrediction", "plain", bert(**MOBILE)),
    Row("MobileBertForMaskedLM", "gelu", bert(**MOBILE, hidden_act="gelu")),
    Row("MobileBertModel", "one-layer", bert(**MOBILE | dict(num_feedforward_networks=1))),
    Row("MPNetForMaskedLM", "relu", bert(hidden_act="relu", layer_norm_eps=1e-5)),
    Row("MPNetModel", "odd-heads", bert() | ODD),
    Row("XLMWithLMHeadModel", "plain", XLM),
    Row("XLMWithLMHeadModel", "relu", XLM | dict(gelu_activation=False, layer_norm_eps=1e-3)),
    Row("XLMModel", "languages", XLM | dict(n_langs=3, use_lang_emb=False)),
    Row("ModernBertForMaskedLM", "windows", bert(**MODERN, local_attention=6)),
    Row("ModernBertForMaskedLM", "biases", bert(**MODERN, **BIASES, classifier_activation="relu")),
    Row("ModernBertModel", "no-windows", bert(**MODERN, global_attn_every_n_layers=1)),
    Row("ModernBertDecoderForCausalLM", "windows", bert(**MODERN, local_attention=6)),
    Row("ModernBertDecoderModel", "no-windows", bert(**MODERN, global_attn_every_n_layers=1)),
    Row("OpenAIGPTLMHeadModel", "plain", GPT),
    Row("OpenAIGPTLMHeadModel", "silu", GPT | dict(afn="silu", layer_norm_epsilon=1e-3)),
    Row("OpenAIGPTModel", "odd-heads", GPT | dict(n_embd=30, n_head=6)),
    Row("GPT2LMHeadModel", "inner", GPT | ENDS | dict(n_inner=52)),
    Row("GPT2LMHeadModel", "untied", GPT | ENDS | UNTIED | dict(activation_function="relu")),
    Row("GPT2Model", "odd-heads", GPT | ENDS | dict(n_embd=30, n_head=6)),
    Row("LlamaForCausalLM", "grouped", llama()),
    Row("LlamaForCausalLM", "tied", llama(**TIED, rms_norm_eps=1e-3, rope_theta=500.0)),
    Row("LlamaModel", "wide", llama(head_dim=10, num_key_value_heads=1, hidden_act="gelu_new")),
    Row("LlamaForCausalLM", "llama3", llama(head_dim=16, rope_parameters=LLAMA3)),
    Row("LlamaForCausalLM", "linear", llama(rope_parameters=LINEAR)),
    Row("MistralForCausalLM", "yarn", llama(rope_parameters=YARN | MSCALE, sliding_window=4)),
    Row("Qwen2ForCausalLM", "yarn", llama(head_dim=16, rope_parameters=YARN)),
    Row("Qwen3ForCausalLM", "yarn", llama(rope_parameters=YARN | dict(attention_factor=1.5))),
    Row("Gemma3ForCausalLM", "scaled", llama(layer_types=MIXED, rope_parameters=TWO_ROPES)),
    Row("MistralForCausalLM", "window", llama(sliding_window=4)),
    Row("MistralForCausalLM", "no-window", llama(sliding_window=None)),
    Row("MistralModel", "wide-heads", llama(head_dim=10, sliding_window=6)),
    Row("Qwen2ForCausalLM", "plain", llama()),
    Row("Qwen2ForCausalLM", "windows", llama(**WINDOWS, max_window_layers=1)),
    Row("Qwen2Model", "tied", llama(**TIED)),
    Row("Qwen3ForCausalLM", "plain", llama(head_dim=8)),
    Row("Qwen3ForCausalLM", "windows", llama(head_dim=10, **TIED, **WINDOWS, layer_types=MIXED)),
    Row("Qwen3Model", "one-group", llama(head_dim=8, num_key_value_heads=1)),
    Row("Gemma3ForCausalLM", "windows", llama(head_dim=8, sliding_window=4, layer_types=MIXED)),
    Row("Gemma3ForCausalLM", "untied", llama(head_dim=8, **UNTIED)),
    Row("Gemma3TextModel", "scale", llama(head_dim=10, query_pre_attn_scalar=10)),
    Row("T5ForConditionalGeneration", "plain", t5(d_kv=5, num_decoder_layers=2, **FEW)),
    Row("T5ForConditionalGeneration", "gated", t5(**GATED, num_decoder_layers=4)),
    Row("T5ForConditionalGeneration", "flan", t5(**GATED, **UNTIED), untie),
    Row("T5ForConditionalGeneration", "unscaled", t5(**UNTIED)),
    Row("T5Model", "gated-silu", t5(feed_forward_proj="gated-silu")),
    Row("MT5ForConditionalGeneration", "plain", t5(num_decoder_layers=2, **FEW), untie),
    Row("MT5ForConditionalGeneration", "relu", t5(feed_forward_proj="relu")),
    Row("MT5Model", "tied", t5(d_kv=5)),
    Row("BartForConditionalGeneration", "scaled", bart(scale_embedding=True, num_decoder_layers=3)),
    Row("BartModel", "relu", bart(activation_function="relu")),
    Row("MBartForConditionalGeneration", "scaled", bart(scale_embedding=True)),
    Row("MBartModel", "layers", bart(encoder_layers=3)),
]


ONE_OF_EACH_CLASS = {row.name: row for row in reversed(ROWS)}.values()


@pytest.mark.parametrize(
    "row", mostly_nightly(ROWS, always=ONE_OF_EACH_CLASS), ids=lambda row: row.id
)
def test_computes_the_same_and_is_written_as_it_was(row: Row, tmp_path: Path) -> None:
    dtype, error = (torch.float64, 1e-9) if row.is_double else (torch.float32, 1e-5)
    reference = row.reference(dtype)
    reference.save_pretrained(tmp_path / "theirs")
    network = read_network(tmp_path / "theirs").eval()
    theirs = forward_theirs(reference)
    assert_close(forward_ours(network, reference.config), theirs, error)
    assert count_parameters(network) == sum(p.numel() for p in reference.parameters())
    if "language" in network.heads:
        assert_lens_ends_with_logits(network)

    family = write_network(network, tmp_path / "ours")
    assert family == reference.config.model_type
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(reference, again)
    assert_close(forward_theirs(again.eval()), theirs, 1e-6)  # the configuration is the same, too
    assert_same_attention(network, reference)


def assert_lens_ends_with_logits(network: Transformer) -> None:
    """The logit lens of the last layer gives the model's own logits."""
    ids, bidirectional = (5, 9, 3, 30), not network.config.has_decoder
    source = (7, 8, 4) if network.config.architecture == "encoder-decoder" else ()
    request = ScoringRequest(ids, (), (), source)
    lens = logit_lens(network, WORDS, request, bidirectional=bidirectional, top=VOCABULARY)
    with torch.no_grad():
        probs = network.logits(hidden_states(network, [request], bidirectional)).softmax(-1)
    ours = torch.from_numpy(lens.probabilities[-1]).to(probs.dtype)
    assert torch.equal(torch.from_numpy(lens.candidates[-1, :, 0]), probs.argmax(-1))
    torch.testing.assert_close(ours, probs.sort(descending=True).values, rtol=1e-4, atol=1e-6)


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@dataclass(frozen=True)
class WildFile:
    """What files in the wild have beside, or instead of, what is saved today."""

    row: str
    names: dict[str, str] = field(default_factory=dict)  # today's -> those found instead
    tensors: dict[str, Tensor] = field(default_factory=dict)  # found as well
    config: dict[str, Any] = field(default_factory=dict)  # values of config.json


OLD_BASES = dict(global_rope_theta=160_000.0, local_rope_theta=10_000.0)
CROSS_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
POSITIONS = torch.arange(20)[None]
OLD_LLAMA3 = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
OLD_YARN = {"type": "yarn", **{name: YARN[name] for name in YARN if "rope" not in name}}

WILD = {
    "llama-3.1": WildFile(
        row="LlamaForCausalLM-llama3",
        config={"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": OLD_LLAMA3},
    ),
    "qwen-2.5": WildFile(
        row="Qwen2ForCausalLM-yarn",
        config={"rope_parameters": None, "rope_theta": 100.0, "rope_scaling": OLD_YARN},
    ),
    "gamma-and-beta": WildFile(
        "BertForPreTraining-relu",
        {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
        {"bert.embeddings.position_ids": POSITIONS},
    ),
    "pooler": WildFile(
        "RobertaForMaskedLM-one-segment",
        tensors={
            "roberta.embeddings.position_ids": torch.arange(22)[None],
            "roberta.pooler.dense.weight": torch.ones(24, 24),
            "roberta.pooler.dense.bias": torch.ones(24),
        },
    ),
    "new-head": WildFile(
        "DebertaV2ForMaskedLM-v3",
        {
            "cls.predictions.transform": "lm_predictions.lm_head",
            "cls.predictions.bias": "lm_predictions.lm_head.bias",
        },
        {"mask_predictions.dense.weight": torch.ones(24, 24)},
        {"pos_att_type": "p2c|c2p"},
    ),
    "cross-bias": WildFile(
        "T5ForConditionalGeneration-plain", tensors={CROSS_BIAS: torch.ones(8, 4)}
    ),
    "no-prefix": WildFile(
        "GPT2LMHeadModel-inner",
        {"transformer.": ""},
        {"h.0.attn.bias": torch.ones(1, 1, 20, 20), "h.0.attn.masked_bias": torch.tensor(-1e4)},
    ),
    "frequencies": WildFile(
        "LlamaForCausalLM-grouped",
        tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)},
        config={"rope_parameters": None, "rope_theta": 10_000.0},
    ),
    "words": WildFile(
        "XLMWithLMHeadModel-plain",
        tensors={"transformer.position_ids": POSITIONS},
        config={"n_words": VOCABULARY, "pad_index": 2, "vocab_size": None, "pad_token_id": None},
    ),
    "bases": WildFile(
        "ModernBertForMaskedLM-windows",
        config={"rope_parameters": None, "layer_types": None, **OLD_BASES},
    ),
    "version": WildFile(
        "BartForConditionalGeneration-scaled",
        tensors={"model.encoder.version": torch.tensor([2.0])},
    ),
}


@pytest.mark.parametrize("wild", WILD.values(), ids=WILD)
def test_reads_files_in_the_wild(wild: WildFile, tmp_path: Path) -> None:
    reference = next(row for row in ROWS if row.id == wild.row).reference()
    reference.save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    state = load_file(weights)
    for today, found in wild.names.items():
        state = {name.replace(today, found): tensor for name, tensor in state.items()}
    save_file(state | wild.tensors, weights)
    config.write_text(json.dumps({**json.loads(config.read_text()), **wild.config}))
    network = read_network(tmp_path).eval()
    assert_close(forward_ours(network, reference.config), forward_theirs(reference), 1e-5)
    assert write_network(network, tmp_path / "again") == reference.config.model_type
