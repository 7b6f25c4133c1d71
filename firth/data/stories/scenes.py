"""Scenes that any plot may use: how stories open and end, remarks on the way, small talk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from firth.data.stories.agreement import Names, minimal_pair
from firth.data.stories.everyday import everyday
from firth.data.stories.facts import statements
from firth.data.stories.knowledge import ANIMALS, COUNTRIES, FAR, NUMBERS, WEIGHTED_COUNTRIES
from firth.data.stories.lexicon import BOYS, COMPANIES, GIRLS, JOBS, PLACES, RIVERS, STREETS
from firth.data.stories.morphology import past
from firth.data.stories.reviews import SUBJECTS, remark, review
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import phrases, words
from firth.data.stories.world import Person

_NEARBY = tuple(animal for animal in ANIMALS if animal not in FAR)
_QUIET = phrases("then all was quiet; another answered; {a} stopped to listen; {a} looked up")
_GOT_UP = phrases("was already awake; got up; put on {a.s} coat; went to the window")
_WANTED = phrases("""was on the way to the bank; asked for the time; carried a heavy basket;
    was looking for the station; wished {a.o} a good day; had lost a glove""")
OPENINGS = (
    "Once upon a time there was {s_who} (called|named) {a.name}, who (lived|had always lived) in "
    "{s_town}.",
    "Once upon a time, in the (small|little|old|quiet) town of {s_town}, there lived {s_who} "
    "(called|named) {a.name}.",
    "Once upon a time {s_who} (called|named) {a.name} lived in a <s_house> (near|by|not far from) "
    "{s_near}.",
    "There was once {s_who} in {s_town} whose name was {a.full}.",
    "In {s_town}, (near|close to|not far from) {s_near}, lived {s_who} (called|named) {a.name}.",
    "{a.full} was {s_who} who lived in {s_town}.",
    "{a.full}, {s_who} from {s_town}, (loved|was fond of|liked) {s_likes} (more than anything "
    "else|very much|above all).",
    "Everyone in {s_town} knew {a.name}, {s_who} who (loved|talked of nothing but|was fond of) "
    "{s_likes}.",
    "This is the story of {a.name}, {s_who} (from|who lived in) {s_town}.",
    "{a.name} lived on {s_street} in {s_town} with {a.s} <relative>.",
    "Long ago, when (people still travelled by horse|there were no cars|winters were long and "
    "cold), there was {s_who} called {a.name} in {s_town}.",
    "Not long ago {s_who} called {a.name} came to live (on {s_street}|in {s_town}).",
    "Have you heard the story of {a.name}, {s_who} from {s_town}?",
    "In a <s_house> on {s_street} lived {s_who} called {a.name}.",
)
HOUSES = phrases("""(small|little|big|white|yellow|red|old|tall|narrow|wooden) house; flat; cottage;
    (tiny|cosy|dark|sunny) flat""")


def open_story(t: StoryBuilder, alone: bool = False) -> None:
    """Set the scene and introduce the hero, what is true of them, and a friend unless alone."""
    a = t.roles["a"]
    near = t.pick(RIVERS) if t.chance(0.3) else f"the {t.pick(PLACES)}"
    adjective = t.pick(
        (a.trait, "young", "little") if a.age == "child" else (a.trait, "young", "poor", "tall")
    )
    t.bind(s_who=f"a {adjective} {a.job or a.noun}", s_near=near, s_town=a.town)
    t.bind(s_street=t.pick(STREETS), s_likes=a.likes, s_house=HOUSES)
    t.say(t.pick(OPENINGS))
    if a.job and a.job in t.sentences[-1]:
        a.job_known = True
    if a.town in t.sentences[-1]:
        t.ask("Where did {a.name} live?", a.town)
    if not alone:
        _friend(t, t.roles["b"])
    for trait in dict.fromkeys(t.sample(_INTRODUCTIONS, 1 if t.chance(0.4) else 2)):
        trait(t, a)


def _friend(t: StoryBuilder, b: Person) -> None:
    """Introduce the second person of the story."""
    t.bind(s_friend=f"a {b.trait} {b.job or b.noun}", s_likes=b.likes)
    t.one_of(
        "{a.s} best friend was {b.name}, {s_friend}.",
        "{a} had a (good|dear|old) friend (called|named) {b.name}, who (lived next door|was fond "
        "of {s_likes}|could keep a secret|lived across the street).",
        "Next door lived {b.name}, {s_friend} who (loved|liked) {s_likes}.",
        "{a} and {b.name}, {s_friend}, (had known each other for years|were often together|met "
        "almost every day).",
        "(Everyone|The whole street) knew that {a} and {b.name} were (friends|good friends).",
    )
    b.job_known = b.job_known or bool(b.job and b.job in t.sentences[-1])


def _age(t: StoryBuilder, a: Person) -> None:
    if a.years:
        t.bind(s_years=NUMBERS[a.years])
        t.run_script("""
            let: s_school = SCHOOLS
            let: s_wish = JOBS
            {a} [was] {s_years} years old(| and (went to|was a pupil at) {s_school}| and (wanted|
                hoped) to be a {s_wish} one day).
            ask: How old was {a.name}? {s_years}
        """)


def _job(t: StoryBuilder, a: Person) -> None:
    if not a.job:
        return
    where, does, _ = JOBS[a.job]
    t.bind(s_job=a.job, s_where=where, s_does=does, s_did=past(does), s_company=t.pick(COMPANIES))
    t.one_of(
        "Every <daypart> {a} went to the {s_where} to {s_does}.",
        "{a} worked at the {s_where}, where {a.it} {s_did} (all day long|from morning to evening).",
        "A {s_job} has to {s_does}, and {a} (did it|did so) (well|gladly|every day).",
        "{a} was a {s_job}, and nobody could {s_does} better than {a.them}.",
        "{a} had worked for {s_company} for (two|three|five|ten|twenty) years.",
    )
    a.job_known = True


def _pet(t: StoryBuilder, a: Person) -> None:
    if a.pet:
        return
    a.pet = t.own("pet")
    t.bind(s_species=a.pet.noun)
    t.say(
        "{a} had a (|small|big|black|white|brown|young|clever|cute) {s_species} "
        "(called|named|whose name was) {pet.name}(|, who (slept at the foot of {a.s} bed"
        "|followed {a.o} everywhere|was always hungry)).",
    )
    t.ask("What was the name of {a.name}'s {s_species}?", "{pet.name}")
    if t.chance(0.5):
        sounds(t)


def _likes(t: StoryBuilder, a: Person) -> None:
    if a.likes in t.sentences[0]:
        return
    t.bind(s_likes=a.likes, s_trait=a.trait)
    t.one_of(
        "What {a} liked (best|most of all) was {s_likes}.",
        "{a} could talk about {s_likes} for hours.",
        "Nothing made {a.o} happier than {s_likes}.",
        "{a} was <very> {s_trait}, and {a.s} great love was {s_likes}.",
        "{a} would have done anything for {s_likes}.",
        "{a} knew (a lot|everything) about {s_likes}(| and was glad to tell you).",
    )


def _origin(t: StoryBuilder, a: Person) -> None:
    """Say where the family comes from, and name the capital of that country."""
    country = t.pick(WEIGHTED_COUNTRIES)
    city, people, *_ = COUNTRIES[country]
    if t.chance(0.5):
        kin = f"{t.pick(('mother', 'aunt', 'grandmother', 'sister'))} {t.cast.unused(GIRLS)}"
    else:
        kin = f"{t.pick(('father', 'uncle', 'grandfather', 'brother'))} {t.cast.unused(BOYS)}"
    fact = t.pick(statements("capital", country, city))
    t.bind(s_kin=kin, s_country=country, s_city=city, s_people=people, s_fact=fact)
    t.one_of(
        "{a.s} {s_kin} (came from|had been born in|lived in) {s_city}, (the capital of "
        "{s_country}|which is the capital of {s_country}).",
        "{a} (had been born|had once lived) in {s_country} and (knew|could tell you) that "
        "{s_fact}.",
        "{a.s} {s_kin} was {s_people} and often spoke of {s_city}, {s_country}'s capital(| and "
        "its <place>| and its lights| on winter evenings).",
        '"(Never forget|Remember|You should know): {s_fact}," {a.s} {s_people} {s_kin} used to '
        "say.",
        "{a} had a map on the wall, and (from it|so) {a.it} had learned that {s_fact}.",
    )


_INTRODUCTIONS = (_age, _job, _pet, _likes, _origin, _origin)


def sounds(t: StoryBuilder) -> None:
    """Let the hero's pet do what its kind does; dogs bark at the mailman."""
    pet = t.roles["pet"]
    if pet.noun not in ANIMALS:
        return
    if pet.noun == "dog":
        t.one_of(
            "(Every <daypart>|Whenever a letter came|When the gate opened), {pet} <barks> at the "
            "<dog_target>.",
            "The dog (always|often) barked at the (mailman|postman|milkman), (but {pet.it} never "
            "bit anyone|who (laughed|was used to it|was afraid of dogs)|and the whole street heard "
            "it).",
            "{pet} was a good dog, but {pet.it} (often|always|sometimes) barked at the "
            "<dog_target>.",
            "When the <dog_target> came, the dog <barks>(| until {a} opened the door| and wagged "
            "its tail).",
            "The (mailman|postman) did not like {pet.o}, because the dog barked loudly at him "
            "every (day|morning).",
        )
        return
    sound, food, *_ = ANIMALS[pet.noun]
    t.bind(s_sound=past(sound), s_food=food, s_species=pet.noun)
    t.one_of(
        "When {pet} was hungry, {pet.it} {s_sound} (loudly|until somebody came|at the door).",
        "{pet} {s_sound} whenever {a} came home(| from the {s_place}).",
        "Like every {s_species}, {pet} liked {s_food} (best|more than anything).",
        s_place=t.pick(PLACES),
    )


