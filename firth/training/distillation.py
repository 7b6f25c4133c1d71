"""A smaller network that starts from a larger one (DistilBERT, Sanh et al. 2019, section 2)."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from torch.utils.checkpoint import checkpoint

from firth.errors import MismatchError
from firth.models.transformer import Transformer

BLOCK = re.compile(r"^(encoder|decoder)\.blocks\.(\d+)\.")
TEMPERATURE = 2.0


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


def soft_targets(
    student: Transformer, teacher: Transformer, mine: Tensor, theirs: Tensor, at_once: int
) -> tuple[Tensor, Tensor]:
    """How far the student's distributions (P, V) are from the teacher's, and how often both agree.

    Scores are made for some positions at a time, and once more where their gradient is asked for.
    """
    losses, rights = [], []
    for ours, aims in zip(mine.split(at_once), theirs.split(at_once), strict=True):
        loss, right = checkpoint(
            _distance, student, teacher, ours, aims, use_reentrant=False, preserve_rng_state=False
        )
        losses.append(loss)
        rights.append(right)
    return torch.stack(losses).sum(), torch.stack(rights).sum()


def _distance(
    student: Transformer, teacher: Transformer, mine: Tensor, theirs: Tensor
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        aim = teacher.logits(theirs).float() / TEMPERATURE
    scores = student.logits(mine).float() / TEMPERATURE
    right = (scores.argmax(-1) == aim.argmax(-1)).sum()
    far = kl_div(scores.log_softmax(-1), aim.log_softmax(-1), reduction="sum", log_target=True)
    return far * TEMPERATURE**2, right
