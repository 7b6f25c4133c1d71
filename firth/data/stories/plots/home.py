"""Plots at home and next door: things lost, lent, given, cooked and grown; quarrels and help."""

from __future__ import annotations

from firth.data.stories.lexicon import DISHES, FLOWERS, HIDING, PLACES, TREES
from firth.data.stories.scenes import aside, close, open_story
from firth.data.stories.story_builder import StoryBuilder


def lost_and_found(t: StoryBuilder) -> None:
    """Something is lost, looked for in the wrong places, and found, or not."""
    a, b, x = t.meet("a"), t.meet("b", like="a"), t.thing("x")
    wrong, other, right = t.sample(HIDING, 3)
    t.bind(wrong=wrong, other=other, right=right)
    open_story(t, a)
    t.say(
        "{a} had {x.a} (that {a.it} (took everywhere|loved dearly)|which had been a gift from "
        "{a.s} <relative>|"
        "and would not have sold it for anything)."
    )
    t.say("<one_day> {x.the} was (gone|nowhere to be found|no longer in its place|missing).")
    t.ask("What did {a.name} lose?", x.phrase())
    t.one_of(
        '"Where is my {thing}?" <asked> {a} <sadly>.',
        "{a} looked {wrong}, but {x.it} was not there.",
        "{a} was <sad> and (turned the whole house upside down|searched every room).",
        thing=x.noun,
    )
    t.say(
        "{a} asked {b.o} for help(|, and the two of them searched <together>|, because {b.it} had "
        "sharp eyes)."
    )
    if t.chance(0.6):
        t.say(
            '"When did you (last see it|have it last)?" asked {b.name}(|, who liked {likes_b}).',
            likes_b=b.likes,
        )
        t.say(
            '"<ago>, when I was (on my way to|coming back from|at) the {place}," {a} answered.',
            place=t.pick(PLACES),
        )
    aside(t)
    t.say(
        "They looked {other}(| and {wrong}), but (found only (an old shoe|dust|a coin|a button)|"
        "there was nothing there|in vain)."
    )
    if t.chance(0.75):
        finder = t.pick(("a", "b", "b"))
        t.happen(finder, "find", "x", place="{right}", time=t.pick(("", "<later>")))
        t.ask("Where did they find {x.the}?", right)
        if finder == "b":
            t.say('"<thanks>!" said {a}, and {a} hugged {b.o}.')
        t.maybe(
            0.5, "{a} (held {x.o} tight|put {x.o} in a safe place|never let it out of sight again)."
        )
        found = "and found it" if finder == "a" else "and {b.name} found it"
        t.sum_up(
            f"{{a.name}} lost {{x.a}} {found} {{right}}.",
            "{x.the} that {a.name} had lost was {right}.",
        )
        close(t)
    else:
        t.say(
            "{x} was never (found|seen) again(|, although they had looked everywhere|, and nobody "
            "knows where it is now)."
        )
        t.sum_up(
            "{a.name} lost {x.a} and never found it again.",
            "{a.name} and {b.name} looked for {x.a} in vain.",
        )
        close(t, happy=False)


