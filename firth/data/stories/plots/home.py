"""Plots at home and next door: things lost, lent, given, cooked and grown; quarrels and help."""

from __future__ import annotations

from firth.data.stories.lexicon import DISHES, FLOWERS, HIDING
from firth.data.stories.scenes import aside, end_story, open_story
from firth.data.stories.story_builder import StoryBuilder


def lost_and_found(t: StoryBuilder) -> None:
    """Write a story: something is lost, looked for in the wrong places, and found, or not."""
    _, b = t.start()
    x = t.thing("x")
    wrong, other, right = t.sample(HIDING, 3)
    t.bind(wrong=wrong, other=other, right=right, thing=x.noun, likes_b=b.likes)
    t.run_script("""
        scene: open
        {a} had {x.a} (that {a.it} (took everywhere|loved dearly)|which had been a gift from {a.s}
            <relative>|and would not have sold it for anything).
        <one_day> {x.the} was (gone|nowhere to be found|no longer in its place|missing).
        ask: What did {a.name} lose? {x.phrase}
        "Where is my {thing}?" <asked> {a} <sadly>.
        or: {a} looked {wrong}, but {x.it} was not there.
        or: {a} was <sad> and (turned the whole house upside down|searched every room).
        {a} asked {b.o} for help(|, and the two of them searched <together>|, because {b.it} had
            sharp eyes).
    """)
    if t.chance(0.6):
        t.run_script("""
            "When did you (last see it|have it last)?" asked {b.name}(|, who liked {likes_b}).
            let: place = PLACES
            "<ago>, when I was (on my way to|coming back from|at) the {place}," {a} answered.
        """)
    aside(t)
    t.say(
        "They looked {other}(| and {wrong}), but (found only (an old shoe|dust|a coin|a button)|"
        "there was nothing there|in vain)."
    )
    if t.chance(0.75):
        finder = t.pick(("a", "b", "b"))
        t.happen(finder, "find", "x", place="{right}", time=t.pick(("", "<later>")))
        t.ask("Where did they find {x.the}?", "{right}")
        if finder == "b":
            t.say('"<thanks>!" said {a}, and {a} hugged {b.o}.')
        if t.chance(0.5):
            t.say(
                "{a} (held {x.o} tight|put {x.o} in a safe place|never let it out of sight again)."
            )
        found = "and found it" if finder == "a" else "and {b.name} found it"
        t.sum_up(
            f"{{a.name}} lost {{x.a}} {found} {{right}}.",
            "{x.the} that {a.name} had lost was {right}.",
        )
        end_story(t)
    else:
        t.run_script("""
            {x} was never (found|seen) again(|, although they had looked everywhere|, and nobody
                knows where it is now).
            summary: {a.name} lost {x.a} and never found it again.
            or: {a.name} and {b.name} looked for {x.a} in vain.
            scene: sad_end
        """)


def quarrel(t: StoryBuilder) -> None:
    """Write a story: two friends quarrel over a thing and make up."""
    t.start()
    x = t.thing("x")
    t.bind(thing=x.noun)
    open_story(t, alone=True)
    t.say(
        "{a.s} best friend was {b}(|, who lived (next door|across the street|in the same house))."
    )
    t.ask("Who was {a.name}'s best friend?", "{b.name}")
    start = t.pick(("lend", "borrow", "break"))
    if start == "break":
        t.happen("b", "break", "x", tail="that belonged to {a.name}", time="<one_day>", new=True)
        t.say('"It was not my fault!" <shouted> {b}, but {a} did not believe {b.o}.')
    else:
        t.say(
            "<one_day> {a} lent {b.o} {x.a}, and {b} (did not give it back|forgot to bring it "
            "back|left it out in the rain)."
        )
        t.say('"You promised to take care of my {thing}!" <shouted> {a}.')
    t.run_script("""
        {a} was so <angry> that {a.it} (slammed the door|went home without a word|would not speak to
            {b.o} any more).
        (For three days|For a whole week|For many days) they did not (speak|play|eat lunch together|
            even greet each other).
        scene: aside
        50% {a} missed {b.o}, but {a.it} was too proud to say so.
        let: flowers = FLOWERS
        <next_day> {b} (knocked at the door|came up the path|stood at the gate) with (a cake|a bunch
            of {flowers}|a letter|{a.s} {thing} under {b.s} arm).
        "I am sorry," said {b}. "(I was wrong|I should have been more careful|I should have asked
            you first)."
        "I am sorry too," <said> {a}. "I should not have shouted at you."
        or: "Let us forget it," {a} said. "You are more important to me than a {thing}."
        or: {a} could not help laughing, and soon they were both laughing.
    """)
    if start == "break" and t.chance(0.6):
        t.happen("a", "mend", "x", tail="with glue", time="<later>")
    t.sum_up(
        "{a.name} and {b.name} quarrelled over {x.a} and made up again.",
        "{b.name} said sorry to {a.name}, and they were friends again.",
    )
    end_story(t)


