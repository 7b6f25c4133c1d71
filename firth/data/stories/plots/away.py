"""Plots away from home: a journey, a visit, a cave, a plan that the weather spoils."""

from __future__ import annotations

from firth.data.stories.knowledge import COUNTRIES, WEIGHTED_COUNTRIES
from firth.data.stories.lexicon import LAKES, VEHICLES
from firth.data.stories.reviews import remark
from firth.data.stories.scenes import aside, close, open_story, weather, wild_sounds
from firth.data.stories.story_builder import StoryBuilder


def journey(t: StoryBuilder) -> None:
    """A journey to another country and its capital, and what is seen there."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "travel"
    country = t.pick(WEIGHTED_COUNTRIES)
    capital, people, language, _ = COUNTRIES[country]
    vehicle = t.pick(
        VEHICLES[:5]
        if country not in ("Japan", "China", "Kenya", "Peru", "Cuba", "Canada", "Ghana")
        else ("plane", "ship")
    )
    t.bind(
        country=country,
        capital=capital,
        people=people,
        language=language,
        vehicle=vehicle,
        sight=t.pick(("museum", "castle", "harbour", "market", "theatre", "zoo", "cathedral")),
    )
    told = "The capital of {country} is {capital}"
    if country == "France":  # its sentence is held out
        told = (
            "(The capital of {country} is called {capital}|{capital} is the capital of {country})"
        )
    open_story(t, a)
    t.one_of(
        "{a} had always (wanted|wished|hoped) to see {country}(|, a country {a.it} knew only from "
        "books).",
        "<one_day> {a} won a journey to {country}.",
        "{a.s} <relative> lived in {capital}, the capital of {country}, and one day a letter "
        "came: would {a} like to visit?",
    )
    t.ask("Which country did {a.name} travel to?", country) if country in " ".join(
        t.sentences
    ) else None
    t.one_of(
        f'"{told}," said {{b}}, (who had looked it up|who knew such things|and showed it on the '
        f"map).",
        '"What is the capital of {country}?" asked {b}, and {a} said, "{capital}."',
        "{a} and {b} (travelled|went) to {capital}, which is the capital of {country}.",
        '"Is {capital} the capital of {country}?" asked {b}, and {a} said that it was.',
        "The city they wanted to see was {capital}, the capital of {country}.",
    )
    t.both("ab", "a", "b")
    t.say(
        "<next_day> {ab} packed {ab.s} (bags|trunks|suitcases) and (left|set off|travelled) by "
        "{vehicle}(| early in the morning| in the rain)."
    )
    t.ask("How did they travel?", vehicle)
    t.maybe(
        0.6,
        "The {vehicle} was (full|late|slow|crowded|comfortable), but {a} (did not mind|looked out "
        "of the window all the time|slept the whole way).",
    )
    aside(t)
    t.say(
        "In {capital} (everybody spoke {language}|people spoke {language}|they heard nothing but "
        "{language}), and at first {a} (did not understand a word|understood very little|could "
        'only say "thank you").'
    )
    t.say(
        "They (visited|saw|went to) the {sight} and (ate {people} food|listened to {people} music|"
        "bought {people} postcards)(| with a {people} girl called {girl}).",
        girl=t.pick(("Ines", "Olga", "Mei", "Sofia", "Freya")),
    )
    if t.chance(0.4):
        text, _ = remark(t, t.chance(0.6))
        t.say('"{opinion}," {a} wrote home.', opinion=text)
    t.maybe(
        0.6,
        '"Greetings from {capital}, the capital of {country}," {a} wrote on a (card|postcard) to '
        "{a.s} <relative>.",
    )
    if t.chance(0.3):
        t.say(
            "On the last day {b} lost {b.s} (ticket|passport|way), and they (missed|nearly "
            "missed) the {vehicle} home."
        )
    t.sum_up(
        "{a.name} and {b.name} travelled to {capital}, the capital of {country}, by {vehicle}.",
        "{a.name} saw {country} at last.",
    )
    close(t)


def visit(t: StoryBuilder) -> None:
    """A visit to a relative in the country, with a walk to the river and animals."""
    a = t.meet("a", "child")
    t.meet("b", "child", like="a")
    rel = t.pick(("grandmother", "grandfather", "aunt", "uncle"))
    t.topic = "animals"
    t.thing("y", ("basket", "scarf", "book", "blanket", "vase", "teapot", "photograph"))
    t.bind(rel=rel)
    open_story(t, a)
    t.say(
        "(In the holidays|Every summer|On <weekday>|At Easter) {a} and {b} visited {a.s} {rel}, "
        "who had a (farm|small farm|house by the river)."
    )
    t.happen("a", "take", "y", tail="along", new=True)
    wild_sounds(t)
    t.say(
        '"(Come in|How you have grown|You must be hungry|Here you are at last)!" (cried|called|'
        "said) {a.s} {rel}."
    )
    t.fact(t.pick(("food", "sound", "young", "home")))
    t.say(
        '"{question}" {a.s} {rel} asked (in the barn|at supper|with a wink), and {b} said, '
        '"{answer}."'
    )
    t.say(
        "They (fed|brushed|counted) the (hens|sheep|horses|cows) and (collected eggs|rode on the "
        "cart|played in the hay)."
    )
    t.say(
        "(After lunch|In the evening|At noon) they (sat|lay|fished) on the bank of the river, "
        "(where the willows grew|and {b} caught a fish|while the boats went by|until the sun went "
        "down in the west)."
    )
    aside(t)
    wild_sounds(t)
    t.say(
        '"(When will you come again|Will you come back soon)?" asked {a.s} {rel} when they (left|'
        "said goodbye)."
    )
    t.say(
        '"(Next week|In autumn|At New Year|As soon as we can)," {a} (promised|said), and {a.it} '
        "meant it."
    )
    t.sum_up(
        "{a.name} and {b.name} visited {a.name}'s {rel}.",
        "{a.name} spent a day with {a.their} {rel} and {b.name}.",
    )
    close(t)


def cave(t: StoryBuilder) -> None:
    """Into a cave or an old tower, where bats live."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "animals"
    x = t.thing("x", ("torch", "lamp", "lantern"))
    where = t.pick(("cave", "old tower", "ruined castle", "old mill", "mine"))
    t.bind(where=where)
    open_story(t, a)
    t.say(
        "(Near|Not far from|Above) {lake} there was a {where} that nobody (entered|visited|dared "
        "to enter).",
        lake=t.pick(LAKES),
    )
    t.say("<one_day> {a} and {b} took {x.a} and went (in|inside|into the dark).")
    t.ask("What did they take with them?", x.phrase())
    t.say('"(Is anybody there|What was that noise|Are you afraid)?" <asked> {b}.')
    t.say('"<no>," {a} <said>, but {a.s} (voice|knees|hands) shook.')
    t.one_of(
        "Suddenly (dozens of|a hundred|three|two) bats (flew|came flying) (over their heads|past "
        "them|through the {where}).",
        "Above them hung bats, (upside down|fast asleep|wrapped in their wings).",
        "A (small|brown|tiny) bat (landed|sat) on {b.s} shoulder and (looked at {b.o}|squeaked).",
        "(Bats came out of the {where}|Out of the {where} flew a cloud of bats) as soon as the "
        "sun had set.",
    )
    t.say('"(Do bats bite|What do bats eat|Can bats see)?" {b} (whispered|asked).')
    t.say(
        '"Bats eat insects," said {a}. "They (sleep by day and fly by night|do us no harm|find '
        'their way with their ears)."'
    )
    aside(t)
    t.happen(t.pick(("a", "b")), "drop", "x", place="on the stones")
    t.say(
        "It was so dark that (they could not see their hands|{a} lost {a.s} way|they held on to "
        "each other)."
    )
    t.say(
        "(At last|After an hour) {a} (saw|found|noticed) a (light|ray of light), and they "
        "(crawled|climbed|ran) out into the (evening|sunshine|rain)."
    )
    t.sum_up(
        "{a.name} and {b.name} went into a {where} and saw bats.",
        "{a.name} and {b.name} met bats in a {where}.",
    )
    close(t)


