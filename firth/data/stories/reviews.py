"""Reviews of books, meals, shows, visits and holidays with a known sentiment.

Single words do not always give the sentiment: praise and blame are negated, a weak point is
conceded before a strong one, others' opinions differ from the writer's, and some sentences only
say what happened ("we asked for the recipe").
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
        book: story characters ending pictures beginning,
            exciting funny clever moving gripping witty charming original thrilling amusing,
            boring dull confusing silly predictable tedious clumsy shallow pointless lifeless;
        meal: soup dessert bread salad sauce,
            delicious tasty fresh warm excellent superb juicy crisp splendid heavenly,
            cold tasteless salty burnt greasy stale sour soggy dry disgusting;
        show: music costumes acting singing lighting,
            wonderful brilliant lively charming cheerful dazzling superb enchanting amusing
            graceful,
            weak tiresome dreadful dull flat lifeless clumsy embarrassing noisy hopeless;
        visit: guide rooms garden tour collection,
            interesting delightful pleasant memorable lovely fascinating splendid enchanting
            inspiring superb,
            disappointing dull tedious dreadful poor pointless shabby dusty unfriendly dreary;
        holiday: hotel beach weather food room,
            perfect lovely excellent pleasant wonderful glorious heavenly superb delightful
            peaceful,
            disappointing awful unpleasant terrible miserable horrible dreary filthy nasty shabby;
        film: plot actors jokes ending music,
            brilliant funny touching smart beautiful thrilling hilarious original gripping
            inspiring,
            slow boring stupid weak dreadful pointless predictable hopeless embarrassing shallow;
        concert: songs singer drummer sound band,
            fantastic powerful wonderful lively brilliant glorious thrilling superb dazzling
            graceful,
            dull clumsy painful weak dreadful noisy horrible lifeless awful tiresome""").items()
}
PRAISE = frozenset(word for _, good, _ in SUBJECTS.values() for word in good) | {"good", "great"}
BLAME = frozenset(word for _, _, bad in SUBJECTS.values() for word in bad) | {"bad"}
_PLURAL_PARTS = words("characters pictures costumes rooms songs actors jokes")

GOOD = phrases("""I (would gladly|will certainly|am sure to|hope to) <r_again>;
    I (loved|enjoyed) every minute of <r_it>; (I can|I can only|we|I) (really |gladly |)recommend
    <r_it>;
    <r_it> was worth every (penny|minute); I was (never|not) bored for a (minute|moment);
    I have never (had|known|seen) a better {r_kind}; there is nothing I would change;
    nobody could have been (disappointed|bored); (I did not want|nobody wanted) <r_it> to end;
    <r_it> made my (day|week); I was sorry when <r_it> was over; you should not miss <r_it>;
    <r_it> was (far|much) better than I had expected; (I|we|everybody) (liked|loved|enjoyed) <r_it>;
    I am still smiling; I have told all my friends to go; we laughed a lot; (you should|you
    must|do) {r_do}; (go|you should go) and {r_do};
    (five stars|ten out of ten|full marks); <r_it> (warmed my heart|took my breath away|was a
    treat);
    thank you to everyone who made <r_it>; we talked about it all the way home;
    (young and old|all of us|even my <relative>) loved <r_it>; who would not like <r_it>""")
BAD = phrases("""I would (never|not) <r_again>;
    I (regretted|hated) every minute of <r_it>; (I cannot|I could never|we do not) (really |)
    recommend
    <r_it>; <r_it> was not worth (the money|my time|a penny); I was bored from beginning to end;
    I have never (had|known|seen) a worse {r_kind}; there is nothing I would not change;
    nobody could have (enjoyed|liked) <r_it>; (I could not wait for|everybody wanted) <r_it> to end;
    <r_it> spoilt my (day|week); I was glad when <r_it> was over; you had better avoid <r_it>;
    <r_it> was (far|much) worse than I had expected; (I|we|everybody) (disliked|hated) <r_it>;
    I am still angry; I have told all my friends to stay at home; nobody laughed; (do not|never|you
    should not|nobody should) {r_do};
    (one star|two out of ten|no marks at all); <r_it> (made me sad|gave me a headache|was a shame);
    whoever made <r_it> should be sorry; nobody said a word on the way home;
    (young and old|all of us|even my <relative>) hated <r_it>; who could like <r_it>""")
