"""Text generation: prompts and completions as text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from firth.inference.generation.chat_template import Messages, make_messages, render_chat
from firth.inference.generation.copied_words import CopiedWords
from firth.inference.generation.detokenization import (
    Detokenizer,
    TextStreamer,
    contains_stop,
    truncate_at_stop,
)
from firth.inference.generation.explain import ExplainedToken, explain
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.sampling import GeneratedTokens, StopCheck, TokenSampler
from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.inference.generation.token_generation import generate
from firth.models.language_model import ScoringModel, predicts_tokens
from firth.models.transformer import max_input_length, max_output_length
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError
from firth.utils.streams import bounded_batches
from firth.utils.surrogates import without_surrogates

logger = logging.getLogger("firth")
BATCH_TOKENS = {"cpu": 1 << 14, "cuda": 1 << 18}  # tokens in the key/value cache
MAX_BATCH_SIZE = 256  # sequences


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Text that a model generated after a prompt."""

    text: str  # without the prompt, cut before a stop string
    tokens: tuple[int, ...]  # all generated tokens, without the end token
    score: float  # mean log-probability of a token; for beams, the length-penalised score
    logprob: float  # sum of the log-probabilities, with that of the end token
    finish_reason: str  # end (end token), stop (stop string) or length (token limit)
    steps: tuple[ExplainedToken, ...] = ()  # each token's probability, with `explain`

    def values(self) -> dict[str, Any]:
        """Return the completion as JSON values."""
        values = {**asdict(self), "tokens": list(self.tokens)}
        return values if self.steps else {k: v for k, v in values.items() if k != "steps"}