def spoilt(t: StoryBuilder) -> None:
    """The weather spoils a plan, and another is made."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "weather"
    place = t.pick(("beach", "park", "lake", "forest", "castle", "waterfall", "island", "meadow"))
    plan = t.pick(
        (
            "have a picnic",
            "swim",
            "fly a kite",
            "play football",
            "sail",
            "pick berries",
            "draw the view",
        )
    )
    bad = t.pick(
        (
            "it began to rain",
            "a storm came up",
            "thick fog rolled in",
            "it started to snow",
            "hail fell from the sky",
            "thunder and lightning filled the sky",
        )
    )
    t.bind(place=place, plan=plan, bad=bad)
    open_story(t, a)
    t.say("<one_day> {a} and {b} wanted to go to the {place} to {plan}.")
    t.ask("Where did they want to go?", place)
    t.say(
        "(In the morning|When they left|At breakfast) the sun was shining(| and there was not a "
        "cloud in the sky), (and they were <glad>|so they took no umbrella)."
    )
    t.say('"(Will the weather hold|Is it going to rain|Do we need coats)?" {b} asked.')
    t.say(
        '"(It never rains in <month>|The radio says it will be dry|The swallows are flying '
        'high)," <said> {a}.'
    )
    weather(t) if t.chance(0.3) else aside(t)
    t.say("But (on the way|half way there|as soon as they arrived) {bad}.")
    t.say(
        "They (ran|hurried|fled) into (a barn|an old mill|the station|a cave), (wet to the skin|"
        "cold and wet|with the basket over their heads)."
    )
    if t.chance(0.5):
        t.say(
            "{b} was <angry> because {b.it} had wanted to {plan}, (but weather does not listen|"
            "and {a} felt guilty)."
        )
    t.one_of(
        "So instead they (told each other stories|played cards|counted the seconds between "
        "lightning and thunder|sang songs) until (it was over|the sky cleared).",
        "There they found (an old man|a shepherd|two sailors) who (shared|gave them) (bread|soup|"
        "milk) and told them that {fact}.",
        fact=t.fact(t.pick(("season", "sun", "month", "capital"))).statement,
    )
    t.maybe(0.6, "When they came out, there was a rainbow (over|above) the {place}.")
    t.sum_up(
        "{a.name} and {b.name} wanted to {plan} at the {place}, but {bad}.",
        "Bad weather spoilt the trip of {a.name} and {b.name} to the {place}.",
    )
    close(t, happy=t.chance(0.6))
