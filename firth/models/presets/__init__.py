"""Presets: published models by name, one file for each architecture.

A new model is one row of its family; a new family is a dictionary of the fields its members share
and a dictionary with one row per member.
"""

from __future__ import annotations

from difflib import get_close_matches

from firth.embedded import EMBEDDED_MODELS
from firth.models.presets.decoders import DECODERS
from firth.models.presets.earlier import EARLIER
from firth.models.presets.encoder_decoders import ENCODER_DECODERS
from firth.models.presets.encoders import ENCODERS
from firth.models.presets.row import Preset
from firth.models.presets.task_models import TASK_MODELS
from firth.models.presets.trio import TRIO
from firth.utils.arguments import check_arguments
from firth.utils.errors import UsageError

__all__ = ["PRESETS", "Preset", "list_presets", "preset"]

PRESETS: dict[str, Preset] = ENCODERS | DECODERS | ENCODER_DECODERS | TRIO | EARLIER


def list_presets() -> list[Preset]:
    """Return all presets: model architectures that can be pre-trained.

    >>> [row.name for row in list_presets() if row.config.num_layers > 90]
    ['gpt3-175b']
    """
    return list(PRESETS.values())


@check_arguments
def preset(name: str) -> Preset:
    """Return a preset by its name; raise UsageError with similar names if there is none.

    >>> preset("bert-base").config.hidden_size
    768
    """
    if name in PRESETS:
        return PRESETS[name]
    if name in EMBEDDED_MODELS:
        raise UsageError(
            f"{name} is a trained model, not a preset: use it as MODEL, or as --from of pretrain."
        )
    if name in TASK_MODELS:
        raise UsageError(
            f"{name} is trained on a task, not pre-trained: "
            f"`firth finetune {name} --task {TASK_MODELS[name].tasks[0]} --train FILE --out RUN`."
        )
    near = get_close_matches(name.lower().replace("_", "-"), PRESETS, n=3)
    if not near:
        raise UsageError(f"There is no preset {name!r}; run `firth presets` for a list.")
    *others, last = near
    similar = f"{', '.join(others)} or {last}" if others else last
    raise UsageError(
        f"There is no preset {name!r}; did you mean {similar}? Run `firth presets` for a list."
    )
