"""The CRF has the partition function, the likelihood and the Viterbi tags of pytorch-crf."""

from __future__ import annotations

import pytest
import torch

from firth.models.crf import LinearChainCrf

torchcrf = pytest.importorskip("torchcrf")
LENGTHS, TAGS = [7, 3, 1, 12, 12, 5], 9


def test_pytorch_crf() -> None:
    torch.manual_seed(0)
    ours, theirs = LinearChainCrf(TAGS), torchcrf.CRF(TAGS, batch_first=True)
    theirs.reset_parameters()
    names = {"start": "start_transitions", "end": "end_transitions", "transitions": "transitions"}
    for own, name in names.items():
        getattr(ours, own).data = getattr(theirs, name).data * 10
        getattr(theirs, name).data *= 10
    rows = 2 * torch.randn(len(LENGTHS), max(LENGTHS), TAGS)
    rows.requires_grad_()
    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(max(LENGTHS)) < lengths[:, None]
    tags = torch.randint(TAGS, (len(LENGTHS), max(LENGTHS)))

    likelihood = ours.score(rows, tags, lengths) - ours.log_partition(rows, lengths)
    expected = theirs(rows, tags, mask, reduction="none")
    assert likelihood.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    (gradient,) = torch.autograd.grad(likelihood.sum(), rows)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), rows)
    assert torch.allclose(gradient, expected_gradient, atol=1e-4)
    best = ours.best_tags(rows, lengths)
    found = [row[:length].tolist() for row, length in zip(best, LENGTHS, strict=True)]
    assert found == theirs.decode(rows, mask)
