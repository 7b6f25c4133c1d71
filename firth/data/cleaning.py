"""Text cleaning: Unicode normalisation, and removal of control characters and markup.

Text from web pages, wiki dumps and scans contains tags, entities, control characters and extra
spaces, which would waste vocabulary and model capacity. Words, letters, case and punctuation are
never changed, in any script: joiners (Persian, the Indic scripts, emoji) and direction marks are
part of the spelling.

Every pattern takes linear time on every input: possessive quantifiers (``*+``), and bodies that
stop at the next opening delimiter, prevent backtracking.
"""

import html
import re
import unicodedata
from html.entities import html5
from typing import NamedTuple


class CleanedText(NamedTuple):
    """A cleaned text, and the numbers of removed control characters and pieces of markup."""

    text: str
    controls: int
    markup: int


def clean(text: str) -> CleanedText:
    r"""Normalise Unicode and white space; remove control characters and markup.

    The result is in NFC; its only white space is single spaces and single newlines between words.

    >>> clean("<p>Ina\u00a0 kwana?</p>\r\n<p>Lafiya&nbsp;lau &amp; na gode.\x00</p>")
    CleanedText(text='Ina kwana?\nLafiya lau & na gode.', controls=1, markup=6)
    """
    text, controls = _normalise(text)
    text, markup = _strip_markup(text)
    if markup:  # an entity may have encoded a control character or a combining mark
        text, decoded = _normalise(text)
        controls += decoded
    return CleanedText(_tidy_spaces(text), controls, markup)


def is_invisible(text: str) -> bool:
    r"""Return whether a text is empty or has only white space, control and zero-width characters.

    >>> is_invisible("\u200b\ufeff \n"), is_invisible("\u200bña")
    (True, False)
    """
    return not _VISIBLE.search(text)


# White space, control characters, default-ignorable code points (UAX #44), and the blank Braille
# pattern.
_VISIBLE = re.compile(
    "[^\\s\\x00-\\x1f\\x7f-\\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


# --- characters ---------------------------------------------------------------------------------

# The mandatory line breaks of Unicode (UAX #14): form feed and vertical tab end a line too. A
# "\r\n" may become two newlines, because runs of newlines become one in the end.
_LINE_BREAK = re.compile("[\r\x0b\x0c\x85\u2028\u2029]")

_NONCHARACTERS = "\ufdd0-\ufdef" + "".join(
    f"{chr(plane | 0xFFFE)}-{chr(plane | 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
)
# Category Cc less tab and line breaks; soft hyphen; byte order mark; surrogates; noncharacters.
_CONTROL = re.compile(
    f"[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\ufeff\ud800-\udfff{_NONCHARACTERS}]"
)

# Every combining mark is neither \w nor \s. No orthography stacks more than 30 of them (UAX #15,
# stream-safe text), and putting an endless stack into canonical order takes quadratic time.
_LONG_STACK = re.compile(r"[^\w\s\x00-\x7f]{31,}")
_MAX_MARKS = 30


def _normalise(text: str) -> tuple[str, int]:
    """Give the text plain newlines, no control characters and NFC; count those characters."""
    controls = 0
    if not text.replace("\n", "").isprintable():  # a fast check that most text passes
        text = _LINE_BREAK.sub("\n", text)
        text, controls = _CONTROL.subn(_replace_control, text)
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", _LONG_STACK.sub(_limit_marks, text))
    return text, controls


def _replace_control(match: re.Match[str]) -> str:
    # A lone surrogate is the rest of a lost character; the others carry no information.
    return "\ufffd" if "\ud800" <= match[0] <= "\udfff" else ""


def _limit_marks(match: re.Match[str]) -> str:
    kept, stacked = [], 0
    for character in match[0]:
        stacked = stacked + 1 if unicodedata.category(character)[0] == "M" else 0
        if stacked <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def _tidy_spaces(text: str) -> str:
    """Make any run of spaces one space, any run of newlines one newline, and trim every line."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(filter(None, lines))


# --- markup -------------------------------------------------------------------------------------

_BLOCK_TAGS = """address article aside blockquote body br caption center dd details dialog dir div
    dl dt fieldset figcaption figure footer form gallery h1 h2 h3 h4 h5 h6 head header hr html
    legend li main menu nav ol optgroup option p pre section summary table tbody td tfoot th thead
    title tr ul"""
_INLINE_TAGS = """a abbr acronym area audio b base bdi bdo big button canvas cite code col colgroup
    data datalist del dfn em embed font i iframe img input ins kbd label link map mark math meta
    meter nobr noscript nowiki object output param picture progress q ref references rp rt ruby s
    samp script select small source span strike strong style sub sup svg template textarea time
    track tt u var video wbr"""


def _tags(names: str) -> re.Pattern[str]:
    # Only real names make a tag: "<T>", "<a@b.c>" and "x <- y" are text. Attributes have an "=":
    # "a <b and c> d" is text too. Both cases are spelt out, for ignoring case is far slower.
    spellings = "|".join((names + " " + names.upper()).split())
    return re.compile(rf"<(?=[a-zA-Z/])/?(?:{spellings})(?:\s*+/?|\s[^<>=]*+=[^<>]*+)>")


class _Rule(NamedTuple):
    guard: str  # occurs in every match; a fast test for clean text
    pattern: re.Pattern[str]
    replacement: str


_COMMENT = re.compile(r"<!--[^-<]*+(?:(?!-->|<!--)[-<][^-<]*+)*-->")
_WITH_CONTENTS = re.compile(  # <ref/> has none
    r"(?i)<(script|style|ref)\b[^<>]*+(?<!/)>[^<]*+(?:<(?!/?\1\b)[^<]*+)*</\1\s*+>"
)
_WIKI_TEMPLATE = re.compile(r"\{\{[^{}]*+\}\}")
_WIKI_LINK = re.compile(r"\[\[(?:[^\[\]]*\|)?([^\[\]|]*+)\]\]")
_WIKI_QUOTES = re.compile(  # '''bold''', ''italic''; not the ''-marks that end a ``quotation''
    r"(?<!')('{2,5})(?=[\w\"“«(])([^'\n]*+(?:'(?!')[^'\n]*+)*)(?<!\s)\1(?!')"
)
_RULES = (
    _Rule("<!--", _COMMENT, ""),
    _Rule("</", _WITH_CONTENTS, ""),
    _Rule("{{", _WIKI_TEMPLATE, ""),
    _Rule("[[", _WIKI_LINK, r"\1"),
    _Rule("''", _WIKI_QUOTES, r"\2"),
    _Rule("<", _tags(_BLOCK_TAGS), "\n"),
    _Rule("<", _tags(_INLINE_TAGS), ""),
    _Rule("<!", re.compile(r"(?i)<!doctype\b[^<>]*+>"), ""),
)
_MAX_NESTING = 8
_ENTITY = re.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")


def _strip_markup(text: str) -> tuple[str, int]:
    """Remove markup, then decode entities, which may encode literal angle brackets."""
    removed = 0
    for guard, pattern, replacement in _RULES:
        for _ in range(_MAX_NESTING):  # templates, links and quotes nest: innermost first
            if guard not in text:
                break
            text, found = pattern.subn(replacement, text)
            if not found:
                break
            removed += found
    if "&" in text:
        removed += sum(_character(entity) != entity for entity in _ENTITY.findall(text))
        text = _ENTITY.sub(lambda match: _character(match[0]), text)
    return text, removed


def _character(entity: str) -> str:
    """Decode one entity; unknown names stay unchanged."""
    return html.unescape(entity) if entity[1] == "#" else html5.get(entity[1:], entity)
