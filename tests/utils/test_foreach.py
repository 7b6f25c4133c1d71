"""One operation on many tensors: with torch's private functions and without them, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from firth.utils.foreach import foreach

OPERATIONS: dict[str, dict[str, Any]] = {"zero_": {}, "mul_": {}, "add_": {"alpha": -0.3}}
OPERATIONS |= {"lerp_": {}, "lerp": {}}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("has_private", [True, False])
def test_each_tensor_is_changed_as_alone(
    operation: str, has_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw() -> list[torch.Tensor]:
        return [torch.randn(size, generator=generator) for size in (3, 5, 1)]

    generator = torch.Generator().manual_seed(0)
    tensors, others = draw(), draw()
    scalar = torch.tensor(0.7)
    given: list[Any] = {"zero_": [], "mul_": [scalar], "add_": [others]}.get(
        operation, [others, 0.25]
    )
    options = OPERATIONS[operation]
    expected = []
    for i, tensor in enumerate(tensors):
        own = [one[i] if one is others else one for one in given]
        expected.append(getattr(tensor.clone(), operation)(*own, **options))
    if not has_private:
        monkeypatch.delattr(torch, f"_foreach_{operation}")
    found = foreach(operation, tensors, *given, **options)
    changed = tensors if operation.endswith("_") else found
    assert all(torch.equal(a, b) for a, b in zip(changed, expected, strict=True))