def helping(t: StoryBuilder) -> None:
    """Write a story: someone helps an old neighbour and is thanked."""
    _, b = t.start(friend="adult")
    b.age, b.job = "old", ""
    b.noun = "woman" if b.gender == "f" else "man"
    t.thing("x", ("basket", "box", "bag", "chair", "carpet", "clock", "lamp"))
    t.bind(noun=b.noun)
    t.run_script("""
        scene: open_alone
        Next door lived {b.name}, an old {noun} who (could no longer walk well|lived alone|had a bad
            leg|hardly ever had visitors).
        <one_day> {a} saw {b.o} (standing|waiting|sitting) (at the gate|on the steps|in front of the
            house) with {x.a}.
        "(This is too heavy for me|I cannot carry this any more|My back hurts)," said {b}. "(Can|
            Could) you help me?"
        "<yes>," <said> {a}.
        let: to = up the stairs; into the house; to the station; across the road; to the attic
        event: a carry x; place={to}
        let: job = sweep the floor; chop wood; clean the windows; water the plants; feed the hens;
            wash the dishes; rake the leaves
        (Afterwards|Then|After that) {a} stayed to {job}, although nobody had asked {a.o}.
        scene: aside
        let: far = China; Egypt; Peru; Norway; Kenya
        {b} made <food_talk> and told {a.o} about (the old days|the war|the time when {b.it} was
            young|a voyage to {far}).
        thing: y = watch; coin; book; compass; ring; stamp; shell; map
    """)
    if t.chance(0.6):
        t.happen("b", "give", "y", tail="to {a.name}", time="<later>", new=True)
        t.ask("What did {b.name} give to {a.name}?", "{y.phrase}")
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
    end_story(t)


def cooking(t: StoryBuilder) -> None:
    """Write a story: a meal is planned, something is missing, and it is eaten, or burnt."""
    t.start("cooking")
    dish = t.pick(tuple(DISHES))
    missing = t.pick(DISHES[dish])
    one, two, three = (part for part in DISHES[dish] if part != missing)
    t.bind(dish=dish, missing=missing, one=one, two=two, three=three)
    t.run_script("""
        let: guest = mother; father; grandmother; uncle; aunt
        scene: open
        <one_day> {a} (decided|wanted|made up {a.s} mind) to (cook|make|prepare) {dish} for {a.s}
            {guest}.
        ask: What did {a.name} want to make? {dish}
        "What do we need?" asked {b.name}(, who had come to help|, who was always hungry|, who loved
            {b.likes}|, who wore a {b.wears}).
        "We need {one}, {two}, {three} and {missing}," <said> {a}.
        (They had|In the kitchen they found|On the shelf stood|{a.s} <relative> from <town> had
            brought) {one} and {two}, but (they had no {missing}|the {missing} had run out|they
            could not find any {missing}).
        ask: What was missing? {missing}
        let: source = the neighbour; the store; the market
        So {b} (ran|went|walked) to {source} and came back with {missing}.
        {a} (washed|cut|weighed) the {one} and (stirred|mixed|boiled) everything in a (big|large|
            deep) (pot|bowl|pan).
        or: They (chopped|peeled|mixed) and (stirred|tasted|boiled) until the whole kitchen smelt
            (good|of {two}|wonderful).
        or: First came the {one}, then the {two}, and (at the end|last of all) the {missing}.
        let: salt = salt; pepper; sugar
        60% "Not so much {salt}!" cried {b}. "Nobody will be able to eat it."
        scene: aside
    """)
    if t.chance(0.7):
        t.run_script("""
            <later> {a.s} {guest} sat down (at the table|in the kitchen) and (took a spoonful|tried
                it|ate every bit).
            "(I have never eaten better|Nobody in town makes better|I could not have made better)
                {dish}," said {a.s} {guest}(| from <town>| and asked for more| after the first
                spoonful).
            summary: {a.name} and {b.name} made {dish} for {a.name}'s {guest}.
            or: {a.name} cooked {dish} with the help of {b.name}.
            scene: end
        """)
    else:
        t.run_script("""
            But (while they were talking|while {a} was on the telephone|when nobody was looking) the
                {dish} (burnt|got burnt), and the kitchen was full of smoke.
            "We will have bread and (cheese|butter|jam) (today|tonight)," said {a} <sadly>, and
                {a.s} {guest} laughed.
            summary: {a.name} wanted to make {dish}, but everything burnt.
            or: {a.name} let the {dish} burn.
            scene: sad_end
        """)


