"""The words that a decoder expects after a text: what fills a blank with left context only.

P  first tokens     V  vocabulary size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp

import numpy as np
import torch
from torch import Tensor

from firth.inference.infilling.blanks import BlankedText, span_fill
from firth.inference.infilling.fill_methods import FillCandidate, Ids
from firth.inference.prompting.candidates import PromptedModel
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states
from firth.tokenizers.tokenizer import Tokenizer

MAX_WORD_TOKENS = 16
SPACES = "Ġ▁Ċ "
# Which tokens begin a word after a space.
FIRST_TOKENS: dict[str, Callable[[str], bool]] = {
    "wordpiece": lambda token: not token.startswith("##"),
    "bpe": lambda token: token[:1] in "Ġ▁",
    "unigram": lambda token: token[:1] == "▁",
    "char": str.isalnum,
}


@torch.no_grad()
def next_words(model: PromptedModel, blanks: BlankedText, *, top: int = 5) -> list[FillCandidate]:
    """Return the `top` words after the text before the first blank, best first.

    The most probable first tokens are each completed to a word, greedily. A word's probability is
    the product of those of its tokens.
    """
    tokenizer, before = model.tokenizer, blanks.parts[0]
    request = model.make_request(before, "", "a")
    prompt = request.tokens[: request.positions[0] + 1]
    if tokenizer.kind == "char" and before[-1:] == " ":
        prompt = (*prompt, *tokenizer.encode(" "))
    log_probs = _next_log_probs(model, prompt, [()])[0]  # (V,)
    log_probs[~_first_tokens(tokenizer, len(log_probs), spaced=before[-1:].isspace())] = -torch.inf
    best = log_probs.topk(min(top, int(log_probs.isfinite().sum())))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    words = _completed(model, prompt, [((id,), value) for id, value in found])
    words.sort(key=lambda word: -word[1])
    fills = [(span_fill(tokenizer, ids), exp(total)) for ids, total in words]
    rest = [span_fill(tokenizer, ())] * (len(blanks) - 1)
    return [FillCandidate(fill.text, p, blanks.filled([fill, *rest])) for fill, p in fills]


def _next_log_probs(model: PromptedModel, prompt: Ids, words: Sequence[Ids]) -> Tensor:
    """Return the log-probabilities of the token after the prompt and each word's tokens."""
    prefix = model.network.config.prefix_length(len(prompt))
    requests = [ScoringRequest((*prompt, *word), (), (), prefix=prefix) for word in words]
    hidden = hidden_states(model.network, requests, bidirectional=False)
    ends = torch.tensor([len(one.tokens) for one in requests]).cumsum(0) - 1
    return model.network.logits(hidden[ends.to(hidden.device)]).float().log_softmax(-1).cpu()


def _first_tokens(tokenizer: Tokenizer, vocab_size: int, *, spaced: bool) -> Tensor:
    """Tell for each token whether it may begin the word in the blank."""
    special, begins = tokenizer.vocabulary.special, FIRST_TOKENS.get(tokenizer.kind)
    allowed = torch.zeros(vocab_size, dtype=torch.bool)
    for id in np.flatnonzero(~special):
        token = str(tokenizer.backend.id_to_token(int(id)))
        fits = begins is None or not spaced or begins(token)
        allowed[id] = fits and bool(token.strip(SPACES))
    return allowed


Word = tuple[Ids, float]  # tokens, and their log-probability


def _completed(model: PromptedModel, prompt: Ids, words: Sequence[Word]) -> list[Word]:
    """Append the most probable token to each word until a new word begins."""
    vocabulary, done = model.tokenizer.vocabulary, list[Word]()
    room = model.max_length - len(prompt)
    for size in range(1, MAX_WORD_TOKENS):
        open_words = [word for word in words if not vocabulary.ends[word[0][-1]]]
        done += [word for word in words if vocabulary.ends[word[0][-1]]]
        if not open_words or size >= room:
            return [*done, *open_words]
        best = _next_log_probs(model, prompt, [ids for ids, _ in open_words]).max(-1)
        words = []
        for word, id, value in zip(
            open_words, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            special = id >= len(vocabulary.special) or vocabulary.special[id]
            if special or vocabulary.begins[id]:
                done.append(word)
            else:
                words.append(((*word[0], id), word[1] + value))
    return [*done, *words]
