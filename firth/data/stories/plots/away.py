"""Plots away from home: a journey, a visit, a cave, a plan that the weather spoils."""

from __future__ import annotations

from firth.data.stories.facts import statements
from firth.data.stories.knowledge import COUNTRIES, WEIGHTED_COUNTRIES
from firth.data.stories.lexicon import VEHICLES
from firth.data.stories.reviews import remark
from firth.data.stories.scenes import aside, end_story, weather
from firth.data.stories.story_builder import StoryBuilder

_OVERSEAS = ("Japan", "China", "Kenya", "Peru", "Cuba", "Canada", "Ghana")


def journey(t: StoryBuilder) -> None:
    """Write a story: a journey to another country and its capital, and what is seen there."""
    a, b = t.start("travel")
    country = t.pick(WEIGHTED_COUNTRIES)
    capital, people, language, _ = COUNTRIES[country]
    vehicles = ("plane", "ship") if country in _OVERSEAS else VEHICLES[:5]
    t.bind(country=country, capital=capital, people=people, language=language)
    t.bind(vehicle=t.pick(vehicles), ab=t.cast.both(a, b))
    t.bind(fact=t.pick(statements("capital", country, capital)))
    t.run_script("""
        let: sight = museum; castle; harbour; market; theatre; zoo; cathedral
        scene: open
        {a} had always (wanted|wished|hoped) to see {country}(|, a country {a.it} knew only from
            books).
        or: <one_day> {a} won a journey to {country}.
        or: {a.s} <relative> lived in {capital}, the capital of {country}, and one day a letter
            came: would {a} like to visit?
    """)
    if country in " ".join(t.sentences):
        t.ask("Which country did {a.name} travel to?", "{country}")
    t.one_of(
        '"{fact}," said {b}, (who had looked it up|who knew such things|and showed it on the map).',
        '"What is the capital of {country}?" asked {b}, and {a} said, "{capital}."',
        "{a} and {b} (travelled|went) to {capital}, which is the capital of {country}.",
        '"Is {capital} the capital of {country}?" asked {b}, and {a} said that it was.',
        "The city they wanted to see was {capital}, the capital of {country}.",
    )
    t.run_script("""
        <next_day> {ab} packed {ab.s} (bags|trunks|suitcases) and (left|set off|travelled) by
            {vehicle}(| early in the morning| in the rain).
        ask: How did they travel? {vehicle}
        60% The {vehicle} was (full|late|slow|crowded|comfortable), but {a} (did not mind|looked out
            of the window all the time|slept the whole way).
        scene: aside
        In {capital} (everybody spoke {language}|people spoke {language}|they heard nothing but
            {language}), and at first {a} (did not understand a word|understood very little|could
            only say "thank you").
        They (visited|saw|went to) the {sight} and (ate {people} food|listened to {people} music|
            bought {people} postcards)(| with a {people} (girl|boy|<job>)).
    """)
    if t.chance(0.4):
        t.say('"{opinion}," {a} wrote home.', opinion=remark(t, t.chance(0.6)))
    t.run_script("""
        60% "Greetings from {capital}, the capital of {country}," {a} wrote on a (card|postcard) to
            {a.s} <relative>.
        30% On the last day {b} lost {b.s} (ticket|passport|way), and they (missed|nearly missed)
            the {vehicle} home.
        summary: {a.name} and {b.name} travelled to {capital}, the capital of {country}, by
            {vehicle}.
        or: {a.name} saw {country} at last.
        scene: end
    """)


def visit(t: StoryBuilder) -> None:
    """Write a story: a visit to a relative in the country, with a walk to the river and animals."""
    t.start("animals", hero="child", friend="child")
    t.run_script("""
        let: rel = grandmother; grandfather; aunt; uncle
        thing: y = basket; scarf; book; blanket; vase; teapot; photograph
        scene: open
        (In the holidays|Every summer|On <weekday>|At Easter) {a} and {b} visited {a.s} {rel}, who
            had a (farm|small farm|house by the river).
        event: a take y; tail=along; new
        scene: wild_sounds
        "(Come in|How you have grown|You must be hungry|Here you are at last)!" (cried|called|said)
            {a.s} {rel}.
    """)
    t.fact(t.pick(("food", "sound", "young", "home")))
    t.run_script("""
        "{question}" {a.s} {rel} asked (in the barn|at supper|with a wink), and {b} said,
            "{answer}."
        They (fed|brushed|counted) the (hens|sheep|horses|cows) and (collected eggs|rode on the
            cart|played in the hay).
        (After lunch|In the evening|At noon) they (sat|lay|fished) on the bank of the river, (where
            the willows grew|and {b} caught a fish|while the boats went by|until the sun went down
            in the west).
        scene: aside
        scene: wild_sounds
        "(When will you come again|Will you come back soon)?" asked {a.s} {rel} when they (left|said
            goodbye).
        "(Next week|In autumn|At New Year|As soon as we can)," {a} (promised|said), and {a.it} meant
            it.
        summary: {a.name} and {b.name} visited {a.name}'s {rel}.
        or: {a.name} spent a day with {a.their} {rel} and {b.name}.
        scene: end
    """)


