"""Small models of `transformers` with random weights, and the same forward pass there and here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from torch import Tensor, nn

from firth.inference.attention_maps import attention_arrays
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer

VOCABULARY = 60
WORDS = Tokenizer(Backend(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, "w0")), {})
LENGTHS, TARGETS = (13, 5, 9, 1), (6, 7, 2, 3)
NAMES = (
    *("last_hidden_state", "pooler_output", "logits"),
    *("prediction_logits", "seq_relationship_logits", "sop_logits"),
)
MODERN = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
DEBERTA: dict[str, Any] = dict(relative_attention=True, share_att_key=True, position_buckets=6)
DEBERTA |= dict(norm_rel_ebd="layer_norm", max_relative_positions=10, pos_att_type=["p2c", "c2p"])


def bert(**more: Any) -> dict[str, Any]:
    size = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40)
    return dict(**size, vocab_size=VOCABULARY, max_position_embeddings=20, **more)


def llama(**more: Any) -> dict[str, Any]:
    return {**bert(num_key_value_heads=2, pad_token_id=0), **more}


def t5(**more: Any) -> dict[str, Any]:
    return (
        dict(vocab_size=VOCABULARY, d_model=24, d_kv=6, d_ff=40, num_layers=3, num_heads=4) | more
    )


def bart(**more: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        **dict(vocab_size=VOCABULARY, d_model=24, max_position_embeddings=20),
        **{f"{side}_layers": 2 for side in sides},
        **{f"{side}_attention_heads": 4 for side in sides},
        **{f"{side}_ffn_dim": 40 for side in sides},
        **more,
    }


@torch.no_grad()
def randomize(reference: Any, std: float) -> Any:
    """Draw all weights, also of norms and biases, but not the padding token's embedding."""
    torch.manual_seed(0)
    for name, tensor in reference.state_dict().items():
        if tensor.is_floating_point():
            is_norm = tensor.dim() == 1 and not name.endswith("bias")
            tensor.normal_(1.0 if is_norm else 0.0, std)
    for module in reference.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0.0
    return reference.eval()


class Batch:
    """Sequences of unequal length: as a stream for us, as padded rows for them."""

    def __init__(
        self, lengths: tuple[int, ...], pad: int, below: int = VOCABULARY, low: int = 2
    ) -> None:
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


def assert_same_attention(network: Transformer, reference: Any) -> None:
    """Compare all attention weights with those of `output_attentions=True`, within 1e-5."""
    pad = reference.config.pad_token_id or 0
    source, target = (Batch((length,), pad) for length in (LENGTHS[0], TARGETS[1]))
    given, names = dict(input_ids=source.rows), {network.config.architecture: "attentions"}
    if network.config.architecture == "encoder-decoder":
        given["decoder_input_ids"] = target.rows
        names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions"}
        names["cross"] = "cross_attentions"
    reference.set_attn_implementation("eager")  # the other kernels return no weights
    with torch.no_grad():
        found = reference(**given, output_attentions=True)
    ours = attention_arrays(network, source.stream, target.stream if len(names) == 3 else ())
    assert ours.keys() == names.keys()
    for part, name in names.items():
        theirs = torch.stack(found[name])[:, 0].numpy()  # (layers, heads, queries, keys)
        assert ours[part].shape == theirs.shape
        assert np.ptp(theirs[theirs > 0]) > 0.005, f"{part} is uniform"
        assert np.abs(ours[part] - theirs).max() <= 1e-5, part
        np.testing.assert_array_equal(ours[part] == 0, theirs == 0)  # what is masked
