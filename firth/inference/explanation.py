"""Explain a prediction: the forward pass that fills a blank or predicts the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from firth.inference.forward_pass import ForwardPass, run_forward_pass
from firth.inference.generation.generation_config import MAX_SEQUENCES
from firth.inference.generation.text_generation import EncodedPrompt, TextGenerator
from firth.inference.infilling.blanks import tokenize_words
from firth.inference.infilling.fill_methods import BlankFiller
from firth.inference.infilling.span_filling import answer_sequences, generate_fills, output_request
from firth.inference.prompting.candidates import no_tokens_error, tokenize_continuation
from firth.inference.scoring.log_likelihood import check_length
from firth.inference.scoring.token_scoring import ScoringRequest
from firth.models.transformer import Transformer, max_output_length
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError


def explain_blanks(
    filler: BlankFiller, text: str, *, answers: Sequence[str] = (), top: int = 5
) -> ForwardPass:
    """Run the forward pass that fills the blanks of a text; `answers` are the right words."""
    return run_forward_pass(
        require_transformer(filler.network),
        filler.tokenizer,
        blank_request(filler, text, answers, top),
        bidirectional=filler.method == "masks",
        text=text,
        answer=answers,
        top=top,
    )


def blank_request(
    filler: BlankFiller, text: str, answers: Sequence[str] = (), top: int = 5
) -> ScoringRequest:
    """Return the tokens that a model reads to fill the blanks of a text.

    A word of several tokens is predicted at as many mask tokens. An encoder-decoder reads the
    answers as the decoder's input (teacher forcing), or else its own most probable output.
    """
    question = filler.encode(text)
    if answers and len(answers) != len(question.blanks):
        raise UsageError(
            f"The text has {len(question.blanks)} blanks, but there are {len(answers)} answers: "
            "give one word for each blank."
        )
    if filler.method == "masks":
        words = zip(answers, question.blanks.parts, strict=False)
        spans = [
            _word_tokens(filler.tokenizer, word, spaced=part[-1:].isspace()) for word, part in words
        ]
        if spans:
            marks = [filler.mark * len(span) for span in spans]
            question = filler.encode(question.blanks.with_marks(marks))
        positions = [position - filler.shift for position in question.positions]
        return ScoringRequest(question.ids, positions, list(chain.from_iterable(spans)))
    if answers:
        targets = list(answer_sequences(filler, question, answers)[0])
    else:
        beams = min(2 * top, MAX_SEQUENCES)  # as `fill` searches
        best = generate_fills(filler, [question], beams)[0][0]
        end = [] if best.eos_token_id is None else [best.eos_token_id]
        targets = [*best.tokens, *end]
    return output_request(filler.network.config, question.ids, targets)


def with_visible_targets(request: ScoringRequest, shift: int) -> ScoringRequest:
    """Add the tokens of the text as targets, except at blanks.

    `shift` is 1 for a decoder, which predicts a token at the position before it.

    >>> request = with_visible_targets(ScoringRequest((5, 4, 6), [1], [7]), shift=0)
    >>> list(request.positions), list(request.targets)
    ([1, 0, 2], [7, 5, 6])
    """
    rows = enumerate(request.tokens[shift:])
    own = [(i, id) for i, id in rows if i not in request.positions]
    answers = list(zip(request.positions, request.targets, strict=False))
    positions, targets = zip(*answers, *own, strict=True) if answers or own else ((), ())
    return replace(request, positions=positions, targets=targets)


def _word_tokens(tokenizer: Tokenizer, word: str, *, spaced: bool) -> list[int]:
    [ids] = tokenize_words(tokenizer, [word], spaced=spaced)
    if not ids or tokenizer.unknown_id in ids:
        raise UsageError(f"{word!r} is not in this model's vocabulary.")
    return ids


def explain_prompt(
    generator: TextGenerator, prompt: EncodedPrompt, *, answer: str = "", top: int = 5
) -> ForwardPass:
    """Run the forward pass that predicts the token after a prompt, or those of an answer.

    An encoder-decoder reads the prompt with its encoder, and the answer with its decoder.
    """
    network = require_transformer(generator.network)
    config, targets = network.config, list[int]()
    past, source = prompt.ids, tuple[int, ...]()
    if config.has_encoder:
        past, source = (config.decoder_start_token_id or 0,), prompt.ids
    if answer and (config.has_encoder or generator.chat):
        targets = generator.tokenizer.encode(answer)
    elif answer:
        joined = as_continuation(prompt.text, answer)
        targets = tokenize_continuation(generator.tokenizer, prompt.text, joined)[1]
    if answer and not targets:
        raise no_tokens_error(answer)
    tokens = (*past, *targets[:-1])
    check_length(len(tokens), max_output_length(network))
    request = ScoringRequest(
        tokens, range(len(past) - 1, len(tokens)), targets, source, config.prefix_length(len(past))
    )
    return run_forward_pass(
        network,
        generator.tokenizer,
        request,
        encoder_tokenizer=generator.encoder_tokenizer,
        text=prompt.text,
        answer=[answer] if answer else [],
        top=top,
    )


def prompt_output(generator: TextGenerator, text: str, answer: str = "") -> ScoringRequest:
    """Return what an encoder-decoder reads and predicts: an answer, or else its own output."""
    prompt = generator.encode_prompt(text)
    targets = generator.tokenizer.encode(answer)
    if not targets:
        [done] = generator.complete_encoded([(0, prompt)])
        [completion] = done.completions
        ended = completion.finish_reason == "end"
        targets = [*completion.tokens, *(generator.eos_token_ids[:1] if ended else ())]
    request = output_request(generator.network.config, prompt.ids, targets)
    check_length(len(request.tokens), max_output_length(generator.network))
    return request


def as_continuation(text: str, word: str) -> str:
    """Put a space before a word that continues a text.

    >>> as_continuation("The cat sat", "on"), as_continuation("The cat sat", ".")
    (' on', '.')
    """
    return f" {word}" if word[:1].isalnum() and text and not text[-1].isspace() else word


def require_transformer(network: object) -> Transformer:
    """Return the network; raise an error if it is no Transformer, whose layers are needed."""
    if not isinstance(network, Transformer):
        raise MismatchError(
            f"This function needs a Transformer, and the network is a {type(network).__name__}."
        )
    return network
