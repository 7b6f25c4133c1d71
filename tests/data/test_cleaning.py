"""Cleaning removes markup and control characters, in every script and in linear time."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.data.cleaning import CleanedText, clean

# Texts that cleaning must not change.
UNCHANGED = {
    "English": "“Don't,” she said—‘never’—and left… a < b and c > d; List<T>, x <- y, 3 << 4.",
    "mail": "Write to <a@b.c> or <p.q@r.st>, or see <https://example.org/?a=1&b=2>.",
    "code": "if (a <b and c> d) { x = [[1, 2], [3, 4]]; y = {1: {2: 3}}; s = ''; } AT&T &c; &foo;",
    "latex": "``She said so'', and he wrote ``no'' at 5' 11''.",
    "Hausa": "Ɓarawo ya ɗauki ƙaramar ƴar tsana; ya ce: ‘ba ni ba ne’.",
    "Yoruba": "Ẹ káàárọ̀, ṣé dáadáa ni? Ọjọ́ ń lọ.",
    "Swahili": "Ng'ombe wa maskini hazai, akizaa ni dume.",
    "Arabic": "السَّلامُ عَلَيْكُمْ، كيف حالك؟",
    "Persian": "می\u200cخواهم کتاب\u200cها را بخوانم.",
    "Hindi": "हिन्दी में मात्राएँ: कि, की, कु, कू, र्\u200dय।",
    "Thai": "น้ำตกที่นี่สวยมาก",
    "Chinese": "我喜歡讀書。「你呢？」",
    "Amharic": "ሰላም፡ እንዴት፡ ነህ፧",
    "emoji": "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽",
    "directions": "\u200fעברית\u200e (English) \u2067مرحبا\u2069",
}


@pytest.mark.parametrize("text", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_text_is_kept_and_composed(text: str) -> None:
    assert clean(text) == CleanedText(text, controls=0, markup=0)
    assert clean(unicodedata.normalize("NFD", text)).text == text


def test_white_space_is_normalized() -> None:
    for newline in ("\r\n", "\r", "\u2028", "\u2029", "\x85", "\f", "\n\n\r"):
        assert clean(f"one {newline}\t two{newline}") == CleanedText("one\ntwo", 0, 0)
    for space in ("  ", "\t", "\u00a0", "\u2009", "\u202f", "\u3000", " \u2003 "):
        assert clean(f"{space}one{space}two{space}") == CleanedText("one two", 0, 0)


def test_control_characters_are_removed_and_counted() -> None:
    controls = "\x00\x07\x1b\x7f\x9f\xad\ufeff\ufdd0\uffff\U0001fffe\U0010ffff"
    assert clean(f"ab{controls}cd") == CleanedText("abcd", controls=len(controls), markup=0)
    assert clean("a\ud83db").text == "a\ufffdb"  # a lone surrogate


def test_number_of_combining_marks_is_limited() -> None:
    assert len(clean("x" + "\u0301\u0316" * 500 + "y").text) == 1 + 30 + 1


@pytest.mark.parametrize(
    ("dirty", "text", "markup"),
    [
        ("a<br>b<BR/>c<br />d", "a\nb\nc\nd", 3),
        ("<h1>Title</h1><p class='x'>Some <b>bold</b>ness.</p>", "Title\nSome boldness.", 6),
        ("<table><tr><td>1</td><td>2</td></tr></table>", "1\n2", 8),
        ('A <a href="http://x.y/?a=1" rel=nofollow>link</a>, <IMG SRC=x.png />', "A link,", 3),
        ("a<!-- hidden -- <b>text</b>\n-->b", "ab", 1),
        ("a<script>if (a < b) x()</script>b<STYLE>p {}</style >c", "abc", 2),
        ("<!DOCTYPE html><html>a</html>", "a", 3),
        ("fact<ref name=x>{{cite|a <i>b</i>}}</ref>, more<ref name=x />.", "fact, more.", 2),
        ("an unclosed <ref>note, a fact<ref>source</ref>", "an unclosed note, a fact", 2),
        ("a [[cat]], [[Cat|cats]] and [[File:x.png|thumb|a [[dog]]]]", "a cat, cats and a dog", 4),
        ("'''''Both''''', '''bold ''and don't'' bold'''.", "Both, bold and don't bold.", 3),
        ("kept {{a|{{b}}|{{c|{{d}}}}}}{{e}}!", "kept !", 5),
        ("R&amp;D &#39;x&#39; &#x2014; &nbsp; &hellip;", "R&D 'x' — …", 6),
        ("escaped &lt;b&gt; is text", "escaped <b> is text", 2),
        ("Cafe&#769;, co&shy;operate", "Café, cooperate", 2),
    ],
)
def test_markup_is_removed_and_counted(dirty: str, text: str, markup: int) -> None:
    cleaned = clean(dirty)
    assert (cleaned.text, cleaned.markup) == (text, markup)


plain_text = st.text(st.characters(exclude_characters="<&[{'", codec=None))


@given(plain_text)
def test_cleaning_is_idempotent(text: str) -> None:
    once = clean(text)
    assert clean(once.text) == CleanedText(once.text, controls=0, markup=0)


@given(plain_text)
def test_properties_of_clean_text(text: str) -> None:
    cleaned = clean(text).text
    assert unicodedata.is_normalized("NFC", cleaned)
    assert cleaned == "\n".join(" ".join(line.split(" ")) for line in cleaned.split("\n")).strip()
    assert not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(c) for c in cleaned if c != "\n"}
    assert {c for c in cleaned if c.isspace()} <= {" ", "\n"}


@given(st.text(alphabet="<>/!-&;#ab=[]{}|' \n\"", max_size=60))
def test_incomplete_markup(text: str) -> None:
    assert len(clean(text).text) <= len(text)


PARTS = [
    "<",
    "<a ",
    "</b",
    "<!--",
    "<!-",
    "<b =",
    "<script>",
    "<ref ",
    "[[",
    "[[a|",
    "{{",
    "{{x",
]
PARTS += ["''", "''a", "&", "&#1", "&abc", " ", "\r", " \n", "\u0301\u0316", "\u0f73"]


@pytest.mark.parametrize("part", PARTS)
def test_cleaning_takes_linear_time(part: str) -> None:
    """A quadratic pattern would take minutes for 200 kB."""
    text = part * (200_000 // len(part))
    assert len(clean(text).text) <= len(text)
