"""Encoders: BERT and those that followed it."""

from __future__ import annotations

from firth.models.presets.row import NO_DROPOUT, Fields, family, size

ENCODER: Fields = dict(architecture="encoder", max_positions=512, pad_token_id=0)
ENCODER |= dict(head_transform=True, head_bias="trained")

BERT = ENCODER | dict(family="bert", vocab_size=30522, num_segments=2, initialization="truncated")
PAIRS = ("language", "pooler", "pair")

# https://github.com/google-research/bert, uncased
BERTS = family(
    BERT,
    {
        "bert-base": size(12, 768, 12, 3072, 110_106_428),
        "bert-large": size(24, 1024, 16, 4096, 336_226_108),
    },
    objective="masked-nsp",
    recipe="bert",
    source="Devlin et al. 2019; BertForPreTraining",
    heads=PAIRS,
)

SMALL_BERTS = family(
    BERT,
    {
        "bert-tiny": size(2, 128, 2, 512, 4_433_468),
        "bert-mini": size(4, 256, 4, 1024, 11_267_900),
        "bert-small": size(4, 512, 8, 2048, 29_058_876),
        "bert-medium": size(8, 512, 8, 2048, 41_668_412),
    },
    objective="masked-nsp",
    recipe="bert",
    source="Turc et al. 2019; BertForPreTraining",
    heads=PAIRS,
)

ROBERTAS = family(
    BERT
    | dict(family="roberta", vocab_size=50265, norm_eps=1e-5, initialization="normal")
    | dict(num_segments=1)  # an embedding that is always added
    | dict(position_offset=2, pad_token_id=1)  # positions start after the padding token's id
    | dict(bos_token_id=0, eos_token_id=2),
    {
        "roberta-base": size(12, 768, 12, 3072, 124_697_433),
        "roberta-large": size(24, 1024, 16, 4096, 355_412_057),
    },
    objective="masked",
    recipe="roberta",
    source="Liu et al. 2019; RobertaForMaskedLM",
)

# BERT's architecture with the cased vocabulary; no next sentence prediction.
SPANBERTS = family(
    BERT | dict(vocab_size=28996, initialization="normal"),
    {
        "spanbert-base": size(12, 768, 12, 3072, 110_727_748),
        "spanbert-large": size(24, 1024, 16, 4096, 337_841_476),
    },
    objective="masked-spans",
    recipe="spanbert",
    source="Joshi et al. 2020; BertForMaskedLM and the boundary head",
    heads=("language", "boundary"),
)

# The second version, trained without dropout.
ALBERTS = family(
    BERT
    | NO_DROPOUT
    | dict(family="albert", vocab_size=30000, embedding_size=128, share_layers=True)
    | dict(activation="gelu-tanh", bos_token_id=2, eos_token_id=3),
    {
        "albert-base": size(12, 768, 12, 3072, 11_813_810),
        "albert-large": size(24, 1024, 16, 4096, 17_847_474),
        "albert-xlarge": size(24, 2048, 16, 8192, 59_021_490),
        "albert-xxlarge": size(12, 4096, 64, 16384, 223_158_450),
    },
    objective="masked-sop",
    recipe="albert",
    source="Lan et al. 2020, v2; AlbertForPreTraining",
    heads=PAIRS,
)

# The discriminators; their generators are smaller.
ELECTRAS = family(
    BERT | dict(family="electra"),
    {
        "electra-small": size(12, 256, 4, 1024, 13_549_057, embedding_size=128),
        "electra-base": size(12, 768, 12, 3072, 109_483_009),
        "electra-large": size(24, 1024, 16, 4096, 335_142_913),
    },
    objective="replaced",
    recipe="electra",
    source="Clark et al. 2020; ElectraForPreTraining",
    heads=("replaced",),
)

# Positions enter only as distances. An attention score is the sum of three terms (content to
# content, content to position, position to content), divided by sqrt(3 x 64) (He et al. 2021,
# section 3.1).
DEBERTAS = family(
    ENCODER
    | dict(family="deberta-v2", vocab_size=128100, position_embedding="none", norm_eps=1e-7)
    | dict(relative_attention="disentangled", relative_buckets=256, relative_max_distance=512)
    | dict(attention_scale=(3 * 64) ** -0.5),
    {
        "deberta-v3-xsmall": size(12, 384, 6, 1536, 70_830_337),
        "deberta-v3-small": size(6, 768, 12, 3072, 141_895_681),
        "deberta-v3-base": size(12, 768, 12, 3072, 184_422_913),
        "deberta-v3-large": size(24, 1024, 16, 4096, 435_062_785),
    },
    objective="replaced",
    recipe="deberta",
    source="He et al. 2023; DebertaV2Model and ELECTRA's head",
    heads=("replaced",),
)

DISTILBERTS = family(
    BERT | dict(family="distilbert", num_segments=0, initialization="normal"),
    {"distilbert-base": size(6, 768, 12, 3072, 66_985_530)},
    objective="masked",
    recipe="distilbert",
    source="Sanh et al. 2019; DistilBertForMaskedLM",
)

# The pair head takes the first token's hidden state: there is no pooler.
MOBILEBERTS = family(
    BERT
    | dict(family="mobilebert", embedding_size=128, trigrams=True, dropout=0.0)
    | dict(bottleneck_size=128, num_feed_forwards=4, norm="affine", activation="relu"),
    {"mobilebert": size(24, 512, 4, 512, 36_597_564)},
    objective="masked-nsp",
    recipe="mobilebert",
    source="Sun et al. 2020; MobileBertForPreTraining",
    heads=("language", "pair"),
)

# Also the blocks of the matched models in `trio.py`.
MODERN = (
    NO_DROPOUT
    | dict(position_embedding="rotary", gated=True, bias=False, initialization="scaled-truncated")
    | dict(norm_position="pre", norm_bias=False, norm_eps=1e-5, first_norm=False)
    | dict(head_transform=True, transform_bias=False, head_bias="trained")
)


def _local(layers: int) -> tuple[int, ...]:
    """Return all layers but every third, which are global, starting with the first."""
    return tuple(i for i in range(layers) if i % 3)


MODERNBERTS = family(
    MODERN
    | dict(family="modernbert", architecture="encoder", vocab_size=50368, max_positions=8192)
    | dict(rope_theta=160_000.0, local_rope_theta=10_000.0, window=64)
    | dict(bos_token_id=50281, eos_token_id=50282, pad_token_id=50283),
    {
        "modernbert-base": size(22, 768, 12, 1152, 149_655_232, windowed_layers=_local(22)),
        "modernbert-large": size(28, 1024, 16, 2624, 395_881_664, windowed_layers=_local(28)),
    },
    objective="masked",
    recipe="modernbert",
    source="Warner et al. 2024; ModernBertForMaskedLM",
)

ENCODERS = SMALL_BERTS | BERTS | ROBERTAS | SPANBERTS | ALBERTS | ELECTRAS | DEBERTAS
ENCODERS |= DISTILBERTS | MOBILEBERTS | MODERNBERTS
