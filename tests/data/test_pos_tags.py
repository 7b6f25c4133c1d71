"""Part-of-speech tags of the stories against sentences that were tagged by hand."""

from __future__ import annotations

from firth.data.stories import generate_story
from firth.data.stories.entity_tags import tag
from firth.data.stories.pos_tags import pos_tags

# Tags as in the guidelines of Universal Dependencies for English (universaldependencies.org/en).
GOLD = (
    "There/PRON was/VERB once/ADV a/DET boy/NOUN who/PRON liked/VERB to/PART fish/VERB ./PUNCT",
    "He/PRON had/AUX lost/VERB his/PRON watch/NOUN ,/PUNCT so/SCONJ he/PRON ran/VERB home/ADV "
    "./PUNCT",
    "Anna/PROPN 's/PART aunt/NOUN went/VERB to/ADP the/DET park/NOUN to/PART park/VERB "
    "the/DET car/NOUN ./PUNCT",
    "She/PRON knew/VERB that/SCONJ the/DET book/NOUN that/PRON she/PRON found/VERB was/AUX "
    "old/ADJ ./PUNCT",
    "That/DET evening/NOUN they/PRON did/AUX not/PART do/VERB it/PRON ./PUNCT",
    "The/DET French/ADJ nurse/NOUN spoke/VERB French/PROPN before/SCONJ he/PRON came/VERB "
    "in/ADP May/PROPN ./PUNCT",
    "Two/NUM girls/NOUN may/AUX wait/VERB until/ADP morning/NOUN ,/PUNCT but/CCONJ "
    "nobody/PRON does/VERB ./PUNCT",
    '"/PUNCT No/INTJ ,/PUNCT "/PUNCT Ben/PROPN said/VERB as/ADV quickly/ADV as/SCONJ he/PRON '
    "could/AUX ./PUNCT",
    "A/DET light/ADJ rain/NOUN fell/VERB ,/PUNCT and/CCONJ the/DET light/NOUN was/AUX weak/ADJ "
    "./PUNCT",
)


def test_sentences_tagged_by_hand() -> None:
    for line in GOLD:
        gold = [tuple(pair.rsplit("/", 1)) for pair in line.split()]
        sentence = " ".join(word for word, _ in gold)
        assert pos_tags(tag(sentence, ["Anna", "Ben"], []) or []) == gold


def test_the_words_are_those_of_the_entities() -> None:
    found = [generate_story(2, number).examples for number in range(150)]
    pairs = [(len(one.pos), len(one.entities)) for one in found]
    assert sum(own for own, _ in pairs) > 0.98 * sum(all for _, all in pairs)
    sentences = {tuple(word for word, _ in row) for one in found for row in one.entities}
    tagged = [row for one in found for row in one.pos]
    assert {tuple(word for word, _ in row) for row in tagged} <= sentences
    assert len({label for row in tagged for _, label in row}) == 15


def test_a_word_that_is_not_known_leaves_its_sentence_out() -> None:
    assert pos_tags([("Xylophones", "O"), ("sing", "O"), (".", "O")]) is None
