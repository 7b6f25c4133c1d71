"""Losses of a batch by name: each a sum, a count and a weight.

A step divides each sum once, by the count of the whole step, so that gradient accumulation and
packing give exactly the gradient of one large batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_embedding_loss
from torch.nn.functional import cross_entropy as plain_cross_entropy

from firth.data.packing import PackedSequences
from firth.models.heads import BoundaryHead, LanguageHead
from firth.models.language_model import LanguageNetwork, LossTerm
from firth.models.masks import Mask, select_rows
from firth.models.recurrent.pointer_generator import PointerGenerator
from firth.objectives.batch import Batch, PredictionTargets
from firth.objectives.replaced import replaced
from firth.tokenizers.tokenizer import Vocabulary
from firth.training.cross_entropy import cross_entropy
from firth.training.distillation import distillation_loss
from firth.training.distributed.ranks import gather_json, rank_turns, sum_by_name
from firth.training.label_losses import LABEL_LOSSES, Loss
from firth.training.log import ACCURACY
from firth.utils.device_transfer import to_device
from firth.utils.errors import UsageError
from firth.utils.rng import Floats, Longs, derive_keys, uniform

# Loss weights of distillation (Sanh et al. 2019, and their training code).
DISTILLATION_WEIGHTS = {"soft targets": 5.0, "masked": 2.0, "cosine": 1.0}
SAMPLE = 50  # name of the random draw of the generator's tokens
LOGITS_CHUNK = 1024  # positions whose logits are in memory at once
INFERENCE_BATCH_TOKENS = 16_384  # tokens per forward pass without gradients


def _language(
    network: LanguageNetwork,
    hidden: Tensor,
    wanted: PredictionTargets,
    batch: Batch,
    backward: bool = False,
) -> tuple[Tensor, Tensor]:
    head = network.heads["language"]
    assert isinstance(head, LanguageHead)
    chosen = select_rows(hidden, to_device(wanted.positions, hidden.device))
    targets = to_device(wanted.targets, hidden.device)
    if not network.logits_are_linear:
        logits = network.logits(chosen).float()
        num_correct = (logits.argmax(-1) == targets).sum()
        return plain_cross_entropy(logits, targets, reduction="sum"), num_correct
    chosen = network.prediction_states(chosen, backward=backward)
    matrix = head.matrix(network.tokens.weight)
    return cross_entropy(head.prepare(chosen), matrix, head.bias, targets)


def _coverage(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, None]:
    """Sum the attention on source tokens that were attended to before (See et al. 2017)."""
    assert isinstance(network, PointerGenerator)
    chosen = select_rows(hidden, to_device(wanted.positions, hidden.device))
    return network.coverage_losses(chosen).sum(), None


def _boundary(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    head = network.heads["boundary"]
    assert isinstance(head, BoundaryHead)
    left, right, position = (
        to_device(values, hidden.device)
        for values in (wanted.left, wanted.right, wanted.position_in_span)
    )
    prepared = head.prepare(hidden[left], hidden[right], position)
    targets = to_device(wanted.targets, hidden.device)
    return cross_entropy(prepared, network.tokens.weight, None, targets)


def pair_logits(network: LanguageNetwork, hidden: Tensor, starts: Longs) -> Tensor:
    """Compute the logits of NSP or SOP from the first tokens of sequences."""  # (S, 2)
    first = hidden[to_device(starts, hidden.device)]
    if "pooler" in network.heads:  # MobileBERT has none
        first = network.heads["pooler"](first)
    return network.heads["pair"](first).float()


def replaced_logits(network: LanguageNetwork, hidden: Tensor, positions: Longs) -> Tensor:
    """Compute the logits of ELECTRA's discriminator."""  # (P,)
    chosen = select_rows(hidden, to_device(positions, hidden.device))
    return network.heads["replaced"](chosen).float()


