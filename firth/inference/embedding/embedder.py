"""Text embedding models: network, layers, pooling, post-processing and precision."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import nn

from firth.formats.sentence_transformers import Normalize, SentenceEncoderConfig
from firth.models.language_model import HiddenStateModel
from firth.models.pooling import read_pooling
from firth.models.stack import Stack
from firth.models.task_specific.bag_of_words import BagOfWords
from firth.models.transformer import max_input_length
from firth.tokenizers.special_tokens import special_tokens_around
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.devices import device_spec, has_native_bf16, resolve_precision
from firth.utils.errors import UsageError

Layer = int | Sequence[int]

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}
PRECISIONS = ("auto", "fp32", "bf16", "force-bf16")
# While a network is in eval mode for an embedding.
LOCKS: WeakKeyDictionary[HiddenStateModel, threading.RLock] = WeakKeyDictionary()
DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A network with its tokenizer, and how token vectors become one vector per text."""

    network: HiddenStateModel
    tokenizer: Tokenizer
    pooling: tuple[str, ...]  # several are concatenated
    steps: nn.Sequential  # modules applied to the pooled vector: projections, norms
    layers: tuple[int, ...]  # whose mean is pooled; 0: the embeddings
    max_length: int  # tokens of a text with its special tokens; longer texts are cut
    prompt: str = ""  # prepended to every text
    skip: int = 0  # first tokens that are not pooled: those of the prompt
    batch_tokens: int = 0  # 0: the default of the device
    use_bf16: bool = False  # autocast matrix products to bf16

    @cached_property
    def dimension(self) -> int:
        """The size of the vectors."""
        hidden_size = self.network.config.input_config.hidden_size
        pooled = torch.zeros(1, hidden_size * len(self.pooling), device=self.device)
        return int(self.steps(pooled).shape[1])

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def precision(self) -> str:
        """The precision of matrix products: fp32, bf16 or fp16."""
        if self.use_bf16:
            return "bf16"
        return DTYPE_NAMES.get(self.network.dtype, "fp32")

    @property
    def tokens_per_batch(self) -> int:
        """The number of tokens in a batch."""
        return self.batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cuda"])

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        """Switch the network to eval mode and this precision, and restore its state afterwards.

        Other threads that embed with this network wait.
        """
        network = self.network
        with ExitStack() as undo:
            undo.enter_context(LOCKS.setdefault(network, threading.RLock()))
            if any(module.training for module in network.modules()):
                undo.callback(network.train, network.training)
                network.eval()
            for stack in [module for module in network.modules() if isinstance(module, Stack)]:
                undo.callback(setattr, stack, "float32_residual", stack.float32_residual)
                stack.float32_residual = True
            undo.enter_context(torch.autocast(self.device.type, torch.bfloat16, self.use_bf16))
            yield

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines the vectors."""
        options = {
            "config": self.network.config.to_dict(),
            "tokenizer": [self.tokenizer.fingerprint, special_tokens_around(self.tokenizer)],
            "pooling": [self.pooling, self.layers, self.max_length, self.prompt, self.skip],
            "steps": [str(step) for step in self.steps],
        }
        if self.use_bf16:
            options["precision"] = "bf16"
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
        for module in (self.network, self.steps):
            for name, tensor in chain(module.named_parameters(), module.named_buffers()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def make_embedder(
    network: HiddenStateModel,
    tokenizer: Tokenizer,
    sentence: SentenceEncoderConfig | None = None,
    *,
    pooling: str | None = None,
    layer: Layer | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    precision: str = "auto",
) -> Embedder:
    """Build an embedder from a model's sentence-encoder config and the given overrides.

    Without a config, an encoder and ELMo use mean pooling, and a decoder the last token, the only
    one that attends to the whole text. `prompt` is the name of one of the model's prompts;
    `precision` is auto, fp32, bf16 (fp32 where bf16 is emulated) or force-bf16.
    """
    if isinstance(network, BagOfWords):
        raise UsageError("A bag of words predicts labels; it has no vectors of texts.")
    default = ("mean",) if network.config.is_bidirectional else ("last",)
    given = sentence or SentenceEncoderConfig(pooling=default)
    kinds = read_pooling(pooling) if pooling else given.pooling
    if "cls" in kinds and network.config.architecture == "decoder":
        raise UsageError(
            "A decoder's first token does not attend to the text after it, so cls pooling is "
            "useless; use last or mean."
        )
    SentenceEncoderConfig(pooling=kinds, steps=given.steps).width(
        network.config.input_config.hidden_size
    )
    prompt_text = _prompt(given, prompt)
    limits = (given.longest, tokenizer.config.get("model_max_length"), max_input_length(network))
    return Embedder(
        network=network,
        tokenizer=tokenizer,
        pooling=kinds,
        steps=_steps(given.steps, normalize).to(network.device),
        layers=_layers(network, layer),
        max_length=int(min(size for size in limits if isinstance(size, int | float) and size > 0)),
        prompt=prompt_text,
        skip=_prompt_length(tokenizer, prompt_text)
        if prompt_text and not given.pools_prompt
        else 0,
        use_bf16=_use_bf16(network, precision),
    )


def _use_bf16(network: HiddenStateModel, precision: str) -> bool:
    """Decide whether to autocast matrix products of float32 weights to bf16.

    `auto` does so for encoders on GPUs, whose vectors keep a cosine of 0.9999 with those in fp32;
    those of decoders do not quite.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"Unknown precision {precision!r}; choose from {', '.join(PRECISIONS)}.")
    is_float32, spec = network.dtype == torch.float32, device_spec(network.device)
    if precision == "auto":
        return (
            is_float32
            and spec.type == "cuda"
            and has_native_bf16(spec)
            and network.config.has_encoder
        )
    if not is_float32 and not (precision.endswith("bf16") and network.dtype == torch.bfloat16):
        dtype = str(network.dtype).removeprefix("torch.")
        raise UsageError(
            f"Precision {precision} is not possible with {dtype} weights; load the model with "
            'dtype="float32" (--dtype float32).'
        )
    return is_float32 and resolve_precision(precision, spec) == "bf16"


def _steps(steps: Sequence[nn.Module], normalize: bool | None) -> nn.Sequential:
    kept = list(steps)
    if normalize is not None:
        while kept and isinstance(kept[-1], Normalize):
            kept.pop()
        kept += [Normalize()] if normalize else []
    return nn.Sequential(*kept)


def _layers(network: HiddenStateModel, layer: Layer | None) -> tuple[int, ...]:
    """Return layer numbers counted from the first; -1 is the last."""
    last = network.config.num_layers
    layers = (last,) if layer is None else (layer,) if isinstance(layer, int) else tuple(layer)
    for number in layers:
        if not -last - 1 <= number <= last:
            raise UsageError(
                f"There is no layer {number}: this model has {last} layers (0: the embeddings, -1: "
                "the last layer)."
            )
    if not layers:
        raise UsageError("Name at least one layer.")
    return tuple(number % (last + 1) for number in layers)


def _prompt(sentence: SentenceEncoderConfig, name: str | None) -> str:
    name = sentence.prompt if name is None else name
    if not name:
        return ""
    if name not in sentence.prompts:
        names = ", ".join(sentence.prompts) or "none"
        raise UsageError(f"This model has no prompt {name!r}; it has {names}.")
    return sentence.prompts[name]


def _prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """Count a prompt's tokens, with the special tokens before it but not those after it."""
    mask = tokenizer.encoding(prompt, specials=True).special_tokens_mask
    return len(mask) - (1 if mask and mask[-1] else 0)