# what is reviewed: what happens when it is good, and when it is bad
SIGNS = {
    key: tuple(tuple(row.split(" / ")) for row in rows)
    for key, rows in table("""
        book: I read it in one night / I have lent it to all my friends / I forgot to get off the
        bus
            / I began again at once, I put it down after ten pages / I fell asleep over it /
            I used it to light the stove / I gave it away the same day;
        meal: we asked for the recipe / nothing was left on our plates / I had a second helping /
            we kissed the cook, we sent it back to the kitchen / we left half of it on the plate /
            I was still hungry afterwards /
            even the dog would not eat it / my stomach hurt all night;
        show: the people stood up and clapped / the curtain rose six times / nobody coughed once /
            my hands hurt from clapping, half the seats were empty after the break /
            somebody behind me snored / the people left before the end / nobody clapped;
        visit: the hours flew by / we stayed until they closed / the children did not want to leave
        /
            we took a hundred photographs, after ten minutes we looked for the way out /
            we wanted our money back / the children asked to go home / we did not stay for long;
        holiday: we have already booked for next year / we came home rested / every day was a gift /
            we did not want to pack our bags, we went home three days early /
            we counted the days / we asked for our money back / we came home ill;
        film: I laughed until I cried / I have seen it three times / I forgot the time /
            everybody clapped at the end, I looked at my watch every five minutes /
            I walked out after an hour / I slept through half of it / nobody laughed once;
        concert: everybody danced / they had to play three songs more / I am still humming the tunes
            / the hall would not let them go, people covered their ears /
            the hall was empty by ten / I went home with a headache / nobody danced""").items()
}
ADVICE = pairs("""book: read this book; meal: eat at this restaurant; show: see this show;
    visit: visit the museum; holiday: go to this hotel; film: see this film;
    concert: hear this band""")
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
    "(it|the {r_kind}) {r_was} not (at all |){r_other}(,|:|, no,) it {r_was} {r_same}",
    "far from being {r_other}, (it|the {r_kind}) {r_was} {r_same}",
    "nobody could call it {r_other}",
    "I did not find it {r_other} (at all|for a moment)",
    "the {r_part} {r_were} far from {r_other}",
)
REASONED = (
    "{r_verdict}, (because|for|since|as) {r_reason}",
    "{r_verdict}(:|,|;) {r_reason}",
    "{r_reason}, (so|and so|and) {r_verdict}",
)
PLAIN = (
    "(it|it|the {r_kind}) {r_was} (<very>|||) {r_same}",
    "the {r_part} {r_were} {r_same}",
    "the {r_part} {r_were} (<very>|) {r_same}(|,) and the {r_second} {r_was2} {r_same2}",
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
    one, many = ("is", "are") if t.chance(0.25) else ("was", "were")
    were, was2 = (many if noun in _PLURAL_PARTS else one for noun in (part, second))
    t.bind(r_kind=kind, r_part=part, r_second=second, r_same=word, r_same2=word2, r_other=others)
    t.bind(r_were=were, r_was2=was2, r_was=one, r_again=(AGAIN[kind],))
    t.bind(r_do=ADVICE[kind], r_it=("it", "it", f"the {kind}", f"this {kind}"))
    t.bind(r_friend=t.people[-1].name if t.people else "Tom")
    mood = t.rng.random()
    if mood < 0.45:
        return t.words(t.pick(PLAIN))
    if mood < 0.55:
        return t.words(t.pick(DENIED))
    signs = SIGNS[kind][0 if positive else 1]
    verdict = t.pick(signs) if t.chance(0.3) else t.words(t.pick(GOOD if positive else BAD))
    if mood < 0.72:
        return verdict
    if mood < 0.80:
        t.bind(r_verdict=verdict, r_reason=t.words(t.pick(PLAIN[:4])))
        return t.words(t.pick(REASONED))
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


def review(t: StoryBuilder, positive: bool, kind: str = "") -> str:
    """Write a review of two to five sentences with one sentiment."""
    kind = kind or t.pick(tuple(SUBJECTS))
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