def quarrel(t: StoryBuilder) -> None:
    """Two friends quarrel over a thing and make up."""
    a, b, x = t.meet("a"), t.meet("b", like="a"), t.thing("x")
    open_story(t, a)
    t.say(
        "{a.s} best friend was {b}(|, who lived (next door|across the street|in the same house))."
    )
    t.ask("Who was {a.name}'s best friend?", b.name)
    start = t.pick(("lend", "borrow", "break"))
    if start == "break":
        t.happen("b", "break", "x", tail="that belonged to {a.name}", time="<one_day>", new=True)
        t.say('"It was not my fault!" <shouted> {b}, but {a} did not believe {b.o}.')
    else:
        t.say(
            "<one_day> {a} lent {b.o} {x.a}, and {b} (did not give it back|forgot to bring it "
            "back|left it out in the rain)."
        )
        t.say('"You promised to take care of my {thing}!" <shouted> {a}.', thing=x.noun)
    t.say(
        "{a} was so <angry> that {a.it} (slammed the door|went home without a word|would not "
        "speak to {b.o} any more)."
    )
    t.say(
        "(For three days|For a whole week|For many days) they did not (speak|play|eat lunch "
        "together|even greet each other)."
    )
    aside(t)
    t.maybe(0.5, "{a} missed {b.o}, but {a.it} was too proud to say so.")
    t.say(
        "<next_day> {b} (knocked at the door|came up the path|stood at the gate) with (a cake|a "
        "bunch of {flowers}|a letter|"
        "{a.s} {thing} under {b.s} arm).",
        thing=x.noun,
        flowers=t.pick(FLOWERS),
    )
    t.say(
        '"I am sorry," said {b}. "(I was wrong|I should have been more careful|I should have '
        'asked you first)."'
    )
    t.one_of(
        '"I am sorry too," <said> {a}. "I should not have shouted at you."',
        '"Let us forget it," {a} said. "You are more important to me than a {thing}."',
        "{a} could not help laughing, and soon they were both laughing.",
    )
    if start == "break" and t.chance(0.6):
        t.happen("a", "mend", "x", tail="with glue", time="<later>")
    t.sum_up(
        "{a.name} and {b.name} quarrelled over {x.a} and made up again.",
        "{b.name} said sorry to {a.name}, and they were friends again.",
    )
    close(t)


def helping(t: StoryBuilder) -> None:
    """Someone helps an old neighbour and is thanked."""
    a, b = t.meet("a"), t.meet("b", "adult", like="a")
    b.age, b.job = "old", ""
    b.noun = "woman" if b.gender == "f" else "man"
    t.thing("x", ("basket", "box", "bag", "chair", "carpet", "clock", "lamp"))
    open_story(t, a)
    t.say(
        "Next door lived {b.name}, an old {noun} who (could no longer walk well|lived alone|had a "
        "bad leg|hardly ever had visitors).",
        noun=b.noun,
    )
    t.say(
        "<one_day> {a} saw {b.o} (standing|waiting|sitting) (at the gate|on the steps|in front of "
        "the house) with {x.a}."
    )
    t.say(
        '"(This is too heavy for me|I cannot carry this any more|My back hurts)," said {b}. "(Can|'
        'Could) you help me?"'
    )
    t.say('"<yes>," <said> {a}.')
    t.happen(
        "a",
        "carry",
        "x",
        place=t.pick(
            ("up the stairs", "into the house", "to the station", "across the road", "to the attic")
        ),
    )
    job = t.pick(
        (
            "sweep the floor",
            "chop wood",
            "clean the windows",
            "water the plants",
            "feed the hens",
            "wash the dishes",
            "rake the leaves",
        )
    )
    t.say(
        "(Afterwards|Then|After that) {a} stayed to {job}, although nobody had asked {a.o}.",
        job=job,
    )
    aside(t)
    t.say(
        "{b} made <food_talk> and told {a.o} about (the old days|the war|the time when {b.it} was "
        "young|a voyage to {far}).",
        far=t.pick(("China", "Egypt", "Peru", "Norway", "Kenya")),
    )
    y = t.thing("y", ("watch", "coin", "book", "compass", "ring", "stamp", "shell", "map"))
    if t.chance(0.6):
        t.happen("b", "give", "y", tail="to {a.name}", time="<later>", new=True)
        t.ask("What did {b.name} give to {a.name}?", y.phrase())
        t.say(
            '"<thanks>," said {a}. "I will (keep it for ever|take good care of it|show it to '
            'everyone)."'
        )
    else:
        t.say(
            '"<thanks>," said {b}. "(You have a good heart|There should be more people like you|'
            'Come again soon)."'
        )
    t.sum_up(
        "{a.name} helped {b.name}, an old neighbour, to carry {x.a}.",
        "{a.name} carried {x.a} for an old neighbour.",
    )
    close(t)