def wild_sounds(t: StoryBuilder) -> None:
    """Mention the sound of an animal nearby."""
    animal = t.pick(_NEARBY)
    t.bind(s_animal=animal, s_sound=past(ANIMALS[animal][0]), s_then_quiet=_QUIET)
    if animal == "dog":
        t.one_of(
            "(In the yard|Next door|Behind the fence|Across the street) a dog <barks> at the "
            "<dog_target>.",
            "The neighbour's dog <barks> at the <dog_target>(| and would not stop| and then fell "
            "silent).",
            "The dog <barks> at (a|the) (new|old|young|poor|kind) (mailman|postman), who (ran "
            "away|laughed|dropped a letter).",
        )
    else:
        t.one_of(
            "(Somewhere|Not far away|Behind the hedge|In the distance|Close by) a {s_animal} "
            "{s_sound}.",
            "A {s_animal} {s_sound} (softly|loudly|once|twice|again and again), and "
            "<s_then_quiet>.",
        )


_RELATIONS = words("""sun sun sun sound sound food shop colour opposite tool young season kind home
    job language""")


def did_you_know(t: StoryBuilder) -> None:
    """State a fact, as people do in conversation."""
    t.fact("capital" if t.chance(0.5) else t.pick(_RELATIONS))
    t.one_of(
        '"Did you know that {fact}?" <asked> {b}.',
        '"I read in a book that {fact}," said {a}.',
        '"{question}" {b} asked on the way, and {a} answered <quickly>, "{answer}."',
        "{a} had learned at school that {fact}.",
        'On the wall hung a (picture|poster|map), and under it stood: "{fact}."',
        '"My <relative> always says that {fact}," {b} told {a.o}.',
        '"Of course {fact}," said {b}. "(Nobody will change that.|Any child knows that.|Why do '
        'you ask?)"',
        '"{question}" asked {b}, but {a} did not (know|hear|answer).',
        "(As everyone knows,|As you know,|It is well known that|Nobody doubts that) {fact}.",
    )