def _pair(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    logits = pair_logits(network, hidden, wanted.positions)
    targets = to_device(wanted.targets, hidden.device)
    num_correct = (logits.argmax(-1) == targets).sum()
    return plain_cross_entropy(logits, targets, reduction="sum"), num_correct


def _replaced(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    logits = replaced_logits(network, hidden, wanted.positions)
    targets = to_device(wanted.targets, hidden.device)
    num_correct = ((logits > 0) == targets.bool()).sum()
    loss = binary_cross_entropy_with_logits(logits, targets.float(), reduction="sum")
    return loss, num_correct


# Prediction -> its loss function and the head it needs.
LOSSES: dict[str, tuple[Loss, str]] = {
    **dict.fromkeys("masked causal prefix denoising target".split(), (_language, "language")),
    "coverage": (_coverage, "language"),
    "forward": (_language, "language"),
    "backward": (partial(_language, backward=True), "language"),
    "boundary": (_boundary, "boundary"),
    **dict.fromkeys(("next sentence", "sentence order"), (_pair, "pair")),
    "replaced": (_replaced, "replaced"),
    **LABEL_LOSSES,
}


class TrainingModule(nn.Module):
    """The network to train, with the generator or teacher that its objective needs."""

    def __init__(
        self,
        network: LanguageNetwork,
        *,
        generator: LanguageNetwork | None = None,
        teacher: LanguageNetwork | None = None,
        vocabulary: Vocabulary | None = None,
        weights: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.generator = network, generator
        self.vocabulary, self.weights = vocabulary, weights or {}
        self.teacher = [teacher] if teacher is not None else []  # a list: no submodule
        if generator is not None:
            generator.tokens = network.tokens  # shared (Clark et al. 2020, section 3.2)

    def to(self, *arguments: Any, **options: Any) -> TrainingModule:
        """Move the network and its teacher."""
        for teacher in self.teacher:
            teacher.to(*arguments, **options)
        return super().to(*arguments, **options)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.network.device

    def forward(self, batch: Batch) -> dict[str, LossTerm]:
        """Compute the losses of a batch by name."""
        if self.generator is not None:
            return self._with_generator(batch)
        has_labels = not LABEL_LOSSES.keys().isdisjoint(batch.predictions)
        hidden = hidden_states(self.network, batch, for_labels=has_labels)
        terms = self._terms(self.network, hidden, batch)
        if terms and self.training and self.network.penalty_weights:
            mask = Mask.causal(batch.output.lengths, device=hidden.device)
            terms |= self.network.penalties(hidden, mask)
        if self.teacher:
            terms |= self._distilled(batch, hidden)
        return terms

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each loss that `forward` computes."""
        counts = batch.counts()
        if self.generator is not None:
            assert self.vocabulary is not None
            counts["replaced"] = int((~self.vocabulary.special[_original(batch).tokens]).sum())
        if self.teacher:
            counts["soft targets"] = counts["cosine"] = counts["masked"]
        if self.training:
            counts |= dict.fromkeys(self.network.penalty_weights, len(batch.output.tokens))
        return counts

    def _terms(self, network: LanguageNetwork, hidden: Tensor, batch: Batch) -> dict[str, LossTerm]:
        terms = {}
        for name, wanted in batch.predictions.items():
            if len(wanted.targets):
                loss, num_correct = LOSSES[name][0](network, hidden, wanted, batch)
                weight = self.weights.get(name, 1.0)
                terms[name] = LossTerm(loss, len(wanted.targets), num_correct, weight)
        return terms

    def _with_generator(self, batch: Batch) -> dict[str, LossTerm]:
        """Compute ELECTRA's losses: the generator's predictions and the network's detection."""
        assert self.generator is not None
        assert self.vocabulary is not None
        hidden = hidden_states(self.generator, batch)
        terms = self._terms(self.generator, hidden, batch)
        samples = _sample(self.generator, hidden, batch)
        detection = replaced(_original(batch), self.vocabulary, batch, samples)
        hidden = hidden_states(self.network, detection)
        return terms | self._terms(self.network, hidden, detection)

    def _distilled(self, batch: Batch, hidden: Tensor) -> dict[str, LossTerm]:
        """Compute DistilBERT's losses: soft targets, and the cosine of the hidden states."""
        wanted = batch.predictions["masked"]
        positions = to_device(wanted.positions, hidden.device)
        with torch.no_grad():
            theirs = hidden_states(self.teacher[0], batch)[positions]
        ours = hidden[positions]
        soft, agreeing = distillation_loss(
            self.network, self.teacher[0], ours, theirs, LOGITS_CHUNK
        )
        ones = torch.ones(len(ours), device=hidden.device)
        cosine = cosine_embedding_loss(ours.float(), theirs.float(), ones, reduction="sum")
        weights = self.weights.get("soft targets", 1.0), self.weights.get("cosine", 1.0)
        return {
            "soft targets": LossTerm(soft, len(ours), agreeing, weights[0]),
            "cosine": LossTerm(cosine, len(ours), None, weights[1]),
        }


def mean_losses(module: TrainingModule, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the mean losses over all batches, their weighted sum, and the accuracies.

    Each rank runs some of the batches.
    """
    sums: dict[str, float] = {}
    correct: dict[str, float] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    for batch, is_counted in rank_turns(batches):
        terms = module(batch)
        for name, term in terms.items() if is_counted else ():
            sums[name] = sums.get(name, 0.0) + float(term.sum)
            if term.num_correct is not None:
                correct[name] = correct.get(name, 0.0) + float(term.num_correct)
            counts[name] = counts.get(name, 0) + term.count
            weights[name] = term.weight
    sums, correct, counts = (sum_by_name(values) for values in (sums, correct, counts))
    weights = {name: weight for own in gather_json(weights) for name, weight in own.items()}
    losses = {name: total / counts[name] for name, total in sums.items()}
    accuracies = {f"{name}{ACCURACY}": value / counts[name] for name, value in correct.items()}
    total = sum(weights[name] * value for name, value in losses.items())
    return {"loss": total, **losses, **accuracies}


def hidden_states(network: LanguageNetwork, batch: Batch, *, for_labels: bool = False) -> Tensor:
    """Run the network on a batch; return the last hidden states, or the label head's input."""
    device = network.device
    inputs, target = batch.inputs, batch.target
    tokens, segments = to_device(inputs.tokens, device), None
    if inputs.segments is not None and network.config.input_config.num_segments:
        segments = to_device(inputs.segments, device)
    mask = Mask(inputs.lengths, prefix=batch.prefix, device=device)
    if target is None:  # an encoder-decoder's encoder can be used alone
        encode = network.encode_for_labels if for_labels else network.encode
        return encode(tokens, mask, segments=segments)[: len(tokens)]  # without virtual tokens
    memory = network.encode_source(tokens, mask, segments=segments)  # (M, W)
    target_mask = Mask.causal(target.lengths, device=device)
    stream = to_device(target.tokens, device)
    return network(stream, target_mask, memory=memory, memory_mask=mask)


@torch.no_grad()
def token_losses(network: LanguageNetwork, batch: Batch, wanted: PredictionTargets) -> Floats:
    """Return the loss of each target, in nats."""  # (M,)
    hidden, found = hidden_states(network, batch), []
    positions, targets = (
        to_device(values, hidden.device) for values in (wanted.positions, wanted.targets)
    )
    for chunk, wanted_tokens in zip(
        positions.split(LOGITS_CHUNK), targets.split(LOGITS_CHUNK), strict=True
    ):
        logits = network.logits(hidden[chunk]).float()
        found.append(plain_cross_entropy(logits, wanted_tokens, reduction="none").double().cpu())
    return torch.cat(found).numpy() if found else np.empty(0)


def label_logits(network: LanguageNetwork, batch: Batch) -> Tensor:
    """Return the label logits of a batch's sequences or tokens."""
    found = []
    for part in batch.split(INFERENCE_BATCH_TOKENS):
        hidden = hidden_states(network, part, for_labels=True)
        starts = to_device(part.output.starts, hidden.device)
        found.append(network.label_logits(hidden, starts).float())
    return torch.cat(found)


def _original(batch: Batch) -> PackedSequences:
    """Return the sequences before masking."""
    tokens, hidden = batch.inputs.tokens.copy(), batch.predictions["masked"]
    tokens[hidden.positions] = hidden.targets
    return batch.inputs.with_tokens(tokens)


@torch.no_grad()
def _sample(generator: LanguageNetwork, hidden: Tensor, batch: Batch) -> Longs:
    """Sample a token for each masked position; the random numbers depend on the position alone."""
    positions = batch.predictions["masked"].positions
    owners, offsets = batch.inputs.owners[positions], batch.inputs.offsets[positions]
    draws = uniform(derive_keys(batch.inputs.keys[owners], offsets), SAMPLE)
    chunks = (to_device(values, hidden.device).split(LOGITS_CHUNK) for values in (positions, draws))
    samples = []
    for chunk, draw in zip(*chunks, strict=True):
        cumulative = generator.logits(hidden[chunk]).float().softmax(-1).cumsum(-1)  # (chunk, V)
        at = draw.to(cumulative)[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, at).squeeze(1)
        samples.append(tokens.clamp(max=cumulative.shape[1] - 1))
    found = torch.cat(samples)
    if isinstance(found, FakeTensor):  # of a dry run: it has no values
        return np.zeros(len(found), np.int64)
    return found.cpu().numpy()


def heads_for(predictions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the heads that these predictions need."""
    unknown = [name for name in predictions if name not in LOSSES]
    if unknown:
        raise UsageError(f"There is no loss for the prediction {', '.join(unknown)}.")
    return tuple(dict.fromkeys(LOSSES[name][1] for name in predictions))
