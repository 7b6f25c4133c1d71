"""Matched models for comparisons: encoder, decoder and encoder-decoder with the same blocks.

`encoder-X` and `decoder-X` have the same parameters; only the mask differs. `seq2seq-X` has as many
blocks in each of its two stacks as `encoder-X` (the same FLOPs per token, but for cross-attention),
`seq2seq-X-half` half as many (the same size, but for cross-attention and one norm). No layer is
windowed. After Weller et al. 2025 (Ettin), who pair encoders and decoders this way.
"""

from __future__ import annotations

from firth.models.presets.encoders import MODERN
from firth.models.presets.row import Fields, Preset, family, size

SIZES: dict[str, Fields] = {
    "tiny": size(2, 192, 6, 512, max_positions=512, vocab_size=4096),
    "small": size(12, 512, 8, 1376, max_positions=1024, vocab_size=16384),
    "base": size(12, 768, 12, 2048, max_positions=1024, vocab_size=32768),
}


def _members(
    names: str,
    architecture: str,
    objective: str,
    saved_as: str,
    like: str,
    counts: tuple[int, ...],
    divisor: int = 1,
) -> dict[str, Preset]:
    """Build one architecture in every size; each stack has the layers of the size / divisor."""
    return family(
        MODERN | dict(family=saved_as, architecture=architecture, pooling="mean"),
        {
            names.format(name): row
            | dict(num_layers=row["num_layers"] // divisor, parameters=count)
            for (name, row), count in zip(SIZES.items(), counts, strict=True)
        },
        objective=objective,
        recipe="trio",
        source=f"Weller et al. 2025, Warner et al. 2024; {like}",
    )


ONE = (1_713_280, 46_625_792, 110_743_040)  # parameters of a model with one stack
TWO = (2_894_272, 97_172_992, 224_017_664)
HALVES = (1_861_120, 52_920_832, 124_904_192)
BOTH = ("encoder-decoder", "span-corruption", "", "transformers has no such encoder-decoder")
DECODER = ("causal", "modernbert-decoder", "ModernBertDecoderForCausalLM")
TRIO = (
    _members("encoder-{}", "encoder", "masked", "modernbert", "ModernBertForMaskedLM", ONE)
    | _members("decoder-{}", "decoder", *DECODER, ONE)
    | _members("seq2seq-{}", *BOTH, TWO)
    | _members("seq2seq-{}-half", *BOTH, HALVES, divisor=2)
)
