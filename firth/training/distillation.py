"""A smaller network that starts from a larger one (DistilBERT, Sanh et al. 2019, section 2)."""

from __future__ import annotations

import re

import torch

from firth.errors import MismatchError
from firth.models.transformer import Transformer

BLOCK = re.compile(r"^(encoder|decoder)\.blocks\.(\d+)\.")


def chosen_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layers that the student begins with: evenly spread, first and last included.

    >>> chosen_layers(6, 12)
    [0, 2, 4, 7, 9, 11]
    """
    return [round(i * (teacher - 1) / max(1, student - 1)) for i in range(student)]


@torch.no_grad()
def student_of(student: Transformer, teacher: Transformer) -> None:
    """Copy every weight the student has a counterpart for."""
    if student.config.vocabulary != teacher.config.vocabulary:
        raise MismatchError(
            f"The student knows {student.config.vocabulary:,} tokens, its teacher "
            f"{teacher.config.vocabulary:,}: both must have the same tokenizer."
        )
    if student.config.width != teacher.config.width:
        raise MismatchError(
            f"A student of width {student.config.width} cannot take over layers of width "
            f"{teacher.config.width}; choose a preset as wide as its teacher, or set model.width."
        )
    layers = chosen_layers(student.config.layers, teacher.config.layers)
    known = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        source = BLOCK.sub(lambda m: f"{m[1]}.blocks.{layers[int(m[2])]}.", name)
        if source in known and known[source].shape == tensor.shape:
            tensor.copy_(known[source])
