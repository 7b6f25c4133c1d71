"""Sentence splitting in many languages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.data.sentences import sentence_starts

# " | " marks every sentence boundary and stands for one space.
WITH_SPACES = {
    "plain": "The rain stopped. | Nobody moved! | Why not?",
    "titles": "Dr. and Mrs. Smith met Prof. J. R. Firth at St. Paul's. | He bowed.",
    "after a dash": "He called--Mr. Smith did. | She came.",
    "inner periods": "Bring fruit, e.g. Mangoes. | The U.S. Army left at 5 p.m. on Monday.",
    "degrees": "She has a Ph.D. from Kano. | He has none.",
    "decimals": "It cost 3.50 in 1999. | Now it is 4.75. | Prices rise.",
    "addresses": "See https://example.org/a.html?x=1. | Write to me@example.com. | Thanks.",
    "No.": "He lives at No. 5, see p. 12. | Is that so? | No. | Never.",
    "dates": "It began on Jan. 5 and ended in Dec. | Then came spring.",
    "I": "You knew it before I. | Then I knew.",
    "dialogue": '"Really?" he asked. | "Yes!" | “No,” she said, “never.” | (They left.) | \'So?\'',
    "lower case goes on": "Really? he asked. | Oh! how lovely. | Well… perhaps not.",
    "dash goes on": "«Venez !» – dit-il. | Elle vint.",
    "ellipses": "He waited... | Nothing came. . . . so he left… | She stayed?! | Yes.",
    "quoted number": "There were 40. | 30 came back. | “20 died.”",
    "Hausa": "Alh. Musa ya gana da Mal. Ɗanjuma ran Litinin. | Ƙungiyar ta ce: “Ba mu yarda ba!” | "
    "Ina Gwam. Yusuf yake? | Annabi Muhammadu (S.A.W.) ya faɗa. | Ƴan wasa sun ci 2.5.",
    "Swahili": "Bw. Juma na Bi. Asha walimwona Mhe. Rais. | Wakanunua embe n.k. na kurudi. | "
    "“Karibuni!” alisema Mwl. Neema. | Dkt. Ali, Taz. Uk. 12, hakuja. | Je, ni kweli?",
    "Spanish": "¿Qué tal? | ¡Bien! | —No lo sé. | ¿Y tú?",
    "Arabic": "كيف حالك؟ | أنا بخير. | رأيت د. أحمد أمس. | شكرا!",
    "Urdu": "یہ کتاب ہے۔ | وہ قلم ہے۔",
    "Hindi": "यह किताब है। | डॉ. राम आए। | क्या आप आएँगे? | हाँ॥",
    "Amharic": "ሰላም ነው። | እንዴት ነህ፧ | ደህና ነኝ።",
    "Armenian": "Ես գնում եմ։ | Դու մնա։",
    "Georgian": "გამარჯობა. | როგორ ხარ? | კარგად.",
}


def split_sentences(text: str) -> list[str]:
    edges = pairwise([*sentence_starts(text), len(text)])
    return [sentence for start, end in edges if (sentence := text[start:end].strip())]


@pytest.mark.parametrize("marked", WITH_SPACES.values(), ids=WITH_SPACES.keys())
def test_sentence_boundaries(marked: str) -> None:
    assert split_sentences(marked.replace(" | ", " ")) == marked.split(" | ")


def test_chinese_and_japanese() -> None:
    chinese = "我喜歡讀書。你呢？“我也是！”他說。"
    assert split_sentences(chinese) == ["我喜歡讀書。", "你呢？“我也是！”", "他說。"]
    assert split_sentences("行こう！ はい。") == ["行こう！", "はい。"]


LONG = "x" * 30 + " and a line as long as a margin allows"


@pytest.mark.parametrize(
    ("lines", "sentences"),
    [
        ("A Heading\nThe text.", ["A Heading", "The text."]),
        (f"{LONG}\nJohn went on.", [f"{LONG}\nJohn went on."]),
        (f"{LONG}\n\nA paragraph.", [LONG, "A paragraph."]),
        (f"{LONG} Mr.\nSmith.", [f"{LONG} Mr.\nSmith."]),
        (f"{LONG} in the U.S.\nThen home.", [f"{LONG} in the U.S.", "Then home."]),
        ("He asked:\nwhy not?", ["He asked:\nwhy not?"]),
        ("To buy:\n- milk\n- bread", ["To buy:", "- milk", "- bread"]),
        ("1. Milk.\n2. Bread.\nIV. A chapter.", ["1. Milk.", "2. Bread.", "IV. A chapter."]),
        ("In 1999.\n  \n Later. ", ["In 1999.", "Later."]),
    ],
)
def test_line_breaks(lines: str, sentences: list[str]) -> None:
    assert split_sentences(lines) == sentences


def test_white_space_belongs_to_the_next_sentence() -> None:
    #                       0123456789012345678901
    assert sentence_starts("  One.  Two.\n Three. ") == [0, 6, 12]
    assert sentence_starts("") == []


texts = st.text(st.one_of(st.sampled_from(' .\n?。”"(1aAI-'), st.characters()))


@given(texts)
def test_sentences_make_up_the_text(text: str) -> None:
    starts = sentence_starts(text)
    assert starts[:1] == ([0] if text else [])
    assert all(a < b for a, b in pairwise(starts))
    pieces = [text[a:b] for a, b in pairwise([*starts, len(text)])]
    assert "".join(pieces) == text
    for before, piece in pairwise(pieces):
        assert piece[0].isspace() or (piece[0].isalnum() and set(before) & set("。！？｡"))
        assert piece.strip()


REPEATED = {".": 1, "a": 1, " ": 1, "\n": 1, ". ": 1, "A. ": 1, "1. ": 66_665, ".\n": 1, "a\n": 1}
REPEATED |= {".)": 1, ". (": 1}


@pytest.mark.parametrize("part", REPEATED)
def test_splitting_takes_linear_time(part: str) -> None:
    """A quadratic algorithm would take minutes for 200 kB."""
    assert len(sentence_starts(part * (200_000 // len(part)))) == REPEATED[part]
