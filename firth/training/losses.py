"""From a batch to named losses: each a sum, a count and a weight.

Different predictions have different denominators. A step divides each sum once, by the count of
the whole step, so that accumulation and packing give the gradient of one big batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_embedding_loss
from torch.nn.functional import cross_entropy as plain_cross_entropy

from firth.draws import Floats, Longs, derive, uniform
from firth.errors import Misuse
from firth.models.heads import BoundaryHead, LanguageHead
from firth.models.journey import as_tensor
from firth.models.masks import Mask, take
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Packed, Prediction
from firth.objectives.replaced import replaced
from firth.text.tokenizer import Vocabulary
from firth.training.cross_entropy import cross_entropy
from firth.training.distillation import soft_targets
from firth.training.label_losses import LABEL_LOSSES, Loss

# What counts how much beside a teacher (Sanh et al. 2019, and their training code).
TAUGHT = {"soft targets": 5.0, "masked": 2.0, "cosine": 1.0}
SAMPLE = 50  # what is drawn: the generator's tokens
SCORED = 1024  # tokens whose scores of all others are held at once
AT_ONCE = 16_384  # tokens that a network reads at once where nothing is learned


@dataclass(frozen=True)
class Term:
    """One kind of prediction in one batch."""

    sum: Tensor
    count: int
    right: Tensor | None  # how many were predicted rightly, where that can be said
    weight: float = 1.0


def _language(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    head = network.heads["language"]
    assert isinstance(head, LanguageHead)
    chosen = take(hidden, as_tensor(wanted.positions, hidden.device))
    matrix = head.matrix(network.tokens.weight)
    targets = as_tensor(wanted.targets, hidden.device)
    return cross_entropy(head.prepare(chosen), matrix, head.bias, targets)


def _boundary(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    head = network.heads["boundary"]
    assert isinstance(head, BoundaryHead)
    left, right, place = (
        as_tensor(values, hidden.device) for values in (wanted.left, wanted.right, wanted.place)
    )
    ready = head.prepare(hidden[left], hidden[right], place)
    targets = as_tensor(wanted.targets, hidden.device)
    return cross_entropy(ready, network.tokens.weight, None, targets)


def _pair(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    first = hidden[as_tensor(wanted.positions, hidden.device)]
    if "pooler" in network.heads:  # MobileBERT has none
        first = network.heads["pooler"](first)
    scores = network.heads["pair"](first).float()
    targets = as_tensor(wanted.targets, hidden.device)
    right = (scores.argmax(-1) == targets).sum()
    return plain_cross_entropy(scores, targets, reduction="sum"), right


def _replaced(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    scores = network.heads["replaced"](
        take(hidden, as_tensor(wanted.positions, hidden.device))
    ).float()
    targets = as_tensor(wanted.targets, hidden.device)
    right = ((scores > 0) == targets.bool()).sum()
    return binary_cross_entropy_with_logits(scores, targets.float(), reduction="sum"), right


# What is predicted -> how it is scored, and the heads that needs.
LOSSES: dict[str, tuple[Loss, tuple[str, ...]]] = {
    "masked": (_language, ("language",)),
    "causal": (_language, ("language",)),
    "prefix": (_language, ("language",)),
    "denoising": (_language, ("language",)),
    "target": (_language, ("language",)),
    "boundary": (_boundary, ("boundary",)),
    "next sentence": (_pair, ("pair",)),
    "sentence order": (_pair, ("pair",)),
    "replaced": (_replaced, ("replaced",)),
    **LABEL_LOSSES,
}


class Trainee(nn.Module):
    """The network that learns, with the second one its objective may need beside it."""

    def __init__(
        self,
        network: Transformer,
        *,
        generator: Transformer | None = None,
        teacher: Transformer | None = None,
        vocabulary: Vocabulary | None = None,
        weights: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.generator = network, generator
        self.vocabulary, self.weights = vocabulary, weights or {}
        self.teacher = [teacher] if teacher is not None else []  # a list: not trained, not saved
        if generator is not None:
            generator.tokens = network.tokens  # one table (Clark et al. 2020, section 3.2)

    def to(self, *arguments: Any, **options: Any) -> Trainee:
        """Move the network, and its teacher with it."""
        for teacher in self.teacher:
            teacher.to(*arguments, **options)
        return super().to(*arguments, **options)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.tokens.weight.device

    def forward(self, batch: Batch) -> dict[str, Term]:
        """The losses of a batch by name."""
        if self.generator is not None:
            return self._with_generator(batch)
        hidden = run(self.network, batch)
        terms = self._terms(self.network, hidden, batch)
        if self.teacher:
            terms |= self._distilled(batch, hidden)
        return terms

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many predictions of each kind `forward` will make of a batch."""
        counts = batch.counts()
        if self.generator is not None:
            assert self.vocabulary is not None
            counts["replaced"] = int((~self.vocabulary.special[_original(batch).tokens]).sum())
        if self.teacher:
            counts["soft targets"] = counts["cosine"] = counts["masked"]
        return counts

    def _terms(self, network: Transformer, hidden: Tensor, batch: Batch) -> dict[str, Term]:
        terms = {}
        for name, wanted in batch.predictions.items():
            if len(wanted.targets):
                loss, right = LOSSES[name][0](network, hidden, wanted, batch)
                weight = self.weights.get(name, 1.0)
                terms[name] = Term(loss, len(wanted.targets), right, weight)
        return terms

    def _with_generator(self, batch: Batch) -> dict[str, Term]:
        """ELECTRA: a generator fills in, the network finds what it made up."""
        assert self.generator is not None
        assert self.vocabulary is not None
        hidden = run(self.generator, batch)
        terms = self._terms(self.generator, hidden, batch)
        samples = _sample(self.generator, hidden, batch)
        asked = replaced(_original(batch), self.vocabulary, batch, samples)
        return terms | self._terms(self.network, run(self.network, asked), asked)

    def _distilled(self, batch: Batch, hidden: Tensor) -> dict[str, Term]:
        """DistilBERT: the teacher's whole distribution, and the direction of its vectors."""
        wanted = batch.predictions["masked"]
        positions = as_tensor(wanted.positions, hidden.device)
        with torch.no_grad():
            taught = run(self.teacher[0], batch)[positions]
        mine = hidden[positions]
        soft, right = soft_targets(self.network, self.teacher[0], mine, taught, SCORED)
        ones = torch.ones(len(mine), device=hidden.device)
        near = cosine_embedding_loss(mine.float(), taught.float(), ones, reduction="sum")
        weights = self.weights.get("soft targets", 1.0), self.weights.get("cosine", 1.0)
        return {
            "soft targets": Term(soft, len(mine), right, weights[0]),
            "cosine": Term(near, len(mine), None, weights[1]),
        }


