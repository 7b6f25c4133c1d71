"""Decoders: the GPT family, Llama and Mistral."""

from __future__ import annotations

from firth.models.presets.row import Fields, family, size

# Post-norm, as in the original Transformer; the activation is the tanh approximation of GELU.
GPT1S = family(
    dict(
        family="openai-gpt",
        architecture="decoder",
        vocab_size=40478,
        max_positions=512,
        embedding_norm=False,
        norm_eps=1e-5,
        activation="gelu-tanh",
    ),
    {"gpt1": size(12, 768, 12, 3072)},
    objective="causal",
    recipe="gpt1",
    source="Radford et al. 2018; OpenAIGPTLMHeadModel",
)

GPT2: Fields = dict(
    family="gpt2",
    architecture="decoder",
    vocab_size=50257,
    max_positions=1024,
    embedding_norm=False,
    norm_position="pre",
    norm_eps=1e-5,
    activation="gelu-tanh",
    initialization="scaled",
    bos_token_id=50256,
    eos_token_id=50256,
)

GPT2S = family(
    GPT2,
    {
        "gpt2": size(12, 768, 12, 3072),
        "gpt2-medium": size(24, 1024, 16, 4096),
        "gpt2-large": size(36, 1280, 20, 5120),
        "gpt2-xl": size(48, 1600, 25, 6400),
    },
    objective="causal",
    recipe="gpt2",
    source="Radford et al. 2019; GPT2LMHeadModel",
)

# Table 2.1, except for XL, whose published 24 heads of 128 do not give its hidden size, and 13B,
# whose published hidden size of 5140 is not 40 heads of 128. The paper names weight decay as
# regularization and no dropout.
GPT3S = family(
    GPT2 | dict(max_positions=2048, dropout=0.0, attention_dropout=0.0),
    {
        "gpt3-small": size(12, 768, 12, 3072),
        "gpt3-medium": size(24, 1024, 16, 4096),
        "gpt3-large": size(24, 1536, 16, 6144),
        "gpt3-xl": size(24, 2048, 16, 8192),
        "gpt3-2.7b": size(32, 2560, 32, 10240),
        "gpt3-6.7b": size(32, 4096, 32, 16384),
        "gpt3-13b": size(40, 5120, 40, 20480),
        "gpt3-175b": size(96, 12288, 96, 49152),
    },
    objective="causal",
    recipe="gpt3",
    source="Brown et al. 2020; GPT2LMHeadModel; attention is dense in every layer, where the paper "
    "alternates with sparse ones; XL has 16 heads and 13B a hidden size of 5120, as the published "
    "24 and 5140 do not divide",
)

LLAMA: Fields = dict(
    family="llama",
    architecture="decoder",
    vocab_size=32000,
    max_positions=2048,
    position_embedding="rotary",
    embedding_norm=False,
    norm="rms",
    norm_position="pre",
    norm_bias=False,
    norm_eps=1e-6,
    activation="silu",
    gated=True,
    bias=False,
    tie_embeddings=False,
    dropout=0.0,
    attention_dropout=0.0,
    bos_token_id=1,
    eos_token_id=2,
)

LLAMAS = family(
    LLAMA,
    {
        "llama-7b": size(32, 4096, 32, 11008),
        "llama-13b": size(40, 5120, 40, 13824),
        "llama-33b": size(60, 6656, 52, 17920),
        "llama-65b": size(80, 8192, 64, 22016),
    },
    objective="causal",
    recipe="llama",
    source="Touvron et al. 2023; LlamaForCausalLM",
)

LLAMA2S = family(
    LLAMA | dict(max_positions=4096, norm_eps=1e-5),
    {"llama2-70b": size(80, 8192, 64, 28672, num_kv_heads=8)},
    objective="causal",
    recipe="llama",
    source="Touvron et al. 2023, Llama 2; LlamaForCausalLM",
)

LLAMA3S = family(
    LLAMA
    | dict(
        vocab_size=128256,
        max_positions=8192,
        norm_eps=1e-5,
        rope_theta=500_000.0,
        bos_token_id=128000,
        eos_token_id=128001,
    ),
    {"llama3-8b": size(32, 4096, 32, 14336, num_kv_heads=8)},
    objective="causal",
    recipe="llama",
    source="Grattafiori et al. 2024; LlamaForCausalLM",
)

# Every token attends to itself and the 4,095 before it, in every layer.
MISTRALS = family(
    LLAMA
    | dict(
        family="mistral", max_positions=32768, norm_eps=1e-5, window=4095, windowed_layers=range(32)
    ),
    {"mistral-7b": size(32, 4096, 32, 14336, num_kv_heads=8)},
    objective="causal",
    recipe="mistral",
    source="Jiang et al. 2023; MistralForCausalLM",
)

DECODERS = GPT1S | GPT2S | GPT3S | LLAMAS | LLAMA2S | LLAMA3S | MISTRALS