def weather(t: StoryBuilder) -> None:
    t.bind(s_got_up=_GOT_UP)
    t.run_script("""
        Outside, <weather_now>(|, and <sound_around>).
        or: <weather_now> (when|as) {a} (got up|left the house|looked out of the window|opened the
            door).
        or: It was (a|one) <sky> <daypart>, and <sound_around>.
        or: <sound_around>, and <weather_now>.
        or: The sun rose (slowly|late|early|red and round) (in the east|over the <place> in the
            east|above the roofs in the east), and {a} <s_got_up>.
    """)


def opinion(t: StoryBuilder) -> None:
    """Let a friend review a book, a meal or a show in one sentence."""
    t.bind(s_opinion=remark(t, t.chance(0.5)))
    if t.chance(0.5):
        other = '{b} shook {b.s} head: "{s_opinion}."'
    else:
        other = '"{s_opinion}," {b} told {a.o} <later>.'
    t.one_of('"{s_opinion}," said {b}.', other)


_PAPERS = phrases("""the newspaper; a letter; a diary; a card; a notebook; a magazine""")


def read_review(t: StoryBuilder) -> None:
    """Let a friend read out a review, and let the listener do what it suggests."""
    positive = t.chance(0.5)
    text = review(t, positive, t.pick(tuple(SUBJECTS))).replace('"', "")
    t.bind(s_review=text, s_paper=t.pick(_PAPERS))
    t.one_of(
        '{b} read aloud from {s_paper}: "{s_review}"',
        'In {s_paper} {a} (found|read) these words: "{s_review}"',
        '"{s_review}" stood in {s_paper}.',
        '(<ago>|<later>) {b} had written in {s_paper}: "{s_review}"',
    )
    if positive:
        t.one_of(
            "{a} decided to go there too.",
            "That (sounded good|made {a.o} curious|was good news).",
            "{a} was glad for {b.o}.",
        )
    else:
        t.one_of(
            "{a} decided to stay away.",
            "That (sounded bad|was a pity|was bad news).",
            "{a} was sorry for {b.o}.",
        )


