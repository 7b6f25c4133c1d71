"""The chunked cross-entropy equals torch's, with its gradients, for any chunk size."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy as reference
from torch.nn.functional import linear

from firth.training import cross_entropy as module
from firth.training.cross_entropy import cross_entropy

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pieces", [1 << 24, 7 * 11])
@pytest.mark.parametrize("device", DEVICES)
def test_loss_and_gradients_equal_torch(
    bias: bool, pieces: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.MAX_LOGITS, device, pieces)
    dtype = torch.float64 if device == "cpu" else torch.float32  # what the GPU's kernel knows
    generator = torch.Generator().manual_seed(1)
    hidden, matrix, shift = (
        torch.randn(*shape, generator=generator, dtype=dtype).to(device).requires_grad_()
        for shape in ((30, 5), (11, 5), (11,))
    )
    targets = torch.randint(11, (30,), generator=generator).to(device)
    wanted = [hidden, matrix, *([shift] if bias else [])]
    scores = linear(hidden, matrix, shift if bias else None)
    loss = reference(scores, targets, reduction="sum") * 0.3
    ours, right = cross_entropy(hidden, matrix, shift if bias else None, targets)
    torch.testing.assert_close(ours * 0.3, loss)
    assert int(right) == int((scores.argmax(-1) == targets).sum())
    theirs = torch.autograd.grad(loss, wanted)
    for mine, other in zip(torch.autograd.grad(ours * 0.3, wanted), theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_target_that_ties_with_the_maximum_is_correct() -> None:
    _, right = cross_entropy(torch.eye(1), torch.ones(3, 1), None, torch.tensor([2]))
    assert int(right) == 1


def test_half_precision_is_close_and_has_float32_gradients() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(64, 32, generator=generator, requires_grad=True)
    matrix = (torch.randn(100, 32, generator=generator) * 0.2).requires_grad_()
    targets = torch.randint(100, (64,), generator=generator)
    exact = reference(linear(hidden, matrix), targets, reduction="sum")
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = cross_entropy(hidden, matrix, None, targets)
    assert loss.dtype == torch.float32
    assert abs(float(loss.detach() - exact.detach())) < 0.01 * float(exact.detach())
    loss.backward()
    assert matrix.grad is not None
    assert matrix.grad.dtype == torch.float32


@pytest.mark.parametrize("learns", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("device", DEVICES)
def test_frozen_inputs_have_no_gradient(
    learns: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.MAX_LOGITS, device, 77)
    generator = torch.Generator().manual_seed(1)
    shapes = (30, 5), (11, 5), (11,)
    parts = [torch.randn(*shape, generator=generator).to(device) for shape in shapes]
    for i in learns:
        parts[i].requires_grad_()
    targets = torch.randint(11, (30,), generator=generator).to(device)
    wanted = [parts[i] for i in learns]
    right = torch.autograd.grad(reference(linear(*parts), targets, reduction="sum"), wanted)
    cross_entropy(*parts, targets)[0].backward()
    for i, part in enumerate(parts):
        assert (part.grad is not None) == (i in learns)
    for part, gradient in zip(wanted, right, strict=True):
        assert part.grad is not None
        torch.testing.assert_close(part.grad, gradient)


def test_without_autograd_no_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module, "_add_gradients", never)
    learned = torch.eye(3, requires_grad=True)
    with torch.no_grad():
        loss, right = cross_entropy(learned, learned, None, torch.arange(3))
    assert not loss.requires_grad
    assert int(right) == 3
