"""Knowledge distillation: initialise and train a student from a teacher (Sanh et al. 2019)."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from torch.utils.checkpoint import checkpoint

from firth.models.language_model import LanguageNetwork
from firth.utils.errors import MismatchError

BLOCK = re.compile(r"^(encoder|decoder)\.blocks\.(\d+)\.")
TEMPERATURE = 2.0


def teacher_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher's layers to copy: evenly spaced, including the first and the last.

    >>> teacher_layers(6, 12)
    [0, 2, 4, 7, 9, 11]
    """
    return [round(i * (teacher - 1) / max(1, student - 1)) for i in range(student)]


@torch.no_grad()
def copy_teacher_weights(student: LanguageNetwork, teacher: LanguageNetwork) -> None:
    """Copy the teacher's weights to the student, with evenly spaced layers."""
    if student.config.vocab_size != teacher.config.vocab_size:
        raise MismatchError(
            f"The student has {student.config.vocab_size:,} tokens, its teacher "
            f"{teacher.config.vocab_size:,}; both need the same tokenizer."
        )
    if student.config.hidden_size != teacher.config.hidden_size:
        raise MismatchError(
            f"The student's hidden_size {student.config.hidden_size} differs from its teacher's "
            f"{teacher.config.hidden_size}; choose another preset, or set model.hidden_size."
        )
    layers = teacher_layers(student.config.num_layers, teacher.config.num_layers)
    known = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        source = BLOCK.sub(lambda m: f"{m[1]}.blocks.{layers[int(m[2])]}.", name)
        if source in known and known[source].shape == tensor.shape:
            tensor.copy_(known[source])


def distillation_loss(
    student: LanguageNetwork, teacher: LanguageNetwork, ours: Tensor, theirs: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the KL divergence of the student from the teacher, and the number of equal argmaxes.

    `ours` and `theirs` are hidden states (P, E). Logits are computed in chunks of positions, and
    again in the backward pass.
    """
    losses, agreements = [], []
    for our_part, their_part in zip(ours.split(chunk), theirs.split(chunk), strict=True):
        loss, agreement = checkpoint(
            *(_divergence, student, teacher, our_part, their_part),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        losses.append(loss)
        agreements.append(agreement)
    return torch.stack(losses).sum(), torch.stack(agreements).sum()


def _divergence(
    student: LanguageNetwork, teacher: LanguageNetwork, ours: Tensor, theirs: Tensor
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        targets = teacher.logits(theirs).float() / TEMPERATURE
    logits = student.logits(ours).float() / TEMPERATURE
    agreement = (logits.argmax(-1) == targets.argmax(-1)).sum()
    loss = kl_div(logits.log_softmax(-1), targets.log_softmax(-1), reduction="sum", log_target=True)
    return loss * TEMPERATURE**2, agreement
