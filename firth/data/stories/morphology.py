"""Inflection: the forms of English nouns and verbs, and a or an."""

from __future__ import annotations

import re
from functools import cache

_PLURALS = dict(
    pair.split("/")
    for pair in """child/children man/men woman/women mouse/mice goose/geese foot/feet tooth/teeth
    sheep/sheep fish/fish deer/deer leaf/leaves knife/knives wolf/wolves loaf/loaves scarf/scarves
    half/halves calf/calves shelf/shelves wife/wives life/lives potato/potatoes tomato/tomatoes
    hero/heroes fisherman/fishermen mailman/mailmen postman/postmen person/people
    firefighter/firefighters thief/thieves""".split()
)
# base: (past, participle)
_IRREGULAR = {
    base: (past, participle or past)
    for base, past, participle in (
        row.split("/")
        for row in """be/was/been become/became/become begin/began/begun bite/bit/bitten
        blow/blew/blown break/broke/broken bring/brought/ build/built/ burn/burnt/ buy/bought/
        catch/caught/ choose/chose/chosen come/came/come cost/cost/ cut/cut/ dig/dug/ do/did/done
        draw/drew/drawn dream/dreamt/ drink/drank/drunk drive/drove/driven eat/ate/eaten
        fall/fell/fallen feed/fed/ feel/felt/ fight/fought/ find/found/ fly/flew/flown
        forget/forgot/forgotten freeze/froze/frozen get/got/ give/gave/given go/went/gone
        grow/grew/grown hang/hung/
        have/had/ hear/heard/ hide/hid/hidden hit/hit/ hold/held/ keep/kept/ know/knew/known
        lead/led/ leave/left/ lend/lent/ let/let/ lie/lay/lain light/lit/ lose/lost/ make/made/
        mean/meant/ meet/met/ pay/paid/ put/put/ read/read/ ride/rode/ridden ring/rang/rung
        rise/rose/risen run/ran/run say/said/ see/saw/seen sell/sold/ send/sent/ set/set/
        sew/sewed/sewn shake/shook/shaken shine/shone/ show/showed/shown shut/shut/ sing/sang/sung
        sit/sat/ sleep/slept/ speak/spoke/spoken spend/spent/ stand/stood/ steal/stole/stolen
        stick/stuck/ sweep/swept/ swim/swam/swum take/took/taken teach/taught/ tell/told/
        think/thought/ throw/threw/thrown understand/understood/ wake/woke/woken wear/wore/worn
        weave/wove/woven win/won/ write/wrote/written""".split()
    )
}
_DOUBLING = frozenset(
    "chop clap drop grab hop hug knit mop nod pack plan pat pet rub ship shop "
    "skip slip snap spot stir stop tap trap trip wrap bat beg chat rip".split()
)
_DOUBLING -= {"pack"}
_GERUND_DOUBLING = _DOUBLING | frozenset(
    "cut dig get hit let put run set shut sit swim win".split()
)
_VOWEL_SOUND = re.compile(r"(?:[aeiou]|hour|honest)", re.IGNORECASE)
_CONSONANT_SOUND = re.compile(r"(?:uni[^nm]|use|usual|one\b|once|europ)", re.IGNORECASE)
_ARTICLE = re.compile(r"\b([Aa]) (?=(\w+))")


@cache
def plural(noun: str) -> str:
    """Return the plural of a noun, or of a noun's last word.

    >>> [plural(noun) for noun in ("box", "berry", "toy", "mouse", "bus driver", "knife")]
    ['boxes', 'berries', 'toys', 'mice', 'bus drivers', 'knives']
    """
    head, _, last = noun.rpartition(" ")
    lead = head + " " if head else ""
    if last in _PLURALS:
        return lead + _PLURALS[last]
    if last.endswith("man") and last != "human":
        return lead + last.removesuffix("man") + "men"
    return lead + _with_s(last)


@cache
def third(verb: str) -> str:
    """Return the third person singular of a verb, whose first word is inflected.

    >>> [third(verb) for verb in ("watch", "carry", "play", "have", "go to bed")]
    ['watches', 'carries', 'plays', 'has', 'goes to bed']
    """
    first, space, rest = verb.partition(" ")
    special = {"be": "is", "have": "has"}
    return special.get(first, _with_s(first)) + space + rest


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do"):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


@cache
def past(verb: str) -> str:
    """Return the past tense of a verb, whose first word is inflected.

    >>> [past(verb) for verb in ("bake", "carry", "stop", "buy", "wake up", "lie down")]
    ['baked', 'carried', 'stopped', 'bought', 'woke up', 'lay down']
    """
    first, space, rest = verb.partition(" ")
    form = _IRREGULAR[first][0] if first in _IRREGULAR else _with_ed(first)
    return form + space + rest


@cache
def participle(verb: str) -> str:
    """Return the past participle of a verb.

    >>> [participle(verb) for verb in ("bake", "hide", "write", "find")]
    ['baked', 'hidden', 'written', 'found']
    """
    first, space, rest = verb.partition(" ")
    form = _IRREGULAR[first][1] if first in _IRREGULAR else _with_ed(first)
    return form + space + rest


def _with_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + (word[-1] if word in _DOUBLING else "") + "ed"


@cache
def gerund(verb: str) -> str:
    """Return the form in -ing.

    >>> [gerund(verb) for verb in ("bake", "run", "lie down", "see", "play chess")]
    ['baking', 'running', 'lying down', 'seeing', 'playing chess']
    """
    first, space, rest = verb.partition(" ")
    if first.endswith("ie"):
        stem = first[:-2] + "y"
    elif first.endswith("e") and not first.endswith(("ee", "be")):
        stem = first[:-1]
    else:
        stem = first + (first[-1] if first in _GERUND_DOUBLING else "")
    return stem + "ing" + space + rest


def starts_with_vowel_sound(word: str) -> bool:
    """Return whether the article before a word is "an".

    >>> [starts_with_vowel_sound(word) for word in ("apple", "hour", "unicorn", "umbrella", "one")]
    [True, True, False, True, False]
    """
    return bool(_VOWEL_SOUND.match(word)) and not _CONSONANT_SOUND.match(word)


def articles(text: str) -> str:
    """Turn "a" into "an" before a vowel sound.

    >>> articles("A apple a day, a hour a week, a useful uniform.")
    'An apple a day, an hour a week, a useful uniform.'
    """
    return _ARTICLE.sub(lambda m: f"{m[1]}n " if starts_with_vowel_sound(m[2]) else m[0], text)
