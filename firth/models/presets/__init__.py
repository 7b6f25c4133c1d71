"""Published networks by name: rows of data, one file for each architecture.

A new network is one row in the table of its family; a new family is a dictionary of what its
members share and a table with a row for each.
"""

from __future__ import annotations

from difflib import get_close_matches

from firth.errors import Misuse
from firth.models.presets.decoders import DECODERS
from firth.models.presets.encoder_decoders import ENCODER_DECODERS
from firth.models.presets.encoders import ENCODERS
from firth.models.presets.row import Preset
from firth.models.presets.trio import TRIO

__all__ = ["PRESETS", "Preset", "preset"]

PRESETS: dict[str, Preset] = ENCODERS | DECODERS | ENCODER_DECODERS | TRIO


def preset(name: str) -> Preset:
    """A preset by its name.

    >>> preset("bert-base").config.width
    768
    >>> preset("bert-bse")
    Traceback (most recent call last):
    firth.errors.Misuse: There is no preset 'bert-bse'; did you mean bert-base, albert-base or \
bart-base, or another one that `firth presets` lists?
    """
    if name in PRESETS:
        return PRESETS[name]
    near = get_close_matches(name.lower().replace("_", "-"), PRESETS, n=3)
    if not near:
        raise Misuse(f"There is no preset {name!r}; `firth presets` lists those there are.")
    *others, last = near
    named = f"{', '.join(others)} or {last}" if others else last
    raise Misuse(
        f"There is no preset {name!r}; did you mean {named}, "
        "or another one that `firth presets` lists?"
    )
