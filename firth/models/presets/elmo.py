"""ELMo in its published size, and a small one that a CPU trains in minutes."""

from __future__ import annotations

from typing import Any

from firth.models.presets.row import Preset
from firth.models.recurrent.elmo_config import ElmoConfig


def _elmo(name: str, parameters: int, source: str, **sizes: Any) -> Preset:
    """Return ELMo in some size; the softmax is scaled as its initialization by fan-in requires."""
    config = ElmoConfig(
        architecture="decoder",
        num_layers=2,
        head_bias="trained",
        head_scale=True,
        initialization="fan-in",
        init_std=0.7,
        **sizes,
    )
    how: dict[str, Any] = dict(objective="bilm", recipe="elmo", heads=("language",))
    return Preset(name=name, config=config, parameters=parameters, source=source, **how)


PAPER = "Peters et al. 2018"
ELMO: dict[str, Preset] = {
    row.name: row
    for row in (
        # 93.6M without the softmax and one of torch's two bias vectors of each LSTM.
        _elmo(
            "elmo-original",
            500_717_023,
            PAPER,
            vocab_size=793_471,
            max_positions=4096,
            hidden_size=1024,
            cell_size=4096,
        ),
        _elmo(
            "elmo",
            3_932_368,
            f"a small model after {PAPER}",
            vocab_size=20_000,
            max_positions=1024,
            hidden_size=256,
            cell_size=256,
            filters=(16, 32, 64, 64, 64),
            highway_layers=1,
        ),
    )
}