def mean_losses(trainee: Trainee, batches: Iterable[Batch]) -> dict[str, float]:
    """Each loss over all batches, the share that was right, and their weighted sum."""
    sums: dict[str, float] = {}
    rights: dict[str, float] = {}
    counts: dict[str, int] = {}
    weights: dict[str, float] = {}
    for batch in batches:
        for name, term in trainee(batch).items():
            sums[name] = sums.get(name, 0.0) + float(term.sum)
            if term.right is not None:
                rights[name] = rights.get(name, 0.0) + float(term.right)
            counts[name] = counts.get(name, 0) + term.count
            weights[name] = term.weight
    losses = {name: total / counts[name] for name, total in sums.items()}
    right = {f"{name} right": value / counts[name] for name, value in rights.items()}
    return {"loss": sum(weights[n] * value for n, value in losses.items()), **losses, **right}


def run(network: Transformer, batch: Batch) -> Tensor:
    """What the heads see of a batch."""  # (N, W)
    device = network.tokens.weight.device
    inputs, target = batch.inputs, batch.target
    tokens, segments = as_tensor(inputs.tokens, device), None
    if inputs.segments is not None and network.config.reading.segments:
        segments = as_tensor(inputs.segments, device)
    mask = Mask(inputs.lengths, prefix=batch.prefix, device=device)
    if target is None:  # an encoder in front of a decoder can be asked by itself
        reads = network.encode if network.config.architecture == "encoder-decoder" else network
        hidden = reads(tokens, mask, segments=segments)
        return hidden if len(hidden) == len(tokens) else hidden[: len(tokens)]  # without a prompt
    memory = network.encode(tokens, mask, segments=segments)
    aim = Mask.causal(target.lengths, device=device)
    stream = as_tensor(target.tokens, device)
    return network(stream, aim, memory=memory, memory_mask=mask)


@torch.no_grad()
def token_losses(network: Transformer, batch: Batch, wanted: Prediction) -> Floats:
    """The loss of each predicted token by itself, in nats."""  # (M,)
    hidden, found = run(network, batch), []
    positions, targets = (
        as_tensor(values, hidden.device) for values in (wanted.positions, wanted.targets)
    )
    for where, right in zip(positions.split(SCORED), targets.split(SCORED), strict=True):
        scores = network.logits(hidden[where]).float()
        found.append(plain_cross_entropy(scores, right, reduction="none").double().cpu())
    return torch.cat(found).numpy() if found else np.empty(0)


def label_scores(network: Transformer, batch: Batch) -> Tensor:
    """The scores of a batch's labels: of its sequences, or of its tokens."""
    found = []
    for part in batch.split(AT_ONCE):
        hidden = run(network, part)
        starts = as_tensor(part.output.starts, hidden.device)
        found.append(network.label_scores(hidden, starts).float())
    return torch.cat(found)


def _original(batch: Batch) -> Packed:
    """The sequences before anything was hidden."""
    tokens, hidden = batch.inputs.tokens.copy(), batch.predictions["masked"]
    tokens[hidden.positions] = hidden.targets
    return batch.inputs.with_tokens(tokens)


@torch.no_grad()
def _sample(generator: Transformer, hidden: Tensor, batch: Batch) -> Longs:
    """A token for each hidden place, drawn by the place's own number and not by what is around."""
    positions = batch.predictions["masked"].positions
    owners, offsets = batch.inputs.owners[positions], batch.inputs.offsets[positions]
    draws = uniform(derive(batch.inputs.keys[owners], offsets), SAMPLE)
    places, asked = (as_tensor(values, hidden.device) for values in (positions, draws))
    found = []
    for where, draw in zip(places.split(SCORED), asked.split(SCORED), strict=True):
        shares = generator.logits(hidden[where]).float().softmax(-1).cumsum(-1)  # (SCORED, V)
        at = draw.to(shares)[:, None] * shares[:, -1:]
        found.append(torch.searchsorted(shares, at).squeeze(1).clamp(max=shares.shape[1] - 1))
    return torch.cat(found).cpu().numpy()


def heads_for(predictions: tuple[str, ...]) -> tuple[str, ...]:
    """The heads a network needs to be asked these things."""
    unknown = [name for name in predictions if name not in LOSSES]
    if unknown:
        raise Misuse(f"Nothing here can learn from {', '.join(unknown)}.")
    return tuple(dict.fromkeys(head for name in predictions for head in LOSSES[name][1]))
