"""Plots of contest and play: a race, a match, a band, a fair."""

from __future__ import annotations

from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import BANDS, FESTIVALS, INSTRUMENTS, PLACES, SPORTS, TEAMS
from firth.data.stories.morphology import past
from firth.data.stories.reviews import opinion_clauses
from firth.data.stories.scenes import aside, close, open_story
from firth.data.stories.story_builder import StoryBuilder


def contest(t: StoryBuilder) -> None:
    """A race with training, rivals, and a winner; or a match between two teams."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "sport"
    sport = t.pick(tuple(SPORTS))
    did, prize = SPORTS[sport]
    t.bind(sport=sport, did=did, prize=prize, festival=t.pick(FESTIVALS), place=t.pick(PLACES))
    open_story(t, a)
    t.say(
        "(At|During) the {festival} there was a {sport}, and {a} (wanted|hoped|was determined) to "
        "win it."
    )
    t.ask("What did {a.name} want to win?", sport)
    t.say(
        "(Every <daypart>|Day after day|For weeks) {a} (trained|practised) (by the {place}|with "
        "{b.o}|in all weathers)(|, while the others (slept|watched television))."
    )
    t.say(
        '"You will never (beat|be faster than) {b.name}," said {a.s} <relative>. "{b.name} (holds '
        'the record|has won three times|is as quick as a fox)."'
    )
    aside(t)
    t.say(
        "<next_day> the (runners|racers|athletes) (stood|waited) at the start, and {a.s} knees "
        "were shaking."
    )
    t.say("The (whistle blew|bell rang), and off they (went|flew).")
    t.say(
        "At first {b} was (ahead|in front|far ahead), but (half way|at the bridge|in the last "
        "minute) {a} {did} faster and caught up."
    )
    end = t.rng.random()
    winner, loser = ("a", "b") if end < 0.55 else ("b", "a")
    t.bind(w=t.roles[winner], l=t.roles[loser])
    t.say("{w} (won|came first|crossed the line first), (a step|a second|just) ahead of {l.o}.")
    t.ask("Who won the {sport}?", t.roles[winner].name)
    t.maybe(0.5, "It was a new record: nobody in {town} had ever been so fast.", town=a.town)
    if winner == "a":
        t.say("The (mayor|teacher|judge) gave {a.o} the {prize}, and everyone (clapped|cheered).")
    else:
        t.say(
            '{a} was <sad>, but {a.it} shook {b.s} hand and said, "(You were better|Next year I '
            'will beat you|Well done)."'
        )
    t.sum_up(
        "{w.name} won the {sport} ahead of {l.name}.",
        "{a.name} trained hard for the {sport}, and {w.name} won it.",
    )
    close(t, happy=winner == "a")


def match(t: StoryBuilder) -> None:
    """A match with bat and ball, or with goals."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "sport"
    ours, theirs = t.sample(TEAMS, 2)
    game = t.pick(("cricket", "baseball", "football", "hockey"))
    t.bind(ours=ours, theirs=theirs, game=game)
    open_story(t, a)
    t.say(
        "{a} played {game} for the {ours}, and on <weekday> they had a match against the {theirs}."
    )
    t.ask("Which team did {a.name} play for?", ours)
    t.say(
        "There was (rain|sunshine|a strong wind) in the air, and (hundreds of people|half the "
        "town|{a.s} whole family) had come (to watch|from <town>|with flags)."
    )
    if game in ("cricket", "baseball"):
        t.one_of(
            "{a} (took|lifted|swung) the bat and (hit|struck) the ball (hard|with all {a.s} "
            "strength|over the fence).",
            "{b} threw the ball, and {a} hit it with {a.s} (new|old|wooden) bat.",
            "When {a} hit the ball, the bat (broke in two|flew out of {a.s} hands|made a loud "
            "crack).",
            "At first {a} missed the ball, for the bat was too (heavy|light|long).",
        )
    else:
        t.one_of(
            "{a} (got|stopped) the ball, (ran past two players|looked up) and passed it to {b.o}.",
            "The {theirs} (scored|shot) first, and the {ours} (hung their heads|lost heart).",
            "{b} (fell|slipped), but {a} (kept|saved) the ball and shot.",
        )
    aside(t)
    t.say(
        '"(Run|Faster|Come on|Do not give up)!" <shouted> {b} (from the other side|as loudly as '
        "possible|and waved)."
    )
    mine, other = t.sample(range(0, 7), 2)
    t.bind(mine=NUMBERS[max(mine, other)], other=NUMBERS[min(mine, other)])
    won = mine > other
    t.bind(w=ours if won else theirs, l=theirs if won else ours)
    t.say(
        "(At the end|When the whistle blew|After two hours) the {w} had won by {mine} to {other}(|"
        ", a record for this year)."
    )
    t.ask("Which team won the match?", ours if won else theirs)
    t.maybe(
        0.5,
        "The (reporter|newspaper) (wrote|said) that the {l} had (played badly|been unlucky|not "
        "trained enough).",
    )
    t.sum_up(
        "The {w} beat the {l} by {mine} to {other}.",
        "{a.name} played for the {ours}, and the {w} won.",
    )
    close(t, happy=won)