@dataclass(frozen=True, kw_only=True)
class PromptCompletions:
    """A prompt and its completions."""

    prompt: str
    completions: tuple[Completion, ...]
    notes: tuple[str, ...] = ()  # warnings, such as a truncated prompt

    def values(self) -> dict[str, Any]:
        """Return prompt and completions as JSON values."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        completions = [completion.values() for completion in self.completions]
        return {"prompt": self.prompt, "completions": completions, **notes}


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A tokenized prompt."""

    text: str
    ids: tuple[int, ...]
    limit: int  # maximum number of new tokens
    detokenizer: Detokenizer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextGenerator:
    """A generative model with its tokenizers and decoding options."""

    network: ScoringModel
    tokenizer: Tokenizer
    encoder_tokenizer: Tokenizer | None = None  # if the encoder has its own
    config: GenerationConfig = field(default_factory=GenerationConfig)
    explain: bool = False  # add each token's probability and alternatives to completions
    special_tokens: bool = True  # add those before and after a prompt
    chat: bool = False  # a prompt is a user's message to the chat template
    system: str | None = None  # system message of a chat

    def __post_init__(self) -> None:
        has_head = predicts_tokens(self.network)
        if not self.network.config.has_decoder:
            use = "fill blanks (`firth fill`)" if has_head else "embed texts (`firth embed`)"
            raise MismatchError(
                f"An encoder cannot generate text; it can {use}. Use a decoder or an "
                "encoder-decoder to generate."
            )
        if not has_head:
            raise MismatchError(
                "This model has no language head, so it cannot generate text; it was fine-tuned "
                "to predict labels: use `firth predict`."
            )

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self.network.config.eos_token_ids

    def encode_prompt(self, text: str) -> EncodedPrompt:
        """Tokenize a prompt, or the user's message of a chat."""
        text = without_surrogates(text)
        if not self.chat:
            return self._encode(text, special_tokens=self.special_tokens)
        return replace(self.encode_chat(make_messages(text, self.system)), text=text)

    def encode_chat(self, messages: Messages) -> EncodedPrompt:
        """Tokenize messages in the model's chat template, which has the special tokens."""
        text = render_chat(self.encoder_tokenizer or self.tokenizer, messages)
        return self._encode(without_surrogates(text), special_tokens=False)

    def _encode(self, text: str, *, special_tokens: bool) -> EncodedPrompt:
        """Tokenize a prompt; a prompt that is too long loses its beginning."""
        config, max_new = self.network.config, self.config.max_new_tokens
        own = self.encoder_tokenizer or self.tokenizer
        body = own.open_encode(text) if config.open_vocabulary else own.encode(text)
        special = prompt_special_tokens(config, own, empty=not body)
        prefix, suffix = special if special_tokens or not body else ([], [])
        size = len(prefix) + len(body) + len(suffix)
        if not size:
            raise UsageError(
                "The prompt is empty, and this model has no beginning-of-text token: add a word."
            )
        max_length, max_input = max_output_length(self.network), max_input_length(self.network)
        if config.has_encoder:
            max_prompt, limit = max_input, min(max_new, max_length - 1)
        else:
            shortened = max(1, max_length - max_new, max_length // 2)
            max_prompt = max_length - 1 if size < max_length else shortened
            limit = min(max_new, max_length - min(size, max_prompt))
        notes = []
        kept = len(body) - max(0, size - max_prompt)
        if kept < len(body):
            body = body[len(body) - kept :]
            notes.append(
                f"The prompt has {size:,} tokens, but the model's context is {max_input:,} tokens: "
                f"only the last {kept:,} are used."
            )
        if limit < max_new:
            notes.append(f"Only {limit:,} of {max_new:,} new tokens fit into the context.")
        detokenizer = Detokenizer(
            tokenizer=self.tokenizer,
            prompt=() if config.has_encoder else tuple(body),
            hidden=frozenset([*config.special_token_ids.values(), *config.eos_token_ids]),
        )
        ids = (*prefix, *body, *suffix)
        return EncodedPrompt(
            text=text, ids=ids, limit=limit, detokenizer=detokenizer, notes=tuple(notes)
        )

    def complete(self, prompts: Iterable[str]) -> Iterator[PromptCompletions]:
        """Complete prompts in batches, in order, holding one batch in memory."""
        return self.complete_encoded(zip(count(), map(self.encode_prompt, prompts)))

    def complete_encoded(
        self, prompts: Iterable[tuple[int, EncodedPrompt]]
    ) -> Iterator[PromptCompletions]:
        """Complete encoded prompts with their numbers, which select the random numbers."""
        batch_tokens = BATCH_TOKENS.get(self.network.device.type, BATCH_TOKENS["cpu"])
        per_prompt = self.config.num_sequences
        batches = bounded_batches(
            prompts,
            lambda prompt: per_prompt * (len(prompt[1].ids) + prompt[1].limit),
            max_size=batch_tokens,
            max_items=max(1, MAX_BATCH_SIZE // per_prompt),
            padded=True,
        )
        for batch in batches:
            yield from self._complete_batch(*zip(*batch, strict=True))

    def _complete_batch(
        self, indices: Sequence[int], prompts: Sequence[EncodedPrompt]
    ) -> list[PromptCompletions]:
        results = generate(
            self.network,
            [prompt.ids for prompt in prompts],
            self.config,
            eos_token_id=self.eos_token_ids,
            limits=[prompt.limit for prompt in prompts],
            indices=indices,
            should_stop=self._stop_check(prompts),
        )
        return [
            PromptCompletions(
                prompt=prompt.text,
                completions=tuple(self._completion(prompt, result) for result in own),
                notes=prompt.notes,
            )
            for prompt, own in zip(prompts, results, strict=True)
        ]

    def stream(self, prompt: str) -> Iterator[str | PromptCompletions]:
        """Yield one completion piece by piece, then the whole result."""
        if self.config.num_sequences > 1:
            raise UsageError("Only a single completion can be streamed: use n=1 and no beams.")
        encoded = self.encode_prompt(prompt)
        copied = CopiedWords.of(self.network.config, [encoded.ids])
        sampler = TokenSampler(
            self.network,
            copied.prompts,
            self.config,
            eos_token_id=self.eos_token_ids,
            limits=[encoded.limit],
            indices=[0],
            should_stop=copied.stop_check(self._stop_check([encoded])),
        )
        streamer = TextStreamer(encoded.detokenizer, self.config.stop)
        while not sampler.done:
            [token] = copied.restore(0, [int(sampler.step())])
            if token in self.eos_token_ids:  # on a GPU, `done` is updated only every few steps
                break
            if piece := streamer.add(token):
                yield piece
        if piece := streamer.finish():
            yield piece
        [[result]] = copied.restore_results(sampler.results())
        completion = self._completion(encoded, result)
        yield PromptCompletions(prompt=encoded.text, completions=(completion,), notes=encoded.notes)

    def _stop_check(self, prompts: Sequence[EncodedPrompt]) -> StopCheck | None:
        """Return a function that looks for stop strings; None if there are none."""
        stops = self.config.stop
        return (lambda i, ids: contains_stop(prompts[i].detokenizer, ids, stops)) if stops else None

    def _completion(self, prompt: EncodedPrompt, result: GeneratedTokens) -> Completion:
        """Detokenize a result."""
        text = truncate_at_stop(prompt.detokenizer.text(result.tokens), self.config.stop)
        steps: tuple[ExplainedToken, ...] = ()
        if self.explain:
            tokens = list(result.tokens)
            if result.eos_token_id is not None:
                tokens.append(result.eos_token_id)
            steps = explain(self.network, prompt.detokenizer, prompt.ids, tokens, self.config)
        values = asdict(result)
        del values["eos_token_id"]
        return Completion(text=text, steps=steps, **values)


def generate_text(
    network: ScoringModel, tokenizer: Tokenizer, prompt: str, *, max_new_tokens: int = 40
) -> str:
    """Return the greedy completion of a prompt, without the prompt."""
    config = GenerationConfig(max_new_tokens=max_new_tokens)
    generator = TextGenerator(network=network, tokenizer=tokenizer, config=config)
    return next(generator.complete([prompt])).completions[0].text


def first_texts(done: Iterable[PromptCompletions]) -> list[str]:
    """Return the first completion of each prompt, and log that prompts were too long."""
    done = list(done)
    notes = [note for one in done for note in one.notes]
    if notes:
        more = f" (first of {len(notes):,} notes; `Model.completions` returns all)"
        logger.warning(notes[0] + more * (len(notes) > 1))
    return [one.completions[0].text for one in done]