def gift(t: StoryBuilder) -> None:
    """Write a story: a secret present: made or bought, hidden, nearly found, given."""
    _, b = t.start()
    x = t.thing("x")
    t.bind(friend=b.name, hidden=t.pick(HIDING[:13]), thing=f"A {x.phrase}")
    open_story(t)
    t.say(
        "In (two|three) days it would be {b.s} birthday, and {a} wanted to (surprise|please) {b.o}."
    )
    how = (
        t.pick(("make", "buy", "paint"))
        if x.noun in ("box", "vase", "kite", "lantern", "chair")
        else t.pick(("buy", "find", "choose"))
    )
    t.happen(
        "a", how, "x", tail="for {friend}", time=t.pick(("<one_day>", "", "in secret")), new=True
    )
    t.run_script("""
        ask: What was the present for {b.name}? {x.phrase}
        {a} (hid {x.o}|kept {x.o} hidden|put {x.o}) {hidden}, (where nobody would look|so that {b}
            would not see it|and told no one).
        ask: Where did {a.name} hide the present? {hidden}
        "What (are you hiding|is your secret|have you got there)?" <asked> {b} <later>.
        "(Nothing|Wait and see|I will tell you on <weekday>|It is a secret)," {a} answered and
            (blushed|smiled|looked away).
        scene: aside
        40% {b} thought that {a} had forgotten {b.s} birthday, and was <sad>.
        On the birthday {a} (lit the candles|sang a song|woke {b.o} early) and (brought|fetched|took
            out) {x.the}.
        event: a give x; tail=to {friend}
        "{thing}!" <shouted> {b}. "(That is just what I wanted!|How did you know?|It is beautiful!)"
        summary: {a.name} gave {b.name} {x.a} for {b.their} birthday.
        or: {a.name} hid a birthday present for {b.name} {hidden}.
        scene: end
    """)


def garden(t: StoryBuilder) -> None:
    """Write a story: something is planted, waited for, and grows."""
    t.start()
    plant = t.pick(
        (*FLOWERS, "carrots", "beans", "potatoes", "tomatoes", "strawberries", "pumpkins")
    )
    t.bind(plant=plant)
    t.run_script("""
        let: tree = TREES
        scene: open
        (In|One day in|Early in) spring {a} (decided to plant|planted|sowed) {plant} (in the garden|
            behind the house|under the {tree} tree).
        ask: What did {a.name} plant? {plant}
        {a} dug (the ground|a bed|small holes) with a (spade|shovel), (and {b} brought water|while
            {b} carried the water|because you need a spade to dig).
        "How long (will it take|do we have to wait)?" <asked> {b}.
        "(Until summer|A few weeks|Longer than you think)," said {a}. "(Rain and sun will do the
            rest|Plants need light, water and time|You must be patient)."
        scene: aside
        let: trouble = a snail ate half the leaves; it did not rain for weeks; a goat got into the
            garden; the frost came back; crows picked up the seeds
        But (then|in May|one night) {trouble}, (and {a} was <sad>|and there was little hope|so that
            {a} nearly gave up).
        {a} (watered|covered|guarded) the {plant} every (evening|morning)(|, even on Sundays|,
            although {a.it} was often <tired>).
    """)
    if t.chance(0.8):
        t.run_script("""
            In (summer|August|July) the garden was full of {plant}(|, and people stopped at the
                fence to look|, and the bees buzzed around them).
            "(I would never have believed it|You were right|They are beautiful)," said {b}, and {a}
                gave {b.o} (a basket full of them|the (finest|biggest) ones|some to take home).
            summary: {a.name} planted {plant} in spring and had a garden full of them in summer.
            or: {a.name} looked after {a.their} {plant} until they grew.
            scene: end
        """)
    else:
        t.run_script("""
            (In the end|By autumn) not a single one was left, and only the {tree} tree still stood
                there (with its rough bark|without its leaves|in the rain).
            summary: {a.name} planted {plant}, but nothing came of it.
            or: {a.name}'s {plant} did not grow.
            scene: sad_end
        """)
