"""Encoder-decoders: the original Transformer, T5 and BART."""

from __future__ import annotations

from firth.models.presets.row import NO_DROPOUT, PRE_NORM, RMS_NORM, family, size

# Table 3. One vocabulary of 37,000 tokens for both languages; encoder, decoder and output share the
# embeddings (section 3.4); dropout on sub-layers and embeddings only (section 5.4). The paper gives
# no maximum length: sinusoidal positions have none.
TRANSFORMERS = family(
    dict(architecture="encoder-decoder", vocab_size=37000, max_positions=512, activation="relu")
    | dict(position_embedding="sinusoidal", embedding_norm=False, embedding_scale=True)
    | dict(norm_eps=1e-6, attention_dropout=0.0, initialization="xavier"),
    {
        "transformer-base": size(6, 512, 8, 2048, 63_082_496, dropout=0.1),
        "transformer-big": size(6, 1024, 16, 4096, 214_245_376, dropout=0.3),
    },
    objective="span-corruption",
    recipe="transformer",
    source="Vaswani et al. 2017; torch.nn.Transformer without its last norms; trained there to "
    "translate, here with T5's objective",
)

T5 = (
    PRE_NORM
    | RMS_NORM
    | dict(family="t5", architecture="encoder-decoder", vocab_size=32128, max_positions=512)
    | dict(position_embedding="none", relative_attention="bias", attention_scale=1.0)
    | dict(norm_eps=1e-6, activation="relu", head_scale=True)
    | dict(initialization="fan-in", init_std=1.0)
    | dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
)

T5S = family(
    T5,
    {
        "t5-small": size(6, 512, 8, 2048, 60_506_624),
        "t5-base": size(12, 768, 12, 3072, 222_903_552),
        "t5-large": size(24, 1024, 16, 4096, 737_668_096),
        "t5-3b": size(24, 1024, 32, 16384, 2_851_598_336, head_dim=128),
        "t5-11b": size(24, 1024, 128, 65536, 11_307_321_344, head_dim=128),
    },
    objective="span-corruption",
    recipe="t5",
    source="Raffel et al. 2020; T5ForConditionalGeneration",
)

# Gated, with untied embeddings; pre-trained without dropout.
T5_V11S = family(
    T5
    | NO_DROPOUT
    | dict(activation="gelu-tanh", gated=True, tie_embeddings=False, head_scale=False),
    {
        "t5-v1.1-small": size(8, 512, 6, 1024, 76_961_152, head_dim=64),
        "t5-v1.1-base": size(12, 768, 12, 2048, 247_577_856),
        "t5-v1.1-large": size(24, 1024, 16, 2816, 783_150_080),
        "t5-v1.1-xl": size(24, 2048, 32, 5120, 2_849_757_184),
        "t5-v1.1-xxl": size(24, 4096, 64, 10240, 11_135_332_352),
    },
    objective="span-corruption",
    recipe="t5",
    source="Shazeer 2020, Raffel et al. 2020; T5ForConditionalGeneration, untied",
)

BARTS = family(
    dict(family="bart", architecture="encoder-decoder", vocab_size=50265, max_positions=1024)
    | dict(position_offset=2, norm_eps=1e-5, head_bias="fixed")
    | dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2),
    {
        "bart-base": size(6, 768, 12, 3072, 139_420_416),
        "bart-large": size(12, 1024, 16, 4096, 406_291_456),
    },
    objective="infilling",
    recipe="bart",
    source="Lewis et al. 2020; BartForConditionalGeneration",
)

ENCODER_DECODERS = TRANSFORMERS | T5S | T5_V11S | BARTS
