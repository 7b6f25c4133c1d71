"""Part-of-speech tags of the stories' sentences: Universal POS (Nivre et al. 2020, section 3.1).

`pos_lexicon` has the tags that each word of the stories may have, and entity tags tell which words
are names. An ambiguous word is decided by rules about its neighbours, as in Brill (1992): the first
rule whose patterns match the tagged words before it and the words after it gives the tag.

By eye, 12 of the 2,700 words of 150 sentences had a wrong tag, most of them since corrected. Past
participles are VERB ("was closed") unless the stories use them as adjectives only ("tired").
"""

from __future__ import annotations

import re
from functools import cache

from firth.data.stories.entity_tags import NATIONS, Tagged
from firth.data.stories.pos_lexicon import base_forms, participles, possible_tags

Rule = tuple[str, str, str]  # pattern before (its end), pattern after (its beginning), tag

_POSSESSIVE = r"(?:his|her|its|their|my|your|our)/PRON "
_BE = r"(?:am|is|are|was|were|be|been)/AUX (?:\w+/(?:ADV|PART) )*"
_NOUN_BEFORE = rf"(?:/(?:DET|NUM|ADJ) |'s/PART |{_POSSESSIVE}|/ADP )"
_SKIPPED = r"(?:\S+/(?:PRON|PROPN|PART|\S*ADV\S*) )*"  # between an auxiliary and its verb
_NOUN_AFTER = r"(?:\S+/ADJ\S* )*\S+/(?:NOUN|PROPN|\S+NOUN)"
_CLAUSE_AFTER = (
    r"(?:(?:i|he|she|it|we|they|you|nobody|somebody|everybody|everyone|there)/"
    r"|(?:\S+/DET\S* )?(?:\S+/ADJ\S* )*(?:(?:\S+/NOUN\S* )+|\S+/PROPN (?:and/CCONJ \S+/PROPN )?)"
    r"\S+/(?:VERB|AUX))"
)

