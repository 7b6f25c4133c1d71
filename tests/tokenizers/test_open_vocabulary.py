"""Unknown words keep their text: ids, characters, decoding."""

import numpy as np
import pytest

from firth.tokenizers.characters import vocabulary_characters, word_characters
from firth.tokenizers.display import display_tokens
from firth.tokenizers.open_vocabulary import (
    FIRST_OPEN_ID,
    MAX_WORD_CHARACTERS,
    OpenVocabulary,
    extended_ids,
    open_word,
)
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import InputError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the bat flew"] * 2, kind="word", lowercase=True)[0]


def test_unknown_words_have_ids_of_their_own(tokenizer: Tokenizer) -> None:
    ids = tokenizer.open_encode("The Zorilla flew , the zorilla slept")
    known = tokenizer.encode("the flew")
    assert ids[0] == ids[4] == known[0]
    assert ids[2] == known[1]
    assert ids[1] == ids[5] != ids[6]  # the tokenizer converts to lower case
    assert [open_word(id) for id in ids if id >= FIRST_OPEN_ID] == "zorilla , zorilla slept".split()
    assert tokenizer.decode(ids) == "the zorilla flew , the zorilla slept"
    assert display_tokens(tokenizer, ids)[1] == "zorilla"


def test_vocabulary_is_closed_where_it_must_be(tokenizer: Tokenizer) -> None:
    unknown = tokenizer.unknown_id
    assert tokenizer.open_encode("the <unk> flew")[1] == unknown
    assert tokenizer.open_encode("x" * (MAX_WORD_CHARACTERS + 1)) == [unknown]
    assert tokenizer.encode("zorilla") == [unknown]
    assert tokenizer.decode([3, *tokenizer.open_encode("ibex")], skip_specials=True) == "ibex"


def test_table_is_bounded() -> None:
    table = OpenVocabulary(max_words=3)
    ids = [table.id(word) for word in "abc"]
    table.word(ids[0])  # was used later than b
    table.id("d")
    assert table.word(ids[0]) == "a"
    with pytest.raises(InputError, match="distinct words"):
        table.word(ids[1])


def test_extended_ids_do_not_depend_on_earlier_texts(tokenizer: Tokenizer) -> None:
    first = extended_ids(np.array(tokenizer.open_encode("okapi bat kudu okapi")), 9)
    tokenizer.open_encode("gnu kudu eland okapi")
    again = extended_ids(np.array(tokenizer.open_encode("okapi bat kudu okapi")), 9)
    assert first[0].tolist() == again[0].tolist() == [9, tokenizer.encode("bat")[0], 10, 9]
    assert first[1] == again[1] == ["okapi", "kudu"]


def test_characters_are_those_of_elmo(tokenizer: Tokenizer) -> None:
    """The example of the tests of ELMo (allenai/bilm-tf); its model adds one to each id."""
    row = word_characters("été")
    assert row[:7].tolist() == [259, 196, 170, 117, 196, 170, 260]
    assert not row[7:].any()
    long = word_characters("a" * 99)
    assert (long[0], long[-1], len(long)) == (259, 260, 50)
    table = vocabulary_characters(tokenizer)
    assert table[tokenizer.special_ids["eos"], :4].tolist() == [259, 258, 260, 0]
