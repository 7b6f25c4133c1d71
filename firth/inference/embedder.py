"""How a network makes one vector of a text: which layers, which pooling, in which precision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import nn

from firth.adapt.prompts import reading_room
from firth.errors import Misuse
from firth.models.formats.sentence import Normalize, Sentence
from firth.models.pooling import read_pooling
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

Layer = int | Sequence[int]

BATCH = {"cpu": 4096, "cuda": 65_536}  # tokens that a network sees at once
PRECISIONS = ("auto", "fp32", "bf16")
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # of weights that are kept so


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A network with its tokenizer, and how one vector is made of those of a text's tokens."""

    network: Transformer
    tokenizer: Tokenizer
    pooling: tuple[str, ...]  # several are put side by side
    steps: nn.Sequential  # what is done to the pooled vector: projections, norms
    layers: tuple[int, ...]  # whose mean is pooled; 0: what enters the first layer
    limit: int  # tokens of a text, with those its family puts around it; the rest is cut
    prompt: str = ""  # stands before every text
    skip: int = 0  # so many tokens of the prompt are not pooled
    batch: int = 0  # tokens that the network sees at once; 0: what suits the device
    half: bool = False  # products of matrices in bf16, all else as the weights are

    @cached_property
    def width(self) -> int:
        """The size of its vectors."""
        width = self.network.config.reading.width
        pooled = torch.zeros(1, width * len(self.pooling), device=self.device)
        return int(self.steps(pooled).shape[1])

    @property
    def device(self) -> torch.device:
        return self.network.tokens.weight.device

    @property
    def precision(self) -> str:
        """What products of matrices are computed in: fp32, bf16 or fp16."""
        if self.half:
            return "bf16"
        return NAMES.get(self.network.tokens.weight.dtype, "fp32")

    @property
    def budget(self) -> int:
        """Tokens that the network sees at once."""
        return self.batch or BATCH.get(self.device.type, BATCH["cuda"])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The network without dropout, also where it is being trained, in the precision chosen."""
        network = self.network
        stacks = [stack for stack in (network.encoder, network.decoder) if stack is not None]
        training, wide = network.training, [stack.wide for stack in stacks]
        network.eval()
        with ExitStack() as undo:
            undo.callback(network.train, training)
            for stack, was in zip(stacks, wide, strict=True):
                undo.callback(setattr, stack, "wide", was)
                stack.wide = True
            undo.enter_context(torch.autocast(self.device.type, torch.bfloat16, self.half))
            yield

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides which vector a text gets."""
        settings = {
            "config": self.network.config.to_dict(),
            "tokenizer": self.tokenizer.fingerprint,
            "pooling": [self.pooling, self.layers, self.limit, self.prompt, self.skip],
            "steps": [str(step) for step in self.steps],
        }
        if self.half:
            settings["precision"] = "bf16"
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for module in (self.network, self.steps):
            for name, tensor in chain(module.named_parameters(), module.named_buffers()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def make_embedder(
    network: Transformer,
    tokenizer: Tokenizer,
    sentence: Sentence | None = None,
    *,
    pooling: str | None = None,
    layer: Layer | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    precision: str = "auto",
    batch: int = 0,
) -> Embedder:
    """What a model's directory says of embedding texts, and what is asked for instead.

    Where neither says anything, an encoder's vectors are averaged; of a decoder, only the last
    token has seen the whole text. `prompt` is the name of one that the directory has; `precision`
    is auto, fp32 or bf16.
    """
    usual = ("mean",) if network.config.has_encoder else ("last",)
    given = sentence or Sentence(pooling=usual)
    kinds = read_pooling(pooling) if pooling else given.pooling
    if "cls" in kinds and network.config.architecture == "decoder":
        raise Misuse(
            "The first token of a decoder sees nothing of the text behind it, so cls says nothing "
            "of it; pool by last or mean."
        )
    Sentence(pooling=kinds, steps=given.steps).width(network.config.reading.width)
    before = _prompt(given, prompt)
    said = (given.longest, tokenizer.config.get("model_max_length"), reading_room(network))
    return Embedder(
        network=network,
        tokenizer=tokenizer,
        pooling=kinds,
        steps=_steps(given.steps, normalize).to(network.tokens.weight.device),
        layers=_layers(network, layer),
        limit=int(min(size for size in said if isinstance(size, int | float) and size > 0)),
        prompt=before,
        skip=_prompt_length(tokenizer, before) if before and not given.pools_prompt else 0,
        batch=batch,
        half=_half(network, precision),
    )


def _half(network: Transformer, precision: str) -> bool:
    """Whether products of matrices are made in bf16, over weights in single precision.

    Not on the CPU unless that is asked for. On a GPU it is usual for encoders, whose vectors keep a
    cosine of 0.9999 with those of single precision; those of decoders do not quite.
    """
    if precision not in PRECISIONS:
        raise Misuse(f"There is no precision {precision!r}; there are {', '.join(PRECISIONS)}.")
    weights = network.tokens.weight
    whole = weights.dtype == torch.float32
    if precision == "auto":
        return whole and weights.is_cuda and network.config.has_encoder
    if not whole and not (precision == "bf16" and weights.dtype == torch.bfloat16):
        kept = str(weights.dtype).removeprefix("torch.")
        raise Misuse(
            f"The weights are kept in {kept}, so {precision} is not to be had; load the model with "
            'dtype="float32" (--dtype float32).'
        )
    return whole and precision == "bf16"


def _steps(steps: Sequence[nn.Module], normalize: bool | None) -> nn.Sequential:
    kept = list(steps)
    if normalize is not None:
        while kept and isinstance(kept[-1], Normalize):
            kept.pop()
        kept += [Normalize()] if normalize else []
    return nn.Sequential(*kept)


def _layers(network: Transformer, layer: Layer | None) -> tuple[int, ...]:
    """The layers of a network that are asked for, counted from the first; -1 is the last."""
    most = network.config.layers
    asked = (most,) if layer is None else (layer,) if isinstance(layer, int) else tuple(layer)
    for number in asked:
        if not -most - 1 <= number <= most:
            raise Misuse(
                f"There is no layer {number}: this model has {most} (0 is what enters the first, "
                "-1 the last)."
            )
    if not asked:
        raise Misuse("Name at least one layer.")
    return tuple(number % (most + 1) for number in asked)


def _prompt(sentence: Sentence, name: str | None) -> str:
    name = sentence.prompt if name is None else name
    if not name:
        return ""
    if name not in sentence.prompts:
        there = ", ".join(sentence.prompts) or "none"
        raise Misuse(f"This model has no prompt {name!r}; it has {there}.")
    return sentence.prompts[name]


def _prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """How many tokens a prompt is, with those before it but without those behind it."""
    mask = tokenizer.backend.encode(prompt).special_tokens_mask
    return len(mask) - (1 if mask and mask[-1] else 0)