# by word, or by the set of its tags
RULES: dict[str, tuple[Rule, ...]] = {
    "to": (("", r"\S+/\S*BASE", "PART"), ("", "", "ADP")),
    "not": (("", "", "PART"),),
    "'s": (("", "", "PART"),),
    **dict.fromkeys(
        ("am", "is", "are", "was", "were", "be", "been", "being"),
        ((r"there/PRON (?:\w+/\w+ )?", "", "VERB"), ("", "", "AUX")),
    ),
    **dict.fromkeys(
        ("have", "has", "had", "having"),
        (("", rf"{_SKIPPED}\S+/\S*PTCP", "AUX"), ("", "", "VERB")),
    ),
    **dict.fromkeys(
        ("do", "does", "did"),
        (("", r"(?:not/|(?:[^\s/]+/(?!PUNCT)\S+ )+?\S+/\S*BASE)", "AUX"), ("", "", "VERB")),
    ),
    "done": (("", "", "VERB"),),
    "there": (("", r"(?:\S+/ADV )*(?:\S+/\S*AUX|lived|stood|came)", "PRON"), ("", "", "ADV")),
    "that": (
        ("", r"(?:day|evening|morning|afternoon|night|week|year|summer|winter)/", "DET"),
        (r"(?:told/VERB \S+/\S+ |learned/VERB at/ADP school/NOUN )", "", "SCONJ"),
        (r"/(?:NOUN|PRON|PROPN) ", r"\S+/(?:PRON|PROPN|VERB|AUX|DET|ADV)", "PRON"),
        (r"/(?:VERB|ADJ|ADV) ", r"(?!\S+/(?:AUX|PUNCT))", "SCONJ"),
        ("", rf"{_NOUN_AFTER}", "DET"),
        ("", r"\S+/(?:\S*AUX|\S*VERB|PUNCT)", "PRON"),
        (r"/ADP ", "", "PRON"),
        ("", "", "SCONJ"),
    ),
    "for": ((r",/PUNCT ", r"(?:it|he|she|they|there)/", "SCONJ"), ("", "", "ADP")),
    "so": ((r",/PUNCT ", _CLAUSE_AFTER, "SCONJ"), ("", "", "ADV")),
    "as": (
        ("", r"\S+/\S*(?:ADJ|ADV)\S* as/", "ADV"),
        (r"(?:as|so)/ADV \S+/(?:ADJ|ADV) ", _CLAUSE_AFTER, "SCONJ"),
        (r"/PUNCT ", "", "SCONJ"),
        ("", r"(?:i|he|she|it|we|they|you|if)/", "SCONJ"),
        ("", "", "ADP"),
    ),
    "than": (("", _CLAUSE_AFTER, "SCONJ"), ("", "", "ADP")),
    "like": (
        (r"(?:/(?:PART|AUX) |that/PRON |who/PRON )", "", "VERB"),
        (r"/PRON ", "", "VERB"),
        ("", "to/", "VERB"),
        (r"^", "", "ADP"),
        ("", r"(?:you|me|him|her|us|them)/", "ADP"),
        (r"(?:/PUNCT |/VERB |/ADJ )", "", "ADP"),
        (r"s/NOUN ", "", "VERB"),
    ),
    "one": (
        (r"(?:the/DET |/ADJ )", r"(?!\S+/\S*NOUN)", "NOUN"),
        ("", r"\S+/AUX", "PRON"),
        ("", "", "NUM"),
    ),
    "all": (
        (r"at/ADP ", "", "ADV"),
        ("", r"(?:\S+/(?:DET|ADJ|NOUN|NUM)|\S+/\S*NOUN|(?:his|her|its|their|my|your|our)/)", "DET"),
        ("", "", "PRON"),
    ),
    "any": (("", r"\S+/\S*NOUN", "DET"), ("", "", "ADV")),
    "no": (("", r"\S+/PUNCT", "INTJ"), ("", r"(?:longer|more)/", "ADV"), ("", "", "DET")),
    "little": (
        (r"(?:a|very)/\S+ ", r"(?:later|more|closer|faster|\S+/PUNCT)", "ADV"),
        ("", "", "ADJ"),
    ),
    "such": (("", r"(?:a|an)/", "DET"), ("", "", "ADJ")),
    "half": (("", r"(?:a|an|the)/", "DET"), ("", "", "NOUN")),
    "enough": (
        ("", r"\S+/\S*NOUN", "ADJ"),
        (r"(?:/NOUN |/AUX |(?:is|was|are|were)/VERB )", "", "ADJ"),
        ("", "", "ADV"),
    ),
    "both": (("", r"\S+/(?:NOUN|PROPN|ADJ)\S* and/", "CCONJ"), ("", "", "DET")),
    "yet": (("", "", "ADV"),),
    "mine": (("", r"\S+/PUNCT", "PRON"), (_NOUN_BEFORE, "", "NOUN")),
    "hundred": (("", "", "NUM"),),
    "some": (("", r"(?:of/|\S+/PUNCT)", "PRON"), ("", "", "DET")),
    "well": (
        (_BE, r"(?!\S+/\S*PTCP)", "ADJ"),
        (r"(?:^|\"/PUNCT )", r",/", "INTJ"),
        ("", "", "ADV"),
    ),
    "back": ((r"(?:the|a)/DET ", "", "NOUN"), ("", "", "ADV")),
    "but": ((r"nothing/PRON ", "", "ADP"), ("", "", "CCONJ")),
    "shining": ((_BE, "", "VERB"), ("", r"\S+/NOUN", "ADJ")),
    "right": ((r"answers?/NOUN ", "", "ADJ"),),
    "home": ((rf"(?:{_NOUN_BEFORE}|left/VERB )", "", "NOUN"), ("", "", "ADV")),
    "next": (("", r"(?:to/|,/)", "ADV"), ("", "", "ADJ")),
    "round": (
        (r"red/ADJ and/CCONJ ", "", "ADJ"),
        (r"/DET ", r"\S+/\S*NOUN", "ADJ"),
        ("", "", "ADP"),
    ),
    "past": ((r"the/DET ", r"(?!\S+/\S*NOUN)", "NOUN"), ("", "", "ADP")),
    "opposite": ((r"the/DET ", r"(?:of|\S+/PUNCT)", "NOUN"), ("", "", "ADP")),
    "worth": (("", "", "ADJ"),),
    "used": (("", r"to/", "VERB"), ("", "", "VERB")),
    "once": (("", "", "ADV"),),
    "light": (
        (_BE, "", "ADJ"),
        (r"(?:get|getting|as)/\w+ ", "", "ADJ"),
        (r"(?:/DET |/PRON )", r"\S+/\S*NOUN", "ADJ"),
        (r"/(?:PART|AUX) ", "", "VERB"),
        (r"/(?:DET|ADP|VERB|ADJ) ", "", "NOUN"),
    ),
    "only": ((r"/DET ", r"\S+/\S*(?:NOUN|ADJ)", "ADJ"), ("", "", "ADV")),
    "more": (
        ("", r"\S+/(?:NOUN|\S*\+NOUN|ADJ NOUN)", "ADJ"),
        (r"/ADP ", "", "ADJ"),
        ("", "", "ADV"),
    ),
    "last": (
        (r"(?:/DET |at/ADP )", "", "ADJ"),
        ("", r"\S+/\S*(?:NOUN|PROPN)", "ADJ"),
        (r"you/PRON ", r"\S+/\S*BASE", "ADV"),
        (r"and/CCONJ ", r"of/", "ADV"),
    ),
    "long": (
        (_BE, "", "ADJ"),
        (r"/DET ", "", "ADJ"),
        ("", r"\S+/(?:NOUN|PROPN)", "ADJ"),
        ("", "", "ADV"),
    ),
    "close": (
        (_BE, "", "ADJ"),
        ("", r"(?:to|together|by)/", "ADV"),
        (r"/(?:PART|AUX|PRON) ", "", "VERB"),
        (r"(?:/DET |/ADV )", "", "ADJ"),
    ),
    "set": ((_NOUN_BEFORE, "", "NOUN"), ("", "", "VERB")),
    "either": (("", r"\S+/PUNCT", "ADV"),),
    "march": ((_NOUN_BEFORE, "", "PROPN"), (r"/PROPN ", "", "VERB"), ("", "is/", "PROPN")),
    "may": ((r"(?:in|until|of)/ADP ", "", "PROPN"), ("", r"\S+/\S*BASE", "AUX"), ("", "", "PROPN")),
    "best": (
        (r"(?:liked|loved)/VERB (?:\S+/\S+ )?", "", "ADV"),
        ("", r"\S+/NOUN", "ADJ"),
        (_BE, "", "ADJ"),
        (r"/DET ", "", "ADJ"),
        (_POSSESSIVE, "", "ADJ"),
    ),
    # ---- by the tags ----
    "ADJ+PROPN": (  # French
        (_BE, r"(?:and|\S+/PUNCT)", "ADJ"),
        ("", r"\S+/\S*(?:NOUN|ADJ)", "ADJ"),
        ("", "", "PROPN"),
    ),
    "ADP+ADV": (("", r"\S+/\S*(?:PUNCT|CCONJ|SCONJ)", "ADV"), ("", "", "ADP")),
    "ADP+SCONJ": (("", _CLAUSE_AFTER, "SCONJ"), ("", "", "ADP")),
    "ADP+ADV+SCONJ": (
        (r"the/DET day/NOUN ", r"(?:\S+/PROPN|the/)", "ADV"),
        ("", r"\S+/\S*PUNCT", "ADV"),
        ("", r"that/", "ADP"),
        ("", _CLAUSE_AFTER, "SCONJ"),
        ("", "", "ADP"),
    ),
    "ADV+SCONJ": (("", "", "SCONJ"),),
    "DET+PRON": (
        ("", r"(?:a|an)/DET", "DET"),
        ("", rf"(?:other/|\S+/NUM |{_NOUN_AFTER})", "DET"),
        ("", "", "PRON"),
    ),
    "ADJ+ADV": (
        (r"no/ADV ", "", "ADV"),
        (r"rose/VERB (?:higher/ADV and/CCONJ )?", "", "ADV"),
        (r"at/ADP ", "", "ADJ"),
        (_BE, "", "ADJ"),
        (r"/DET ", "", "ADJ"),
        (_POSSESSIVE, "", "ADJ"),
        (r"(?:too|very|so|as)/ADV ", r"(?:a|an)/", "ADJ"),
        ("", r"(?:\S+/ADJ\S* )*\S+/(?:NOUN|PROPN|\S*\+NOUN)", "ADJ"),
        ("", "", "ADV"),
    ),
    "ADJ+NOUN": (
        ("", r"\S+/(?:ADJ|NOUN)", "ADJ"),
        (_BE, "", "ADJ"),
        (r"/ADV ", "", "ADJ"),
        (_NOUN_BEFORE, "", "NOUN"),
        (r"/(?:VERB|NOUN) ", "", "ADJ"),
    ),
    "ADJ+VERB": (
        (r"/NUM ", r"\S+/\S*NOUN", "ADJ"),
        (r"/(?:DET|ADV|ADJ) ", "", "ADJ"),
        (_POSSESSIVE, "", "ADJ"),
        (_BE, "", "ADJ"),
        (r"/(?:PART|PRON|PROPN|NOUN|AUX) ", "", "VERB"),
        (r"/ADP ", r"\S+/\S*NOUN", "ADJ"),
        ("", "", "VERB"),
    ),
    "NOUN+VERB": (
        (r"(?:toy|chess|apple|ski|swimming|rowing|sack|bicycle)/\w+ ", "", "NOUN"),
        (r"(?:to/PART |not/PART |/AUX |/AUX \S+/(?:PRON|PROPN) )", "", "VERB"),
        (_BE, "", "VERB"),
        (rf"(?:{_NOUN_BEFORE}|whose/PRON |nothing/PRON but/CCONJ )", "", "NOUN"),
        (r"/VERB by/ADP day/NOUN and/CCONJ ", "", "VERB"),
        (r"/NOUN and/CCONJ ", r"(?:\S+/PUNCT|at/|and/|in/)", "NOUN"),
        (r"(?:/NOUN ,|\")/PUNCT ", r"and/CCONJ \S+/NOUN", "NOUN"),
        (r"(?:/AUX (?:\S+/ADV )+|\"/PUNCT |and/CCONJ )", r"(?:\S+/(?:PRON|ADV|DET|PUNCT))", "VERB"),
        (r"\"/PUNCT ", r"(?:a|an|the|me|it|them|your|my)/", "VERB"),
        (r"(?:/PUNCT |^|then/ADV )", r"\S+/(?:AUX|VERB)", "NOUN"),
        (r"(?:who|that|i|you|he|she|it|we|they|him|them|us|me)/PRON (?:\w+/ADV )*", "", "VERB"),
        (r"/(?:PROPN|NOUN) (?:\w+/ADV )*", "", "VERB"),
        (r"/VERB ", "", "NOUN"),
    ),
}