def music(t: StoryBuilder) -> None:
    """A band records a song, or an old record is played."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "music"
    inst, other = t.sample(INSTRUMENTS, 2)
    band = t.pick(BANDS)
    t.bind(inst=inst, other=other, band=band, festival=t.pick(FESTIVALS))
    open_story(t, a)
    t.say(
        "{a} played the {inst} in a band called the {band}(|, together with {b.o}, who played the "
        "{other})."
    )
    t.ask("What was the band called?", band)
    t.ask("What instrument did {a.name} play?", inst)
    t.one_of(
        "<one_day> they wanted to record a song (in a studio|at Harbour Radio|in {b.s} kitchen).",
        "<one_day> {a} found an old record in the (attic|cellar), and on it was the most "
        "beautiful tune.",
        "They hoped to record their first record before the {festival}.",
        "<one_day> the {band} were asked to play at the {festival}.",
    )
    t.say(
        '"(I cannot play it|The song is too fast|My fingers hurt)," {b} (complained|sighed). '
        '"(Let us start again|Let us play it more slowly|We need more time)."'
    )
    t.say(
        "They practised (every <daypart>|for weeks|night after night) until the (neighbours|"
        "people of <town>|<job> next door) (knew every note|complained|began to sing along)."
    )
    aside(t)
    t.maybe(
        0.5,
        "{a} (broke a string|lost the notes|caught a cold) on the day before, (but {b} helped|and "
        "everyone was <afraid>|but that did not stop {a.o}).",
    )
    if t.chance(0.7):
        t.say(
            "<next_day> the {band} played so well that (people danced in the street|the hall "
            "would not stop clapping|even the drummer cried)."
        )
        t.say(
            '"(Will you record it for us|Will you play it again|Where can I buy the record)?" '
            "(asked|called) a (girl|man|lady|<job>) (in the front row|from <town>|at the back|by "
            "the door)."
        )
        t.sum_up(
            "The {band}, with {a.name} on the {inst}, played very well.",
            "{a.name} and the {band} had a great success.",
        )
        close(t)
    else:
        t.say(
            "<next_day> (the lights went out|it rained into the drum|{b} forgot the words) in the "
            "middle of the (first|second|last) song."
        )
        t.say(
            "They (stopped|bowed) and went home, and (the record was never made|nobody clapped|"
            "the {inst} stayed in its case for a month)."
        )
        t.sum_up(
            "The concert of the {band} went wrong.",
            "{a.name} and the {band} had no luck with their music.",
        )
        close(t, happy=False)


def fair(t: StoryBuilder) -> None:
    """A festival or a show, and what two people thought of it."""
    a = t.meet("a")
    t.meet("b", like="a")
    fest = t.pick(FESTIVALS)
    x = t.thing("x", ("balloon", "ring", "teddy bear", "lantern", "hat", "whistle", "bracelet"))
    t.bind(fest=fest)
    open_story(t, a)
    t.say(
        "(Once a year|Every year in <month>|On <weekday>) {town} celebrated the {fest}, and {a} "
        "had been looking forward to it for weeks.",
        town=a.town,
    )
    t.say(
        "{a} went there with {b.o}, who (would rather have stayed at home|had never been there|"
        "loved such things)."
    )
    t.say(
        "There were (stalls|tents|lights) (everywhere|in every street), and it smelt of (roast "
        "nuts|sugar|apples|smoke)."
    )
    verb, how = t.pick((("win", "in a game"), ("buy", "at a stall"), ("lose", "in the crowd")))
    t.happen("a", verb, "x", place=how, new=True)
    t.ask(f"What did {{a.name}} {verb}?", x.phrase())
    aside(t)
    t.say('"(What did you think of the show|How did you like the show)?" {b} asked <later>.')
    good = t.chance(0.5)
    for role, words in (("a", "{opinion}"), ("b", "I do not agree: {opinion}")):
        t.say(f'"{words}," said {{{role}}}.', opinion=opinion_clauses(t, "show", good))
        good = not good
    t.say("They could not agree.")
    t.sum_up(
        "{a.name} and {b.name} went to the {fest}.",
        f"At the {{fest}} {{a.name}} {past(verb)} {{x.a}}.",
    )
    close(t)