def cave(t: StoryBuilder) -> None:
    """Write a story: into a cave or an old tower, where bats live."""
    t.start("animals")
    t.run_script("""
        thing: x = torch; lamp; lantern
        let: where = cave; old tower; ruined castle; old mill; mine
        scene: open
        let: lake = LAKES
        (Near|Not far from|Above) {lake} there was a {where} that nobody (entered|visited|dared to
            enter).
        <one_day> {a} and {b} took {x.a} and went (in|inside|into the dark).
        ask: What did they take with them? {x.phrase}
        "(Is anybody there|What was that noise|Are you afraid)?" <asked> {b}.
        "<no>," {a} <said>, but {a.s} (voice|knees|hands) shook.
        Suddenly (dozens of|a hundred|three|two) bats (flew|came flying) (over their heads|past
            them|through the {where}).
        or: Above them hung bats, (upside down|fast asleep|wrapped in their wings).
        or: A (small|brown|tiny) bat (landed|sat) on {b.s} shoulder and (looked at {b.o}|squeaked).
        or: (Bats came out of the {where}|Out of the {where} flew a cloud of bats) as soon as the
            sun had set.
        "(Do bats bite|What do bats eat|Can bats see)?" {b} (whispered|asked).
        "Bats eat insects," said {a}. "They (sleep by day and fly by night|do us no harm|find their
            way with their ears)."
        scene: aside
    """)
    t.happen(t.pick(("a", "b")), "drop", "x", place="on the stones")
    t.run_script("""
        It was so dark that (they could not see their hands|{a} lost {a.s} way|they held on to each
            other).
        (At last|After an hour) {a} (saw|found|noticed) a (light|ray of light), and they (crawled|
            climbed|ran) out into the (evening|sunshine|rain).
        summary: {a.name} and {b.name} went into a {where} and saw bats.
        or: {a.name} and {b.name} met bats in a {where}.
        scene: end
    """)


def spoilt(t: StoryBuilder) -> None:
    """Write a story: the weather spoils a plan, and another is made."""
    t.start("weather")
    t.run_script("""
        let: place = beach; park; lake; forest; castle; waterfall; island; meadow
        let: plan = have a picnic; swim; fly a kite; play football; sail; pick berries; draw the
            view
        let: bad = it began to rain; a storm came up; thick fog rolled in; it started to snow; hail
            fell from the sky; thunder and lightning filled the sky
        scene: open
        <one_day> {a} and {b} wanted to go to the {place} to {plan}.
        ask: Where did they want to go? {place}
        (In the morning|When they left|At breakfast) the sun was shining(| and there was not a cloud
            in the sky), (and they were <glad>|so they took no umbrella).
        "(Will the weather hold|Is it going to rain|Do we need coats)?" {b} asked.
        "(It never rains in <month>|The radio says it will be dry|The swallows are flying high),"
            <said> {a}.
    """)
    weather(t) if t.chance(0.3) else aside(t)
    t.run_script("""
        But (on the way|half way there|as soon as they arrived) {bad}.
        They (ran|hurried|fled) into (a barn|an old mill|the station|a cave), (wet to the skin|cold
            and wet|with the basket over their heads).
        50% {b} was <angry> because {b.it} had wanted to {plan}, (but weather does not listen|and
            {a} felt guilty).
    """)
    t.one_of(
        "So instead they (told each other stories|played cards|counted the seconds between "
        "lightning and thunder|sang songs) until (it was over|the sky cleared).",
        "There they found (an old man|a shepherd|two sailors) who (shared|gave them) (bread|soup|"
        "milk) and told them that {fact}.",
        fact=t.fact(t.pick(("season", "sun", "month", "capital"))).statement,
    )
    t.run_script("""
        60% When they came out, there was a rainbow (over|above) the {place}.
        summary: {a.name} and {b.name} wanted to {plan} at the {place}, but {bad}.
        or: Bad weather spoilt the trip of {a.name} and {b.name} to the {place}.
    """)
    end_story(t, happy=t.chance(0.6))