def pos_tags(sentence: Tagged) -> Tagged | None:
    """Tag the words of a sentence, given with its entity tags; None where a word is undecided.

    >>> pos_tags([("Anna", "B-PER"), ("loved", "O"), ("the", "O"), ("park", "O"), (".", "O")])
    [('Anna', 'PROPN'), ('loved', 'VERB'), ('the', 'DET'), ('park', 'NOUN'), ('.', 'PUNCT')]
    """
    options = [_options(word, entity) for word, entity in sentence]
    after = [
        f"{word.lower()}/{_shown(word.lower(), tags)}"
        for (word, _), tags in zip(sentence, options, strict=True)
    ]
    before, found = "", []
    for i, (word, _) in enumerate(sentence):
        tag = _decide(word.lower(), options[i], before, " ".join(after[i + 1 :]))
        if tag is None:
            return None
        found.append((word, tag))
        before += f"{word.lower()}/{tag} "
    return found


def _options(word: str, entity: str) -> frozenset[str]:
    """Return the tags a word may have; in names, only determiners and the like keep their own."""
    known = possible_tags().get(word.lower(), frozenset())
    if word in NATIONS:
        return frozenset({"ADJ", "PROPN"})
    if entity != "O":
        return known if known and known <= {"DET", "ADP", "NUM"} else frozenset({"PROPN"})
    return known - {"PROPN"} if word.islower() else known


def _shown(word: str, tags: frozenset[str]) -> str:
    """Join the tags for the patterns; base forms and past participles of verbs are marked."""
    marks = {"BASE": base_forms(), "PTCP": participles()}
    return "+".join([*sorted(tags), *(mark for mark, forms in marks.items() if word in forms)])


def _decide(word: str, tags: frozenset[str], before: str, after: str) -> str | None:
    if len(tags) == 1:
        return next(iter(tags))
    for left, right, tag in (*RULES.get(word, ()), *RULES.get("+".join(sorted(tags)), ())):
        if _pattern(f"(?:{left})$").search(before) and _pattern(right).match(after):
            return tag
    return None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)