def cooking(t: StoryBuilder) -> None:
    """A meal is planned, something is missing, and it is eaten, or burnt."""
    a = t.meet("a")
    t.meet("b", like="a")
    dish = t.pick(tuple(DISHES))
    parts = list(DISHES[dish])
    t.topic = "cooking"
    missing = t.pick(parts)
    rest = [part for part in parts if part != missing]
    guest = t.pick(("mother", "father", "grandmother", "uncle", "aunt"))
    t.bind(dish=dish, missing=missing, one=rest[0], two=rest[1], three=rest[2], guest=guest)
    open_story(t, a)
    t.say(
        "<one_day> {a} (decided|wanted|made up {a.s} mind) to (cook|make|prepare) {dish} for "
        "{a.s} {guest}."
    )
    t.ask("What did {a.name} want to make?", dish)
    t.say(
        '"What do we need?" asked {b.name}(, who had come to help|, who was always hungry|, who '
        "loved {b.likes}|, who wore a {b.wears})."
    )
    t.say('"We need {one}, {two}, {three} and {missing}," <said> {a}.')
    t.say(
        "(They had|In the kitchen they found|On the shelf stood|{a.s} <relative> from <town> had "
        "brought) {one} and {two}, but (they had no {missing}|the {missing} had run out|they "
        "could not find any {missing})."
    )
    t.ask("What was missing?", missing)
    source = t.pick(("the neighbour", "the store", "the market"))
    t.say("So {b} (ran|went|walked) to {source} and came back with {missing}.", source=source)
    t.one_of(
        "{a} (washed|cut|weighed) the {one} and (stirred|mixed|boiled) everything in a (big|large|"
        "deep) (pot|bowl|pan).",
        "They (chopped|peeled|mixed) and (stirred|tasted|boiled) until the whole kitchen smelt "
        "(good|of {two}|wonderful).",
        "First came the {one}, then the {two}, and (at the end|last of all) the {missing}.",
    )
    t.maybe(
        0.6,
        '"Not so much {salt}!" cried {b}. "Nobody will be able to eat it."',
        salt=t.pick(("salt", "pepper", "sugar")),
    )
    aside(t)
    if t.chance(0.7):
        t.say(
            "<later> {a.s} {guest} sat down (at the table|in the kitchen) and (took a spoonful|"
            "tried it|ate every bit)."
        )
        t.say(
            '"(I have never eaten better|Nobody in town makes better|I could not have made '
            'better) {dish}," said {a.s} {guest}(| from <town>| and asked for more| after the '
            "first spoonful)."
        )
        t.sum_up(
            "{a.name} and {b.name} made {dish} for {a.name}'s {guest}.",
            "{a.name} cooked {dish} with the help of {b.name}.",
        )
        close(t)
    else:
        t.say(
            "But (while they were talking|while {a} was on the telephone|when nobody was looking) "
            "the {dish} (burnt|got burnt), and the kitchen was full of smoke."
        )
        t.say(
            '"We will have bread and (cheese|butter|jam) (today|tonight)," said {a} <sadly>, and '
            "{a.s} {guest} laughed."
        )
        t.sum_up(
            "{a.name} wanted to make {dish}, but everything burnt.", "{a.name} let the {dish} burn."
        )
        close(t, happy=False)


