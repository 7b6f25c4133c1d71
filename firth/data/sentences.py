"""Rule-based sentence splitting for any script.

A sentence ends at a terminator followed by white space, unless the word before it is an
abbreviation or the text after it continues in lower case. In scripts without case the terminator
alone decides. One regular expression finds candidates; only those are checked in Python.
"""

import re

_TERMINATORS = (
    ".!?…‼⁇⁈⁉‽"
    "؟۔܀܁܂߹"  # Arabic, Urdu, Syriac, N'Ko
    "।॥።፧፨։"  # Devanagari and its neighbours, Ethiopic, Armenian
    "။។៕།᠃᠉꘎꘏꛳꛷"  # Burmese, Khmer, Tibetan, Mongolian, Vai, Bamum
)
_CJK_TERMINATORS = "。！？｡"  # need no white space after them
_ALL_TERMINATORS = _TERMINATORS + _CJK_TERMINATORS
_OPENERS = re.escape("\"'“”„‘‚«»‹›([{¿¡「『（【《〈〔［")
_CLOSERS = re.escape("\"'”’»›)]}」』）】》〉〕］")
_DASHES = re.escape("-–—―")

# Followed by a name or a reference, even on the next line of hard-wrapped text.
_TITLES_BY_LANGUAGE = {
    "shared": "Dr Prof St Mr Mrs Ms Mme Mlle Rev Hon Fr Capt Col Gen Lt Maj Sgt Cpl Cmdr Adm Gov "
    "Pres Rep Sen Supt Engr Arc Barr Amb Mt Ft vs viz cf",
    "Swahili": "Bw Bi Dkt Mhe Mwl Ndg Mch Jen Kan Sh Inj Taz Uk",
    "Hausa": "Alh Mal Haj Inji Gwam Farf",
    "Hindi": "डॉ प्रो पं",
}
_TITLES = frozenset(" ".join(_TITLES_BY_LANGUAGE.values()).split())
# No sentence ends after these before a number: "No. 5", but "No. Never!" (Swahili "Na." is "No.").
_BEFORE_FIGURES = "No Nos Na p pp Fig Figs fig Vol Vols vol Ch Sec Art Eq Rs Tsh Ksh"
_MONTHS = "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
_COUNTERS = frozenset(f"{_BEFORE_FIGURES} {_MONTHS}".split())

# Terminators or one newline, then what closes the sentence, then white space. The leading class
# makes the search fast, and as nothing after it can fail, the search is linear.
_CANDIDATE = re.compile(
    rf"[{_ALL_TERMINATORS}\n](?:(?<!\n)[{_ALL_TERMINATORS}]*+[{_CLOSERS}]*+)?(\s*+)"
)
# What may precede a first letter. At the start of a line, a dash is a bullet.
_LEAD = re.compile(rf"(?:(?<!\n)[{_DASHES}]++\s*+)?[{_OPENERS}]*+")
_BEFORE_WORD = re.compile(rf"[\s{_DASHES}{_OPENERS}]")
_LIST_MARKER = re.compile(r"(?:^|\n)\s*(?:[0-9]{1,3}|[IVXLC]{1,6})\Z")

_LONG_WORD = 5  # letters: longer than any abbreviation above
_REACH = 10  # characters before a period to check for an abbreviation
_SHORT_LINE = 45  # characters: a shorter line is a heading or a list item, not wrapped text


def sentence_starts(text: str) -> list[int]:
    """Return the offsets at which sentences begin; white space belongs to the following sentence.

    >>> sentence_starts("Dr. Firth spoke. Really? he said.")
    [0, 16]
    """
    starts = [0] if text else []
    for candidate in _CANDIDATE.finditer(text):
        mark, (gap, following) = candidate.start(), candidate.span(1)
        if following == len(text):
            break
        if text[mark] == "\n":
            gap, ends = _check_newline(text, mark, following)
        elif gap == following:
            ends = text[mark] in _CJK_TERMINATORS and text[gap].isalnum()
        else:
            ends = _check_terminator(text, mark, gap, following)
        if ends and gap > starts[-1]:
            starts.append(gap)
    return starts


def _check_newline(text: str, newline: int, following: int) -> tuple[int, bool]:
    """Return the start of the white space at a newline, and whether a sentence ends there."""
    line_start = text.rfind("\n", 0, newline) + 1
    line = text[line_start:newline].rstrip()
    unwrapped = len(line) < _SHORT_LINE or text.find("\n", newline + 1, following) > 0
    return line_start + len(line), unwrapped and not _continues(text, following)


def _check_terminator(text: str, mark: int, gap: int, following: int) -> bool:
    """Return whether a terminator at ``mark`` with white space at ``gap`` ends a sentence."""
    if _continues(text, following):
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


def _continues(text: str, following: int) -> bool:
    """Return whether the following text cannot begin a sentence: lower case or a terminator."""
    first = text[following]
    if not first.isalnum() and (lead := _LEAD.match(text, following)):
        first = text[lead.end() : lead.end() + 1]
    # Georgian letters are lower case in Unicode, also at the start of sentences.
    return first in _ALL_TERMINATORS or (first.islower() and first != first.title())


def _is_initial(word: str) -> bool:
    # "So did I. Then" is far more common than "I. Newton".
    return len(word) == 1 and word.isalpha() and not word.islower() and word != "I"


def _has_inner_periods(word: str) -> bool:
    """Return whether a word is like e.g, U.S, n.k or Ph.D, and not like example.org or 3.14."""
    return "." in word and all(
        1 <= len(part) <= 2 and not part.isdecimal() for part in word.split(".")
    )