def aside(t: StoryBuilder) -> None:
    """Add one sentence or two that have little to do with the plot."""
    _aside(t)
    if t.chance(0.5):
        everyday(t)
    if t.chance(0.2):
        read_review(t)


def _aside(t: StoryBuilder) -> None:
    kind = t.rng.random()
    if kind < 0.10:
        t.say("<senses>.")
    elif kind < 0.19:
        known = [[p.name for p in t.people if p.gender == gender] for gender in "fm"]
        names = Names(known[0] or GIRLS, known[1] or BOYS)
        pair = minimal_pair(t.rng, names)
        t.say('"{s_good}," (said|answered|whispered) {b}.', s_good=pair.good[:-1])
    elif kind < 0.29:
        t.one_of(
            '"<ago> I went to the <errand>," said {b}.',
            '"I went to the <errand>, but it was (closed|too late|Sunday)," {b} told {a.o}.',
            '"I went to the <errand> for my <relative>," said {b}.',
            "{b} had gone to the <errand>, and {a} waited (in front of the <place>|at the gate).",
            "A <job> went to the <errand>, and a <job> from <town> held the door.",
            "On the way {a} met a <job> who went to the <errand>.",
        )
    elif kind < 0.48:
        did_you_know(t)
    elif kind < 0.6:
        weather(t)
    elif kind < 0.7:
        wild_sounds(t)
    elif kind < 0.78:
        opinion(t)
    elif kind < 0.85 and t.roles["a"].pet:
        sounds(t)
    else:
        t.bind(s_likes=t.roles["a"].likes, s_wanted=_WANTED)
        t.one_of(
            "{a} took a deep breath and (walked on|smiled|counted to ten|looked around).",
            "They (stopped for|had) <food_talk> (on the way|first|and talked about {s_likes}).",
            "{b.rel} (watched|listened|waited) (patiently|quietly|with interest|without a word).",
            "On the way {a} met (an old neighbour|the mailman|a farmer|two children|a policeman) "
            "who <s_wanted>.",
            "{a} put {a.s} hands in {a.s} pockets and (whistled|hummed) a (little|merry|slow) "
            "tune.",
            "{a} looked at {a.s} watch: it was (just after|nearly|exactly) (four|five|nine|ten|"
            "eleven).",
            "The (path|road|street) was (dark|empty|full of people|wet|steep|narrow), (and {a} "
            "walked slowly|but {a.s} bag was light|and {a.s} bag was heavy|and every window was "
            "lit).",
        )


def end_story(t: StoryBuilder, happy: bool = True) -> None:
    """End the story: a feeling, a resolve, a moral."""
    if happy:
        t.one_of(
            "{a} had (never|seldom) been so (happy|glad|proud|cheerful|pleased).",
            "That night {a} fell asleep with a smile.",
            "{a} went to bed, <tired> but <glad>.",
            '"It was the best day of my life," {a} told {a.s} <relative> (from <town>|in <capital>|'
            "on <weekday>|that evening).",
            '"<soon> we will do it again," said {b}, and {a} nodded <gladly>.',
            "From that day on {a} and {b.name} were the best of friends.",
            '"<moral>," {a.s} <relative> (from <town> |)said, and {a} (had to agree|knew it was '
            "true|wrote it down).",
            "It still makes {a.o} smile.",
            "So it all ended well(| for {a.o}| in {a.town}).",
            "And they lived happily (ever after|for many years).",
            "When the sun (went down|set|sank) (in the west|behind the <place> in the west), {a} "
            "was still (<glad>|talking about it|on {a.s} feet).",
        )
    else:
        t.one_of(
            "{a} was <sad>, but {b} (comforted {a.o}|put an arm around {a.o}|cheered {a.o} up).",
            '"<moral>," said {b}, but that did not make {a.o} any happier.',
            '"There will be another day," {a} <thought>.',
            "That evening {a} ate nothing and went to bed early.",
            "{a} was <sad> for a (day|week|month).",
            '"<soon> I will try again," said {a} <sadly>.',
            "It was not the end that {a} had hoped for.",
        )


SCENES: dict[str, Callable[[StoryBuilder], None]] = {
    "open": open_story,
    "open_alone": partial(open_story, alone=True),
    "aside": aside,
    "weather": weather,
    "sounds": sounds,
    "wild_sounds": wild_sounds,
    "did_you_know": did_you_know,
    "end": end_story,
    "sad_end": partial(end_story, happy=False),
}
