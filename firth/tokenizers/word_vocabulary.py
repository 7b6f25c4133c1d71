"""The vocabulary of a word-level model, and a tokenizer that has exactly these words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import models, pre_tokenizers

from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS, SPECIALS, add_special_tokens

UNKNOWN = SPECIALS["word"].roles["unk"]
MIN_COUNT = 2  # of a known word without a vector
MAX_VECTOR_WORDS = 100_000  # that the training data lacks; files begin with the most frequent


def word_tokenizer(words: Sequence[str], *, lowercase: bool, split: bool) -> Tokenizer:
    """Make a tokenizer of kind `word` whose vocabulary is the special tokens and these words.

    With `split`, punctuation is separated from words; without, words end at white space only, as
    where they are given, such as in CoNLL files.

    >>> word_tokenizer(["a", "bat"], lowercase=True, split=True).encode("A bat.")
    [5, 6, 1]
    >>> word_tokenizer(["a", "bat."], lowercase=True, split=False).encode("A bat.")
    [5, 6]
    """
    specials = SPECIALS["word"]
    distinct = dict.fromkeys([*specials.tokens, *words])
    ids = {word: id for id, word in enumerate(distinct)}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, UNKNOWN))
    backend.normalizer = KINDS["word"].normalizer(lowercase, False)
    whole = pre_tokenizers.WhitespaceSplit()
    backend.pre_tokenizer = KINDS["word"].pre_tokenizer if split else whole
    return add_special_tokens(backend, specials)


def count_words(texts: Iterable[str], *, lowercase: bool, split: bool) -> Counter[str]:
    """Count the words of texts as `word_tokenizer` separates them.

    >>> count_words(["A bat!", "a cat"], lowercase=True, split=True).most_common(1)
    [('a', 2)]
    """
    backend = word_tokenizer([], lowercase=lowercase, split=split).backend
    counts: Counter[str] = Counter()
    for text in texts:
        parts = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
        counts.update(word for word, _ in parts)
    return counts


@dataclass(frozen=True)
class WordVocabulary:
    """The words of a model in the order of their ids, and the row of embeddings of each.

    The rows of special tokens and of words that are trained come first, fixed rows last.
    """

    words: list[str]
    rows: list[int]  # by id
    row_words: list[str]  # the word of each row
    num_fixed: int = 0  # rows at the end that are not trained
    num_distinct: int = 0  # words of the training data
    num_covered: int = 0  # of those, with a pre-trained vector


def choose_vocabulary(
    train: Mapping[str, int],
    dev: Iterable[str] = (),
    *,
    vector_words: Sequence[str] = (),
    folds_case: bool = False,
    freeze: bool = False,
) -> WordVocabulary:
    """Choose the words of a model from the counts of training words.

    A word is known if it occurs twice or has a pre-trained vector: the others train the row of
    unknown words. Words that have vectors but do not occur in the training data have fixed rows:
    those of `dev` and the first MAX_VECTOR_WORDS of the vectors. With `freeze`, all rows with
    vectors are fixed. With `folds_case`, US and us share a row. Ids are in the order of frequency.

    >>> train = {"a": 3, "bat": 2, "flew": 1, "owl": 1}
    >>> found = choose_vocabulary(train, vector_words=["the", "a", "owl"])
    >>> found.words[5:], found.row_words[5:], found.num_fixed
    (['a', 'bat', 'owl'], ['bat', 'a', 'owl', 'the'], 1)
    >>> cased = choose_vocabulary({"US": 1, "us": 1}, folds_case=True)
    >>> cased.words[5:], cased.rows[5:]
    (['US', 'us'], [5, 5])
    """
    fold: Callable[[str], str] = str.lower if folds_case else str
    counts: Counter[str] = Counter()
    for word, count in train.items():
        counts[fold(word)] += count
    known = set(vector_words)
    frequent = min(MIN_COUNT, max(counts.values(), default=1))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    plain = [word for word in ranked if word not in known and counts[word] >= frequent]
    covered = [word for word in ranked if word in known]
    others = [word for word in map(fold, dev) if word in known]
    specials = SPECIALS["word"].tokens
    row_words = list(
        dict.fromkeys([*specials, *plain, *covered, *others, *vector_words[:MAX_VECTOR_WORDS]])
    )
    row = {word: row for row, word in enumerate(row_words)}
    forms = sorted(train, key=lambda word: (-counts[fold(word)], fold(word), word))
    words = list(dict.fromkeys([*specials, *(word for word in forms if fold(word) in row)]))
    num_trained = len({*specials, *plain, *(() if freeze else covered)})
    return WordVocabulary(
        words=words,
        rows=[row.get(word, row.get(fold(word), 0)) for word in words],
        row_words=row_words,
        num_fixed=len(row_words) - num_trained,
        num_distinct=len(counts),
        num_covered=len(covered),
    )
