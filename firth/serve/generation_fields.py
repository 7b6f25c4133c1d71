"""The parameters that `/v1/completions` and `/v1/chat/completions` share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.sequence_request import SequenceRequest
from firth.serve.field_kinds import (
    FieldKind,
    any_of,
    boolean,
    integer,
    list_of,
    number,
    text,
    token_map,
)
from firth.serve.prompt_encoding import PromptTokens
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.served_model import ServedModel

MAX_COMPLETIONS = 128
MAX_STOPS = 16
MAX_NEW_TOKENS = 1 << 20
MIN_TEMPERATURE = 1e-5  # below, sampling is greedy: logits divided by less overflow
OFF = (0, 0.0)
STOP = text(minimum=1, maximum=500)  # every token is compared with the beginnings of a stop string
STOPS = any_of(STOP, list_of(STOP, "a list of such strings", maximum=MAX_STOPS))


def stream_options() -> FieldKind:
    """The options of a stream: `{"include_usage": true}`."""

    def convert(value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() - {"include_usage", "include_obfuscation"}:
            raise ValueError
        if not all(isinstance(one, bool) for one in value.values()):
            raise ValueError
        if value.get("include_obfuscation"):
            raise ValueError
        return bool(value.get("include_usage", False))

    schema = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}}
    return FieldKind('{"include_usage": true or false}', convert, schema)


@dataclass(frozen=True, kw_only=True)
class GenerationFields(RequestFields):
    """Decoding options, limits and the format of the answer."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "presence_penalty": OFF,
        "frequency_penalty": OFF,
        "store": (False,),
    }

    n: int = parameter("Completions per prompt.", integer(minimum=1, maximum=MAX_COMPLETIONS), 1)
    temperature: float = parameter(
        "Sampling temperature; 0: greedy.", number(minimum=0, maximum=100), 1.0
    )
    top_p: float = parameter(
        "Sample from the most probable tokens with total probability p.",
        number(minimum=0, maximum=1),
        1.0,
    )
    top_k: int = parameter("Sample from the k most probable tokens; 0: all.", integer(minimum=0), 0)
    min_p: float = parameter(
        "Sample from tokens at least min_p times as probable as the best.",
        number(minimum=0, maximum=1),
        0.0,
    )
    repetition_penalty: float = parameter(
        "Penalty on the logits of tokens in prompt and completion; 1: none.",
        number(minimum=0.01, maximum=100),
        1.0,
    )
    seed: int | None = parameter(
        "Random seed: the same seed gives the same completions. Default: another one each time.",
        integer(minimum=0, maximum=(1 << 63) - 1),
        None,
    )
    stop: Any = parameter("Stop before one of these strings.", STOPS, ())
    logit_bias: dict[int, float] | None = parameter(
        "Added to the logits of tokens, by token id.", token_map(), None
    )
    stream: bool = parameter("Send the text as it is generated (SSE).", boolean(), False)
    stream_options: bool = parameter(
        "include_usage: send the numbers of tokens before the end of a stream.",
        stream_options(),
        False,
    )
    truncate: bool = parameter(
        "Leave out the beginning of a prompt that is too long; else it is an error.",
        boolean(),
        False,
    )
    user: str | None = parameter("Accepted, but neither used nor stored.", text(), None)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def decoding(self) -> GenerationConfig:
        """Return the options that select tokens."""
        seed = secrets.randbits(63) if self.seed is None else self.seed
        penalty = self.repetition_penalty
        if self.temperature < MIN_TEMPERATURE:
            return GenerationConfig(repetition_penalty=penalty, seed=seed)
        return GenerationConfig(
            method="sample",
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=penalty,
            seed=seed,
        )

    def requests(
        self, served: ServedModel, prompts: list[PromptTokens], alternatives: int
    ) -> list[SequenceRequest]:
        """Return `n` sequences for each prompt."""
        config = self.decoding()
        return [
            SequenceRequest(
                prompt=prompt.ids,
                limit=prompt.limit,
                config=config,
                index=index,
                prompt_index=number,
                logit_bias=self.logit_bias or {},
                logprobs=alternatives,
                eos_token_ids=served.model.config.eos_token_ids,
            )
            for number, prompt in enumerate(prompts)
            for index in range(self.n)
        ]
