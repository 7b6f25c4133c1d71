"""Every family computes what `transformers` computes, and is saved so that `transformers` loads it
without a missing, unexpected or changed weight.

The reference is a tiny model with random weights. It gets padded rows, ours a packed batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from firth.formats.huggingface.directory import read_network, write_network
from firth.models.masks import Mask
from firth.models.positions import DisentangledBias, RelativeBias
from firth.models.transformer import Transformer, count_parameters

# DeBERTa's implementation there uses the deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

V = 60
LENGTHS, TARGETS = (13, 5, 9, 1), (6, 7, 2, 3)


@dataclass(frozen=True)
class Row:
    """A class of `transformers` and the values of its config."""

    name: str
    what: str
    config: dict[str, Any]
    change: Callable[[Any], None] = field(default=lambda reference: None)

    @property
    def std(self) -> float:
        """Of the weights: large enough to matter, small where no norm bounds the hidden states."""
        return 0.15 if self.name.startswith("MobileBert") else 0.25

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
        torch.manual_seed(0)
        with torch.no_grad():
            for name, tensor in reference.state_dict().items():
                is_norm = tensor.dim() == 1 and not name.endswith("bias")
                tensor.normal_(1.0 if is_norm else 0.0, self.std)
            for module in reference.modules():
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0.0
        return reference.eval()


def untie(reference: Any) -> None:
    """Give a model an output matrix of its own, as T5 v1.1 and mT5 have it."""
    reference.lm_head.weight = nn.Parameter(torch.empty_like(reference.lm_head.weight))


def one_bias(path: str) -> Callable[[Any], None]:
    """In an untied head, `transformers` has a second bias that it never uses."""

    def change(reference: Any) -> None:
        head = reference.get_submodule(path)
        head.decoder.bias = head.bias

    return change


def bert(**more: Any) -> dict[str, Any]:
    return dict(
        vocab_size=V,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=20,
        **more,
    )


def llama(**more: Any) -> dict[str, Any]:
    return {**bert(num_key_value_heads=2, pad_token_id=0), **more}


def t5(**more: Any) -> dict[str, Any]:
    return dict(vocab_size=V, d_model=24, d_kv=6, d_ff=40, num_layers=3, num_heads=4) | more


def bart(**more: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        **dict(vocab_size=V, d_model=24, max_position_embeddings=20),
        **{f"{side}_layers": 2 for side in sides},
        **{f"{side}_attention_heads": 4 for side in sides},
        **{f"{side}_ffn_dim": 40 for side in sides},
        **more,
    }


UNTIED = dict(tie_word_embeddings=False)
ODD = dict(hidden_size=30, num_attention_heads=6)
GPT = dict(vocab_size=V, n_embd=24, n_layer=3, n_head=4, n_positions=20)
ENDS = dict(bos_token_id=1, eos_token_id=1)
DISTIL = dict(
    vocab_size=V, dim=24, n_layers=3, n_heads=4, hidden_dim=40, max_position_embeddings=20
)
MODERN = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
DEBERTA = dict(
    relative_attention=True,
    position_buckets=6,
    max_relative_positions=10,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
)
MOBILE = dict(embedding_size=8, intra_bottleneck_size=12, num_feedforward_networks=3)
XLM = dict(vocab_size=V, emb_dim=24, n_layers=3, n_heads=4, max_position_embeddings=20)
WINDOWS = dict(use_sliding_window=True, sliding_window=4)
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GATED = dict(feed_forward_proj="gated-gelu")
FEW = dict(relative_attention_num_buckets=8, relative_attention_max_distance=9)

ROWS = [
    Row("BertForMaskedLM", "eps", bert(layer_norm_eps=1e-3)),
    Row("BertForMaskedLM", "untied", bert(**UNTIED), one_bias("cls.predictions")),
    Row("BertForMaskedLM", "one-segment", bert(type_vocab_size=1)),
    Row("BertForPreTraining", "relu", bert(hidden_act="relu")),
    Row("BertForPreTraining", "gelu-tanh", bert(hidden_act="gelu_new")),
    Row("BertForNextSentencePrediction", "plain", bert()),
    Row("BertModel", "odd-heads", bert() | ODD),
    Row("RobertaForMaskedLM", "one-segment", bert(type_vocab_size=1)),
    Row("RobertaForMaskedLM", "padding-5", bert(pad_token_id=5)),
    Row("RobertaForMaskedLM", "silu", bert(hidden_act="silu")),  # the head keeps gelu
    Row("RobertaForMaskedLM", "untied", bert(**UNTIED), one_bias("lm_head")),
    Row("RobertaModel", "odd-heads", bert(layer_norm_eps=1e-5) | ODD),
    Row("XLMRobertaForMaskedLM", "plain", bert(type_vocab_size=1, layer_norm_eps=1e-5)),
    Row("XLMRobertaModel", "padding-0", bert(pad_token_id=0)),
    Row("DistilBertForMaskedLM", "plain", DISTIL),
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
    Row("ElectraForPreTraining", "narrow-table", bert(embedding_size=8)),
    Row("ElectraForPreTraining", "relu", bert(embedding_size=24, hidden_act="relu")),
    Row("ElectraModel", "odd-heads", bert(embedding_size=30) | ODD),
    Row("DebertaV2ForMaskedLM", "v3", bert(**DEBERTA, position_biased_input=False)),
    Row("DebertaV2ForMaskedLM", "segments", bert(**DEBERTA, type_vocab_size=2)),
    Row("DebertaV2ForMaskedLM", "more-buckets", bert(**DEBERTA | dict(position_buckets=16))),
    Row("DebertaV2Model", "odd-heads", bert(**DEBERTA | dict(max_relative_positions=-1)) | ODD),
    Row("MobileBertForPreTraining", "pooled", bert(**MOBILE)),
    Row("MobileBertForPreTraining", "unpooled", bert(**MOBILE, classifier_activation=False)),
    Row("MobileBertForNextSentencePrediction", "plain", bert(**MOBILE)),
    Row("MobileBertForMaskedLM", "gelu", bert(**MOBILE, hidden_act="gelu")),
    Row("MobileBertModel", "one-layer", bert(**MOBILE | dict(num_feedforward_networks=1))),
    Row("MPNetForMaskedLM", "plain", bert(layer_norm_eps=1e-5)),
    Row("MPNetForMaskedLM", "relu", bert(hidden_act="relu")),
    Row("MPNetModel", "odd-heads", bert() | ODD),
    Row("XLMWithLMHeadModel", "plain", XLM),
    Row("XLMWithLMHeadModel", "relu", XLM | dict(gelu_activation=False, layer_norm_eps=1e-3)),
    Row("XLMModel", "languages", XLM | dict(n_langs=3, use_lang_emb=False)),
    Row("ModernBertForMaskedLM", "windows", bert(**MODERN, local_attention=6)),
    Row("ModernBertForMaskedLM", "biases", bert(**MODERN, norm_bias=True, classifier_bias=True)),
    Row("ModernBertForMaskedLM", "relu-head", bert(**MODERN, classifier_activation="relu")),
    Row("ModernBertModel", "no-windows", bert(**MODERN, global_attn_every_n_layers=1)),
    Row("ModernBertDecoderForCausalLM", "windows", bert(**MODERN, local_attention=6)),
    Row("ModernBertDecoderModel", "no-windows", bert(**MODERN, global_attn_every_n_layers=1)),
    Row("OpenAIGPTLMHeadModel", "plain", GPT),
    Row("OpenAIGPTLMHeadModel", "silu", GPT | dict(afn="silu", layer_norm_epsilon=1e-3)),
    Row("OpenAIGPTModel", "odd-heads", GPT | dict(n_embd=30, n_head=6)),
    Row("GPT2LMHeadModel", "inner", GPT | ENDS | dict(n_inner=52)),
    Row("GPT2LMHeadModel", "untied", GPT | ENDS | UNTIED),
    Row("GPT2LMHeadModel", "relu", GPT | ENDS | dict(activation_function="relu")),
    Row("GPT2Model", "odd-heads", GPT | ENDS | dict(n_embd=30, n_head=6)),
    Row("LlamaForCausalLM", "grouped", llama()),
    Row("LlamaForCausalLM", "tied", llama(tie_word_embeddings=True, rms_norm_eps=1e-3)),
    Row("LlamaForCausalLM", "theta", llama(rope_theta=500.0, hidden_act="gelu_new")),
    Row("LlamaModel", "wide-heads", llama(head_dim=10, num_key_value_heads=1)),
    Row("MistralForCausalLM", "window", llama(sliding_window=4)),
    Row("MistralForCausalLM", "no-window", llama(sliding_window=None)),
    Row("MistralModel", "wide-heads", llama(head_dim=10, sliding_window=6)),
    Row("Qwen2ForCausalLM", "plain", llama()),
    Row("Qwen2ForCausalLM", "windows", llama(**WINDOWS, max_window_layers=1)),
    Row("Qwen2Model", "tied", llama(tie_word_embeddings=True)),
    Row("Qwen3ForCausalLM", "plain", llama(head_dim=8)),
    Row("Qwen3ForCausalLM", "tied", llama(head_dim=10, tie_word_embeddings=True)),
    Row("Qwen3ForCausalLM", "windows", llama(head_dim=8, **WINDOWS, layer_types=MIXED)),
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
    Row("BartForConditionalGeneration", "relu", bart(activation_function="relu")),
    Row("BartModel", "plain", bart()),
    Row("MBartForConditionalGeneration", "scaled", bart(scale_embedding=True)),
    Row("MBartModel", "layers", bart(encoder_layers=3)),
]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """No progress bars, only errors in the log, and one thread, as the networks are so small."""
    level, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()
    transformers.logging.set_verbosity(level)
    torch.set_num_threads(threads)


class Batch:
    """Sequences of unequal length: as a stream for us, as padded rows for them."""

    def __init__(self, lengths: tuple[int, ...], pad: int, below: int = V, low: int = 2) -> None:
        self.lengths = list(lengths)
        generator = torch.Generator().manual_seed(len(lengths) + sum(lengths))
        drawn = [torch.randint(low, below, (length,), generator=generator) for length in lengths]
        drawn = [ids.where(ids != pad, below - 1) if low else ids for ids in drawn]
        self.stream = torch.cat(drawn)
        self.rows = nn.utils.rnn.pad_sequence(drawn, batch_first=True, padding_value=pad)
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        self.attention = real.long()

    def flat(self, rows: Tensor) -> Tensor:
        """What stands at real tokens."""  # (S, L, …) -> (N, …)
        return rows[self.attention.bool()]


def forward_theirs(reference: Any) -> dict[str, Tensor]:
    """Their outputs by their names, without padding."""
    config = reference.config
    source, target, segments = batches(config)
    given = dict(input_ids=source.rows, attention_mask=source.attention)
    if segments is not None:
        given["token_type_ids"] = segments.rows
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = target.rows
    with torch.no_grad():
        found = {**reference(**given, output_hidden_states=True)}
        if "last_hidden_state" not in found and reference.base_model is not reference:
            found = {**reference.base_model(**given), **found}
    if "last_hidden_state" not in found:
        found["last_hidden_state"] = found["decoder_hidden_states"][-1]
    last = target if config.is_encoder_decoder else source
    return {
        name: last.flat(found[name]) if found[name].shape[:2] == last.rows.shape else found[name]
        for name in NAMES
        if found.get(name) is not None
    }


def forward_ours(network: Transformer, config: Any) -> dict[str, Tensor]:
    """Our outputs, by their names."""
    source, target, segments = batches(config)
    kinds = None if segments is None else segments.stream
    last, mask = source, Mask(source.lengths)
    with torch.no_grad():
        if network.config.architecture == "encoder":
            hidden = network(source.stream, mask, segments=kinds)
        elif network.config.architecture == "decoder":
            hidden = network(source.stream, Mask.causal(source.lengths))
        else:
            memory = network.encode(source.stream, mask)
            last, causal = target, Mask.causal(target.lengths)
            hidden = network(target.stream, causal, memory=memory, memory_mask=mask)
        heads = network.heads
        first = hidden[Mask(last.lengths).starts[:-1].long()]
        found = {"last_hidden_state": hidden}
        if "pooler" in heads:
            first = found["pooler_output"] = heads["pooler"](first)
        if "pair" in heads:
            pairs = heads["pair"](first)
            found |= {"logits": pairs, "seq_relationship_logits": pairs, "sop_logits": pairs}
        if "replaced" in heads:
            found["logits"] = heads["replaced"](hidden)
        if "language" in heads:
            found |= dict.fromkeys(("logits", "prediction_logits"), network.logits(hidden))
        if "pooler_output" not in found:
            found["pooler_output"] = first
    return found


NAMES = (
    *("last_hidden_state", "pooler_output", "logits"),
    *("prediction_logits", "seq_relationship_logits", "sop_logits"),
)


def batches(config: Any) -> tuple[Batch, Batch, Batch | None]:
    """What the encoder reads, what the decoder reads, and the segments of the former."""
    pad = config.pad_token_id or 0
    kinds = getattr(config, "type_vocab_size", 0)
    segments = Batch(LENGTHS, 0, kinds, low=0) if kinds else None
    return Batch(LENGTHS, pad), Batch(TARGETS, pad), segments


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], error: float) -> None:
    for name, wanted in theirs.items():
        assert wanted.std(0).mean() > 0.01, f"{name} is the same everywhere"
        assert ours[name].dtype == wanted.dtype
        difference = float((ours[name] - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))
        assert difference <= error, name


@every_row
def test_computes_the_same_and_is_written_as_it_was(row: Row, tmp_path: Path) -> None:
    reference = row.reference()
    reference.save_pretrained(tmp_path / "theirs")
    network = read_network(tmp_path / "theirs").eval()
    theirs = forward_theirs(reference)
    assert_close(forward_ours(network, reference.config), theirs, 1e-5)
    assert count_parameters(network) == sum(p.numel() for p in reference.parameters())

    family = write_network(network, tmp_path / "ours")
    assert family == reference.config.model_type
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert_same_weights(reference, again)
    assert_close(forward_theirs(again.eval()), theirs, 1e-6)  # the configuration is the same, too


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_double], ids=lambda row: row.id)
def test_computes_the_same_in_double_precision(row: Row, tmp_path: Path) -> None:
    reference = row.reference(torch.float64)
    reference.save_pretrained(tmp_path)
    network = read_network(tmp_path).eval()
    assert_close(forward_ours(network, reference.config), forward_theirs(reference), 1e-9)


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (6, 10), (16, 20), (32, 128)])
def test_disentangled_distances_fall_into_the_same_buckets(buckets: int, distance: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    relative = torch.arange(-distance, distance + 1)
    theirs = make_log_bucket_position(relative, buckets, distance).long()
    with torch.device("meta"):
        ours = DisentangledBias(8, buckets, distance, 1e-7)
    assert torch.equal(ours.bucket(relative), theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 9), (64, 1000)])
def test_biased_distances_fall_into_the_same_buckets(
    buckets: int, distance: int, bidirectional: bool
) -> None:
    relative = torch.arange(-2 * distance, 2 * distance + 1)
    theirs = T5Attention._relative_position_bucket(relative, bidirectional, buckets, distance)
    assert torch.equal(RelativeBias(buckets, distance, 4, bidirectional).bucket(relative), theirs)


def renamed(name: str, overrides: dict[str, str]) -> str:
    for new, old in overrides.items():
        name = name.replace(new, old)
    return name


# What files in the wild have beside, or instead of, what is saved today: a row, names of today and
# those found instead, tensors that are found too, values of config.json.
WILD: dict[str, tuple[str, dict[str, str], dict[str, Tensor], dict[str, Any]]] = {
    "gamma-and-beta": (
        "BertForPreTraining-relu",
        {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
        {"bert.embeddings.position_ids": torch.arange(20)[None]},
        {},
    ),
    "pooler": (
        "RobertaForMaskedLM-one-segment",
        {},
        {
            "roberta.embeddings.position_ids": torch.arange(22)[None],
            "roberta.pooler.dense.weight": torch.ones(24, 24),
            "roberta.pooler.dense.bias": torch.ones(24),
        },
        {},
    ),
    "new-head": (
        "DebertaV2ForMaskedLM-v3",
        {
            "cls.predictions.transform": "lm_predictions.lm_head",
            "cls.predictions.bias": "lm_predictions.lm_head.bias",
        },
        {"mask_predictions.dense.weight": torch.ones(24, 24)},
        {"pos_att_type": "p2c|c2p"},
    ),
    "cross-bias": (
        "T5ForConditionalGeneration-plain",
        {},
        {
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(
                8, 4
            )
        },
        {},
    ),
    "no-prefix": (
        "GPT2LMHeadModel-inner",
        {"transformer.": ""},
        {"h.0.attn.bias": torch.ones(1, 1, 20, 20), "h.0.attn.masked_bias": torch.tensor(-1e4)},
        {},
    ),
    "frequencies": (
        "LlamaForCausalLM-grouped",
        {},
        {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)},
        {"rope_parameters": None, "rope_theta": 10_000.0},
    ),
    "words": (
        "XLMWithLMHeadModel-plain",
        {},
        {"transformer.position_ids": torch.arange(20)[None]},
        {"n_words": V, "pad_index": 2, "vocab_size": None, "pad_token_id": None},
    ),
    "bases": (
        "ModernBertForMaskedLM-windows",
        {},
        {},
        {
            "rope_parameters": None,
            "layer_types": None,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
        },
    ),
    "version": (
        "BartForConditionalGeneration-scaled",
        {},
        {"model.encoder.version": torch.tensor([2.0])},
        {},
    ),
}


@pytest.mark.parametrize("case", WILD)
def test_reads_files_in_the_wild(case: str, tmp_path: Path) -> None:
    id, overrides, more, values = WILD[case]
    reference = next(row for row in ROWS if row.id == id).reference()
    reference.save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    state = {renamed(name, overrides): tensor for name, tensor in load_file(weights).items()}
    save_file(state | more, weights)
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    network = read_network(tmp_path).eval()
    assert_close(forward_ours(network, reference.config), forward_theirs(reference), 1e-5)
    assert write_network(network, tmp_path / "again") == reference.config.model_type
