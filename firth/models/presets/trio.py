"""The matched trio: encoder, decoder and encoder-decoder of the same blocks.

Only the mask differs between `encoder-X` and `decoder-X`, parameter for parameter. `seq2seq-X` has
as many blocks on each side as they have in all, `seq2seq-X-half` half as many: but for
cross-attention, a token costs the same in the former, and the latter is as large (plus one norm).
Every layer sees everything its mask allows. After Weller et al. 2025 (Ettin), who pair encoders
with decoders in this way.
"""

from __future__ import annotations

from firth.models.presets.encoders import MODERN
from firth.models.presets.row import Fields, Preset, family, size

SIZES: dict[str, Fields] = {
    "tiny": size(2, 192, 6, 512, context=512, vocabulary=4096),
    "small": size(12, 512, 8, 1376, context=1024, vocabulary=16384),
    "base": size(12, 768, 12, 2048, context=1024, vocabulary=32768),
}


def _members(
    names: str, architecture: str, objective: str, written_as: str, like: str, share: int = 1
) -> dict[str, Preset]:
    """One kind in every size; `share`: a side has the size's layers divided by this."""
    return family(
        MODERN | dict(family=written_as, architecture=architecture, pooling="mean"),
        {
            names.format(name): row | dict(layers=row["layers"] // share)
            for name, row in SIZES.items()
        },
        objective=objective,
        recipe="trio",
        source=f"Weller et al. 2025, Warner et al. 2024; {like}",
    )


BOTH = "encoder-decoder", "span-corruption", "", "no class has these blocks on two sides"
TRIO = (
    _members("encoder-{}", "encoder", "masked", "modernbert", "ModernBertForMaskedLM")
    | _members(
        "decoder-{}", "decoder", "causal", "modernbert-decoder", "ModernBertDecoderForCausalLM"
    )
    | _members("seq2seq-{}", *BOTH)
    | _members("seq2seq-{}-half", *BOTH, share=2)
)
