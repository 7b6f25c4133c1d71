"""Log-probabilities of texts with any architecture, per token and in total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.inference.scoring.log_likelihood import log_likelihoods, score_continuations
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.inference.scoring.token_scoring import TokenScores
from firth.models.language_model import LanguageNetwork
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError


@dataclass(frozen=True)
class TextScore:
    """The log-probability of a text (natural logarithm), per token and in total.

    >>> score = TextScore(text="a b", tokens=("a", "b"), log_probs=(-1.0, -0.5))
    >>> score.total, score.mean
    (-1.5, -0.75)
    """

    text: str
    tokens: tuple[str, ...]
    log_probs: tuple[float, ...]
    method: str = "log-likelihood"  # or pseudo-log-likelihood

    @property
    def total(self) -> float:
        """The log-probability of the whole text."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0 if there is none."""
        return self.total / max(1, len(self.tokens))

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return exp(-self.mean)

    def values(self) -> dict[str, Any]:
        """Return the score as JSON values."""
        return {**asdict(self), "total": self.total, "perplexity": self.perplexity}


def score_texts(
    network: LanguageNetwork,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    contexts: Sequence[str] = (),
    encoder_tokenizer: Tokenizer | None = None,
) -> list[TextScore]:
    """Score each text; `contexts` are what precedes each, or an encoder-decoder's inputs.

    Encoders score by pseudo-log-likelihood, others by log-likelihood.
    """
    is_encoder = not network.config.has_decoder
    method = "pseudo-log-likelihood" if is_encoder else "log-likelihood"
    if is_encoder and contexts:
        raise MismatchError(
            "An encoder scores whole texts by pseudo-log-likelihood: omit the context."
        )
    if is_encoder:
        found = list(pseudo_log_likelihoods(network, tokenizer, texts))
    elif contexts:
        copies, source_tokenizer = network.config.copies_words, encoder_tokenizer or tokenizer
        encode = source_tokenizer.open_encode if copies else source_tokenizer.encode
        sources = []
        for ids in map(encode, contexts):
            special = prompt_special_tokens(network.config, source_tokenizer, empty=not ids)
            sources.append([*special[0], *ids, *special[1]])
        encode = tokenizer.open_encode if copies else tokenizer.encode
        targets = [encode(text) for text in texts]
        found = score_continuations(network, zip(sources, targets, strict=True))
    else:
        found = list(log_likelihoods(network, tokenizer, texts))
    pairs = zip(texts, found, strict=True)
    return [_text_score(tokenizer, *pair, method, is_encoder) for pair in pairs]


def _text_score(
    tokenizer: Tokenizer, text: str, found: TokenScores, method: str, specials: bool
) -> TextScore:
    """Add the tokens to their log-probabilities; the first token may be without one."""
    encoding = tokenizer.encoding(text, specials)
    rows = zip(encoding.tokens, encoding.special_tokens_mask, strict=True)
    tokens = [token for token, special in rows if not special]
    scored = tuple(tokens[len(tokens) - found.tokens :])
    return TextScore(text, scored, tuple(found.log_probs.tolist()), method)
