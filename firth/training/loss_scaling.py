"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018, section 3.2).

Small gradients underflow to zero in fp16. The loss is multiplied by a scale before the backward
pass, and the gradients are divided by it afterwards. The scale is as large as overflows permit.
"""

from __future__ import annotations

from firth.training.state import TrainingState

GROWTH_INTERVAL = 2000  # steps with finite gradients before the scale is doubled


def update_loss_scale(state: TrainingState, finite: bool) -> bool:
    """Halve the scale after an overflow, double it after many finite steps.

    Return False when the step must be skipped because its gradients overflowed.

    >>> state = TrainingState(loss_scale=8.0)
    >>> update_loss_scale(state, finite=False), state.loss_scale
    (False, 4.0)
    """
    if finite:
        state.scaled_steps += 1
        if state.scaled_steps % GROWTH_INTERVAL == 0:
            state.loss_scale *= 2
    elif state.loss_scale > 1:
        state.loss_scale, state.scaled_steps = state.loss_scale / 2, 0
        return False
    return True