def gift(t: StoryBuilder) -> None:
    """A secret present: made or bought, hidden, nearly found, given."""
    a, b, x = t.meet("a"), t.meet("b", like="a"), t.thing("x")
    hidden = t.pick(HIDING[:13])
    t.bind(hidden=hidden)
    open_story(t, a)
    t.say(
        "In (two|three) days it would be {b.s} birthday, and {a} wanted to (surprise|please) {b.o}."
    )
    how = (
        t.pick(("make", "buy", "paint"))
        if x.noun in ("box", "vase", "kite", "lantern", "chair")
        else t.pick(("buy", "find", "choose"))
    )
    t.happen(
        "a", how, "x", tail=f"for {b.name}", time=t.pick(("<one_day>", "", "in secret")), new=True
    )
    t.ask("What was the present for {b.name}?", x.phrase())
    t.say(
        "{a} (hid {x.o}|kept {x.o} hidden|put {x.o}) {hidden}, (where nobody would look|so that "
        "{b} would not see it|and told no one)."
    )
    t.ask("Where did {a.name} hide the present?", hidden)
    t.say('"What (are you hiding|is your secret|have you got there)?" <asked> {b} <later>.')
    t.say(
        '"(Nothing|Wait and see|I will tell you on <weekday>|It is a secret)," {a} answered and '
        "(blushed|smiled|looked away)."
    )
    aside(t)
    t.maybe(0.4, "{b} thought that {a} had forgotten {b.s} birthday, and was <sad>.")
    t.say(
        "On the birthday {a} (lit the candles|sang a song|woke {b.o} early) and (brought|fetched|"
        "took out) {x.the}."
    )
    t.happen("a", "give", "x", tail=f"to {b.name}")
    t.say(
        '"{thing}!" <shouted> {b}. "(That is just what I wanted!|How did you know?|It is '
        'beautiful!)"',
        thing="A " + x.phrase(),
    )
    t.sum_up(
        "{a.name} gave {b.name} {x.a} for {b.their} birthday.",
        "{a.name} hid a birthday present for {b.name} " + hidden + ".",
    )
    close(t)


def garden(t: StoryBuilder) -> None:
    """Something is planted, waited for, and grows."""
    a = t.meet("a")
    t.meet("b", like="a")
    plant = t.pick(
        (*FLOWERS, "carrots", "beans", "potatoes", "tomatoes", "strawberries", "pumpkins")
    )
    tree = t.pick(TREES)
    t.bind(plant=plant, tree=tree)
    open_story(t, a)
    t.say(
        "(In|One day in|Early in) spring {a} (decided to plant|planted|sowed) {plant} (in the "
        "garden|behind the house|under the {tree} tree)."
    )
    t.ask("What did {a.name} plant?", plant)
    t.say(
        "{a} dug (the ground|a bed|small holes) with a (spade|shovel), (and {b} brought water|"
        "while {b} carried the water|because you need a spade to dig)."
    )
    t.say('"How long (will it take|do we have to wait)?" <asked> {b}.')
    t.say(
        '"(Until summer|A few weeks|Longer than you think)," said {a}. "(Rain and sun will do the '
        'rest|Plants need light, water and time|You must be patient)."'
    )
    aside(t)
    trouble = t.pick(
        (
            "a snail ate half the leaves",
            "it did not rain for weeks",
            "a goat got into the garden",
            "the frost came back",
            "crows picked up the seeds",
        )
    )
    t.say(
        "But (then|in May|one night) {trouble}, (and {a} was <sad>|and there was little hope|so "
        "that {a} nearly gave up).",
        trouble=trouble,
    )
    t.say(
        "{a} (watered|covered|guarded) the {plant} every (evening|morning)(|, even on Sundays|, "
        "although {a.it} was often <tired>)."
    )
    if t.chance(0.8):
        t.say(
            "In (summer|August|July) the garden was full of {plant}(|, and people stopped at the "
            "fence to look|, and the bees buzzed around them)."
        )
        t.say(
            '"(I would never have believed it|You were right|They are beautiful)," said {b}, and '
            "{a} gave {b.o} (a basket full of them|the (finest|biggest) ones|some to take home)."
        )
        t.sum_up(
            "{a.name} planted {plant} in spring and had a garden full of them in summer.",
            "{a.name} looked after {a.their} {plant} until they grew.",
        )
        close(t)
    else:
        t.say(
            "(In the end|By autumn) not a single one was left, and only the {tree} tree still "
            "stood there (with its rough bark|without its leaves|in the rain)."
        )
        t.sum_up(
            "{a.name} planted {plant}, but nothing came of it.", "{a.name}'s {plant} did not grow."
        )
        close(t, happy=False)
