"""Log-likelihoods of texts and continuations under decoders and encoder-decoders.

Masked language models have pseudo-log-likelihoods instead: `pseudo_log_likelihood.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from firth.inference.generation.special_tokens import as_list
from firth.inference.scoring.token_scoring import Ids, ScoringRequest, TokenScores, score_requests
from firth.models.language_model import ScoringModel
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig
from firth.models.transformer import max_input_length, max_output_length
from firth.tokenizers.open_vocabulary import extended_pair
from firth.tokenizers.tokenizer import Tokenizer, encode_batch
from firth.utils.errors import MismatchError
from firth.utils.streams import bounded_batches

MAX_TEXTS, MAX_CHARACTERS = 512, 1 << 22  # of texts that are tokenized together


def score_continuations(
    network: ScoringModel, pairs: Iterable[tuple[Ids, Ids]], *, batch_tokens: int = 0
) -> list[TokenScores]:
    """Score each continuation given its context, both in tokens.

    A decoder's context includes the beginning-of-text token, if the model has one. For an
    encoder-decoder, the context is the encoder's input and the continuation the decoder's output.
    A context that several continuations share is computed once.
    """
    config = network.config
    if not config.has_decoder:
        raise MismatchError(
            "An encoder cannot score continuations, because its attention is bidirectional. Use a "
            "decoder or an encoder-decoder, or a pseudo-log-likelihood."
        )
    request = _decoder_request if not config.has_encoder else _encoder_decoder_request
    requests = (request(network, *pair) for pair in pairs)
    return list(score_requests(network, requests, batch_tokens=batch_tokens))


def log_likelihoods(
    network: ScoringModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    batch_tokens: int = 0,
    temperature: float = 1.0,
) -> Iterator[TokenScores]:
    """Score whole texts with a decoder, each token given all previous ones.

    The first token is conditioned on the beginning-of-text token. A model without one does not
    score the first token of a text. Logits are divided by the temperature.
    """
    if network.config.architecture != "decoder":
        raise MismatchError(no_likelihood_message(network.config.architecture))
    begin = as_list(network.config.bos_token_id)
    pairs = ((begin or ids[:1], ids if begin else ids[1:]) for ids in _encode(tokenizer, texts))
    # A text without tokens, or a single one without context, has no target.
    requests = (_decoder_request(network, context or [0], rest) for context, rest in pairs)
    return score_requests(network, requests, batch_tokens=batch_tokens, temperature=temperature)


def no_likelihood_message(architecture: str) -> str:
    """Explain why this architecture has no likelihood of whole texts."""
    if architecture == "encoder":
        return (
            "An encoder has no likelihood of a text, because its attention is bidirectional; use "
            "the pseudo-log-likelihood, which masks one token at a time."
        )
    return (
        "An encoder-decoder has no likelihood of a whole text, only of a target given a source. "
        "Use a decoder, or an encoder's pseudo-log-likelihood."
    )


def _decoder_request(network: ScoringModel, context: Ids, continuation: Ids) -> ScoringRequest:
    """Build a decoder's input: context and continuation, without the last token."""
    if not len(context):
        raise MismatchError("A continuation needs at least one token before it: add a context.")
    tokens = (*context, *continuation[:-1])
    check_length(len(tokens), max_output_length(network))
    first = len(context) - 1
    positions = range(first, first + len(continuation))
    prefix = network.config.prefix_length(len(context))
    return ScoringRequest(tokens, positions, continuation, prefix=prefix)


def _encoder_decoder_request(
    network: ScoringModel, context: Ids, continuation: Ids
) -> ScoringRequest:
    """Build an encoder-decoder's inputs; the decoder's begins with its start token."""
    if not len(context):
        raise MismatchError("An encoder-decoder scores a text given a source: add a context.")
    config, start = network.config, network.config.decoder_start_token_id or 0
    if isinstance(config, PointerGeneratorConfig):
        source, target = np.array(context, np.int64), np.array(continuation, np.int64)
        source, target = extended_pair(source, target, config.vocab_size, config.unk_token_id)
        context, continuation = source.tolist(), target.tolist()
    tokens = (start, *continuation[:-1])
    check_length(len(tokens), max_output_length(network))
    check_length(len(context), max_input_length(network))
    return ScoringRequest(tokens, range(len(continuation)), continuation, tuple(context))


def check_length(length: int, max_length: int) -> None:
    """Raise an error for an input that does not fit into the context."""
    if length > max_length:
        raise MismatchError(
            f"A text with its context has {length:,} tokens, but the model's context is "
            f"{max_length:,} tokens; shorten it."
        )


def _encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    for group in text_groups(texts):
        encoded = encode_batch(tokenizer.backend, group)
        yield from (encoding.ids for encoding in encoded)


def text_groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts for batched tokenization."""
    return bounded_batches(texts, len, max_size=MAX_CHARACTERS, max_items=MAX_TEXTS)
