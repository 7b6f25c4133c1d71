"""Decoders: the GPT family, Llama and Mistral."""

from __future__ import annotations

from firth.models.presets.row import NO_DROPOUT, PRE_NORM, RMS_NORM, Fields, family, size

GPT: Fields = dict(
    architecture="decoder", embedding_norm=False, norm_eps=1e-5, activation="gelu-tanh"
)

# Post-norm, as in the original Transformer; the activation is the tanh approximation of GELU.
GPT1S = family(
    GPT | dict(family="openai-gpt", vocab_size=40478, max_positions=512),
    {"gpt1": size(12, 768, 12, 3072, 116_534_784)},
    objective="causal",
    recipe="gpt1",
    source="Radford et al. 2018; OpenAIGPTLMHeadModel",
)

GPT2 = (
    GPT
    | PRE_NORM
    | dict(family="gpt2", vocab_size=50257, max_positions=1024)
    | dict(initialization="scaled", bos_token_id=50256, eos_token_id=50256)
)

GPT2S = family(
    GPT2,
    {
        "gpt2": size(12, 768, 12, 3072, 124_439_808),
        "gpt2-medium": size(24, 1024, 16, 4096, 354_823_168),
        "gpt2-large": size(36, 1280, 20, 5120, 774_030_080),
        "gpt2-xl": size(48, 1600, 25, 6400, 1_557_611_200),
    },
    objective="causal",
    recipe="gpt2",
    source="Radford et al. 2019; GPT2LMHeadModel",
)

# Table 2.1, except for XL, whose published 24 heads of 128 do not give its hidden size, and 13B,
# whose published hidden size of 5140 is not 40 heads of 128. The paper names weight decay as
# regularization and no dropout.
GPT3S = family(
    GPT2 | NO_DROPOUT | dict(max_positions=2048),
    {
        "gpt3-small": size(12, 768, 12, 3072, 125_226_240),
        "gpt3-medium": size(24, 1024, 16, 4096, 355_871_744),
        "gpt3-large": size(24, 1536, 16, 6144, 760_300_032),
        "gpt3-xl": size(24, 2048, 16, 8192, 1_315_723_264),
        "gpt3-2.7b": size(32, 2560, 32, 10240, 2_651_553_280),
        "gpt3-6.7b": size(32, 4096, 32, 16384, 6_658_404_352),
        "gpt3-13b": size(40, 5120, 40, 20480, 12_853_386_240),
        "gpt3-175b": size(96, 12288, 96, 49152, 174_604_259_328),
    },
    objective="causal",
    recipe="gpt3",
    source="Brown et al. 2020; GPT2LMHeadModel; attention is dense in every layer, where the paper "
    "alternates with sparse ones; XL has 16 heads and 13B a hidden size of 5120, as the published "
    "24 and 5140 do not divide",
)

LLAMA = (
    PRE_NORM
    | RMS_NORM
    | NO_DROPOUT
    | dict(family="llama", architecture="decoder", vocab_size=32000, max_positions=2048)
    | dict(position_embedding="rotary", norm_eps=1e-6, activation="silu", gated=True)
    | dict(tie_embeddings=False, bos_token_id=1, eos_token_id=2)
)

LLAMAS = family(
    LLAMA,
    {
        "llama-7b": size(32, 4096, 32, 11008, 6_738_415_616),
        "llama-13b": size(40, 5120, 40, 13824, 13_015_864_320),
        "llama-33b": size(60, 6656, 52, 17920, 32_528_943_616),
        "llama-65b": size(80, 8192, 64, 22016, 65_285_660_672),
    },
    objective="causal",
    recipe="llama",
    source="Touvron et al. 2023; LlamaForCausalLM",
)

LLAMA2S = family(
    LLAMA | dict(max_positions=4096, norm_eps=1e-5, num_kv_heads=8),
    {"llama2-70b": size(80, 8192, 64, 28672, 68_976_648_192)},
    objective="causal",
    recipe="llama",
    source="Touvron et al. 2023, Llama 2; LlamaForCausalLM",
)

LLAMA3S = family(
    LLAMA
    | dict(vocab_size=128256, max_positions=8192, norm_eps=1e-5, rope_theta=500_000.0)
    | dict(num_kv_heads=8, bos_token_id=128000, eos_token_id=128001),
    {"llama3-8b": size(32, 4096, 32, 14336, 8_030_261_248)},
    objective="causal",
    recipe="llama",
    source="Grattafiori et al. 2024; LlamaForCausalLM",
)

# Every token attends to itself and the 4,095 before it, in every layer.
MISTRALS = family(
    LLAMA
    | dict(family="mistral", max_positions=32768, norm_eps=1e-5, num_kv_heads=8)
    | dict(window=4095, windowed_layers=range(32)),
    {"mistral-7b": size(32, 4096, 32, 14336, 7_241_732_096)},
    objective="causal",
    recipe="mistral",
    source="Jiang et al. 2023; MistralForCausalLM",
)

DECODERS = GPT1S | GPT2S | GPT3S | LLAMAS | LLAMA2S | LLAMA3S | MISTRALS
