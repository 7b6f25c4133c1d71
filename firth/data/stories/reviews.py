"""Reviews of books, meals, shows, visits and holidays with a known sentiment.

Single words do not always give the sentiment: praise and blame are negated, a weak point is
conceded before a strong one, and others' opinions differ from the writer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firth.data.stories.word_lists import pairs, phrases, table, words

if TYPE_CHECKING:
    from firth.data.stories.story_builder import StoryBuilder

# what is reviewed: (its parts, words for a good one, words for a bad one)
SUBJECTS = {
    key: tuple(row.split() for row in rows)
    for key, rows in table("""
        book: story characters ending pictures beginning, exciting funny clever moving gripping,
            boring dull confusing silly predictable;
        meal: soup dessert bread salad sauce, delicious tasty fresh warm excellent,
            cold tasteless salty burnt greasy;
        show: music costumes acting singing lighting, wonderful brilliant lively charming cheerful,
            weak tiresome dreadful dull flat;
        visit: guide rooms garden tour collection, interesting delightful pleasant memorable lovely,
            disappointing dull tedious dreadful poor;
        holiday: hotel beach weather food room, perfect lovely excellent pleasant wonderful,
            disappointing awful unpleasant terrible miserable;
        film: plot actors jokes ending music, brilliant funny touching smart beautiful,
            slow boring stupid weak dreadful;
        concert: songs singer drummer sound band, fantastic powerful wonderful lively brilliant,
            dull clumsy painful weak dreadful""").items()
}
_PLURAL_PARTS = words("characters pictures costumes rooms songs actors jokes")

GOOD = phrases("""I (would gladly|will certainly|am sure to|hope to) <r_again>;
    I (loved|enjoyed) every minute of it; I can only recommend it;
    it was worth every (penny|minute); I was (never|not) bored for a (minute|moment);
    I have never (had|known|seen) a better {r_kind}; there is nothing I would change;
    nobody could have been (disappointed|bored); I did not want it to end; it made my (day|week);
    I was sorry when it was over; you should not miss it; it was far better than I had expected""")
BAD = phrases("""I would (never|not) <r_again>; I (regretted|hated) every minute of it;
    I cannot recommend it; it was not worth (the money|my time|a penny);
    I was bored from beginning to end; I have never (had|known|seen) a worse {r_kind};
    there is nothing I would not change; nobody could have (enjoyed|liked) it;
    I could not wait for it to end; it spoilt my (day|week); I was glad when it was over;
    you had better avoid it; it was far worse than I had expected""")
AGAIN = pairs("""book: read it again; meal: eat there again; show: see it again; visit: go back;
    holiday: go there again; film: watch it again; concert: hear them again""")
SETTINGS = {
    "book": '(<ago> I|I have just) read "{r_book}"',
    "meal": "(<ago> we|We) (had|ordered) the {r_dish} at the (Golden Spoon|Red Door Hotel|"
    "station restaurant)",
    "show": "(<ago> I|I) saw the new show at the Star Theatre",
    "visit": "(<ago> we|We) visited the (City Museum|old castle|zoo) in {r_place}",
    "holiday": "(<ago> we|We) spent (a week|ten days|our holiday) in {r_country}",
    "film": '(<ago> I|I) (watched|saw) the film of "{r_book}"',
    "concert": "(<ago> I|I) heard the {r_band} (play|at the {r_festival}|in {r_place})",
}

MIXED = (  # {plus} has the verdict's sign, {minus} the other
    "{minus}, but {plus}",
    "although {minus}, {plus}",
    "{minus}; still, {plus}",
    "even if {minus}, {plus}",
    "true, {minus}, but {plus}, and that is what counts",
    "{minus}, and yet {plus}",
)
OTHERS = (
    "(everyone|my <relative>|{r_friend}) had (told me|promised|warned me) that it would be "
    "{r_other}, but {plus}",
    "my <relative> (thought|said) it was {r_other}, but I (found it|thought it was) {r_same}",
    "I had expected something {r_other}, but {plus}",
    "those who call it {r_other} are wrong: {plus}",
    "the people next to us found it {r_other}; I thought it was {r_same}",
)
DENIED = (
    "it was (not|not at all|anything but|never|by no means) {r_other}",
    "nobody could call it {r_other}",
    "I did not find it {r_other} (at all|for a moment)",
    "the {r_part} {r_were} far from {r_other}",
)
PLAIN = (
    "it was <very> {r_same}",
    "the {r_part} {r_were} {r_same}",
    "the {r_part} {r_were} <very> {r_same} and the {r_second} {r_was2} {r_same2}",
    "I found it {r_same} and {r_same2}",
    "what a {r_same} {r_kind}",
    "the {r_part} {r_were} {r_same} (throughout|from start to finish)",
)


def setting(t: StoryBuilder, kind: str) -> str:
    """Say what is reviewed."""
    t.run_script("""
        let: r_book = BOOKS
        let: r_dish = DISHES
        let: r_company = COMPANIES
        let: r_country = COUNTRIES
        let: r_band = BANDS
        let: r_festival = FESTIVALS
        let: r_place = TOWNS
    """)
    return t.words(SETTINGS[kind])


def opinion_clauses(t: StoryBuilder, kind: str, positive: bool) -> str:
    """Write one or two clauses with the given sentiment."""
    parts, good, bad = SUBJECTS[kind]
    same, other = (good, bad) if positive else (bad, good)
    part, second = t.sample(parts, 2)
    (word, word2), (others, weak) = t.sample(same, 2), t.sample(other, 2)
    were, was2 = ("were" if noun in _PLURAL_PARTS else "was" for noun in (part, second))
    t.bind(r_kind=kind, r_part=part, r_second=second, r_same=word, r_same2=word2, r_other=others)
    t.bind(r_were=were, r_was2=was2, r_again=(AGAIN[kind],))
    t.bind(r_friend=t.people[-1].name if t.people else "Tom")
    mood = t.rng.random()
    if mood < 0.55:
        return t.words(t.pick(PLAIN))
    if mood < 0.62:
        return t.words(t.pick(DENIED))
    verdict = t.words(t.pick(GOOD if positive else BAD))
    if mood < 0.80:
        return verdict
    strong = verdict if t.chance(0.5) else t.words(t.pick(PLAIN[:2] + DENIED[:2]))
    if mood < 0.88:
        return t.words(t.pick(OTHERS).replace("{plus}", strong))
    weak_part = f"the {second} {was2} {f'not {word2}' if t.chance(0.4) else weak}"
    return t.pick(MIXED).format(plus=strong, minus=weak_part)


def remark(t: StoryBuilder, positive: bool) -> str:
    """Review something in one sentence, without its full stop."""
    kind = t.pick(tuple(SUBJECTS))
    joint = t.pick((", and ", ": ", ", and ", "; "))
    subject = setting(t, kind).replace('"', "")
    return subject + joint + opinion_clauses(t, kind, positive)


def review(t: StoryBuilder, positive: bool) -> str:
    """Write a review of two to five sentences with one sentiment."""
    kind = t.pick(tuple(SUBJECTS))
    sentences = []
    if t.chance(0.7):
        sentences.append(setting(t, kind))
    while len(sentences) < 2 or t.chance(0.5):
        sentences.append(opinion_clauses(t, kind, positive))
        if len(sentences) == 5:
            break
    return " ".join(
        t.render(sentence.replace("(", "").replace(")", "") + ".") for sentence in sentences
    )
