"""Sentences: where they begin, by rule, in any script.

The rule is the one readers use: a sentence ends at a terminator that white space follows, unless
the word before it is an abbreviation or the text after it goes on in lower case. In scripts without
case the terminator decides alone. One pattern finds the candidates; Python judges only those.
"""

import re

_TERMINATORS = (
    ".!?…‼⁇⁈⁉‽"
    "؟۔܀܁܂߹"  # Arabic, Urdu, Syriac, N'Ko
    "।॥።፧፨։"  # Devanagari and its neighbours, Ethiopic, Armenian
    "။។៕།᠃᠉꘎꘏꛳꛷"  # Burmese, Khmer, Tibetan, Mongolian, Vai, Bamum
)
_CJK_TERMINATORS = "。！？｡"  # white space need not follow these
_ALL_TERMINATORS = _TERMINATORS + _CJK_TERMINATORS
_OPENERS = re.escape("\"'“”„‘‚«»‹›([{¿¡「『（【《〈〔［")
_CLOSERS = re.escape("\"'”’»›)]}」』）】》〉〕］")
_DASHES = re.escape("-–—―")

# A name or a reference follows these, even on the next line of hard-wrapped text.
_TITLES_BY_LANGUAGE = {
    "shared": "Dr Prof St Mr Mrs Ms Mme Mlle Rev Hon Fr Capt Col Gen Lt Maj Sgt Cpl Cmdr Adm Gov "
    "Pres Rep Sen Supt Engr Arc Barr Amb Mt Ft vs viz cf",
    "Swahili": "Bw Bi Dkt Mhe Mwl Ndg Mch Jen Kan Sh Inj Taz Uk",
    "Hausa": "Alh Mal Haj Inji Gwam Farf",
    "Hindi": "डॉ प्रो पं",
}
_TITLES = frozenset(" ".join(_TITLES_BY_LANGUAGE.values()).split())
# These go on only before a figure: "No. 5", but "No. Never!" (Swahili "Na." is "No.").
_BEFORE_FIGURES = "No Nos Na p pp Fig Figs fig Vol Vols vol Ch Sec Art Eq Rs Tsh Ksh"
_MONTHS = "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
_COUNTERS = frozenset(f"{_BEFORE_FIGURES} {_MONTHS}".split())

# Terminators or one newline, then what closes the sentence, then white space. The class in front
# makes the search fast, and as nothing behind it can fail, the search is linear.
_CANDIDATE = re.compile(
    rf"[{_ALL_TERMINATORS}\n](?:(?<!\n)[{_ALL_TERMINATORS}]*+[{_CLOSERS}]*+)?(\s*+)"
)
# What may stand before a first letter. At the start of a line, a dash is a bullet.
_LEAD = re.compile(rf"(?:(?<!\n)[{_DASHES}]++\s*+)?[{_OPENERS}]*+")
_BEFORE_WORD = re.compile(rf"[\s{_DASHES}{_OPENERS}]")
_LIST_MARKER = re.compile(r"(?:^|\n)\s*(?:[0-9]{1,3}|[IVXLC]{1,6})\Z")

_LONG_WORD = 5  # letters: no abbreviation in the tables has as many
_REACH = 10  # characters before a period: enough to know any abbreviation
_SHORT_LINE = 45  # a line that ends sooner than a margin would wrap it is a heading or a list item


def sentence_starts(text: str) -> list[int]:
    """Find the offsets at which sentences begin; white space belongs to the sentence after it.

    >>> sentence_starts("Dr. Firth spoke. Really? he said.")
    [0, 16]
    """
    starts = [0] if text else []
    for candidate in _CANDIDATE.finditer(text):
        mark, (gap, following) = candidate.start(), candidate.span(1)
        if following == len(text):
            break
        if text[mark] == "\n":
            gap, ends = _judge_line(text, mark, following)
        elif gap == following:
            ends = text[mark] in _CJK_TERMINATORS and text[gap].isalnum()
        else:
            ends = _judge_terminator(text, mark, gap, following)
        if ends and gap > starts[-1]:
            starts.append(gap)
    return starts


def _judge_line(text: str, newline: int, following: int) -> tuple[int, bool]:
    """For a newline after no terminator: where its white space begins, and if a sentence ends."""
    line_start = text.rfind("\n", 0, newline) + 1
    line = text[line_start:newline].rstrip()
    unwrapped = len(line) < _SHORT_LINE or text.find("\n", newline + 1, following) > 0
    return line_start + len(line), unwrapped and not _goes_on(text, following)


def _judge_terminator(text: str, mark: int, gap: int, following: int) -> bool:
    """For a terminator at ``mark`` with white space at ``gap``: if it ends a sentence."""
    if _goes_on(text, following):
        return False
    if text[mark:gap] != ".":
        return True
    if mark >= _LONG_WORD and text[mark - _LONG_WORD : mark].isalpha():
        return True  # the common case
    before = text[max(0, mark - _REACH) : mark]
    word = _BEFORE_WORD.split(before)[-1]
    if word in _TITLES:
        return False
    return text.find("\n", gap, following) >= 0 or not (
        _is_initial(word)
        or _has_inner_periods(word)
        or (word in _COUNTERS and text[following].isdecimal())
        or (not word.islower() and _LIST_MARKER.search(before))
    )


def _goes_on(text: str, following: int) -> bool:
    """Whether what follows cannot begin a sentence: lower case, a terminator, or nothing."""
    first = text[following]
    if not first.isalnum() and (lead := _LEAD.match(text, following)):
        first = text[lead.end() : lead.end() + 1]
    # Georgian letters count as lower case, but no Georgian sentence begins in upper case.
    return first in _ALL_TERMINATORS or (first.islower() and first != first.title())


def _is_initial(word: str) -> bool:
    # "So did I. Then" is far commoner than "I. Newton".
    return len(word) == 1 and word.isalpha() and not word.islower() and word != "I"


def _has_inner_periods(word: str) -> bool:
    """Whether a word is like e.g, U.S, n.k or Ph.D, and not like example.org or 3.14."""
    return "." in word and all(
        1 <= len(part) <= 2 and not part.isdecimal() for part in word.split(".")
    )
