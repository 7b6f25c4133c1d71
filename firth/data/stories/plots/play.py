"""Plots of contest and play: a race, a match, a band, a fair."""

from __future__ import annotations

from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import INSTRUMENTS, SPORTS, TEAMS
from firth.data.stories.morphology import past
from firth.data.stories.reviews import opinion_clauses
from firth.data.stories.scenes import aside, end_story
from firth.data.stories.story_builder import StoryBuilder


def contest(t: StoryBuilder) -> None:
    """Write a story: a race with training, rivals, and a winner; or a match between two teams."""
    a, _ = t.start("sport")
    sport = t.pick(tuple(SPORTS))
    did, prize = SPORTS[sport]
    t.bind(sport=sport, did=did, prize=prize, town=a.town)
    t.run_script("""
        let: festival = FESTIVALS
        let: place = PLACES
        scene: open
        (At|During) the {festival} there was a {sport}, and {a} (wanted|hoped|was determined) to win
            it.
        ask: What did {a.name} want to win? {sport}
        (Every <daypart>|Day after day|For weeks) {a} (trained|practised) (by the {place}|with
            {b.o}|in all weathers)(|, while the others (slept|watched television)).
        "You will never (beat|be faster than) {b.name}," said {a.s} <relative>. "{b.name} (holds the
            record|has won three times|is as quick as a fox)."
        scene: aside
        <next_day> the (runners|racers|athletes) (stood|waited) at the start, and {a.s} knees were
            shaking.
        The (whistle blew|bell rang), and off they (went|flew).
        At first {b} was (ahead|in front|far ahead), but (half way|at the bridge|in the last minute)
            {a} {did} faster and caught up.
    """)
    winner, loser = ("a", "b") if t.chance(0.55) else ("b", "a")
    t.bind(w=t.roles[winner], l=t.roles[loser])
    t.run_script("""
        {w} (won|came first|crossed the line first), (a step|a second|just) ahead of {l.o}.
        ask: Who won the {sport}? {w.name}
        50% It was a new record: nobody in {town} had ever been so fast.
    """)
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
    end_story(t, happy=winner == "a")


def match(t: StoryBuilder) -> None:
    """Write a story: a match with bat and ball, or with goals."""
    t.start("sport")
    ours, theirs = t.sample(TEAMS, 2)
    game = t.pick(("cricket", "baseball", "football", "hockey"))
    t.bind(ours=ours, theirs=theirs, game=game)
    t.run_script("""
        scene: open
        {a} played {game} for the {ours}, and on <weekday> they had a match against the {theirs}.
        ask: Which team did {a.name} play for? {ours}
        There was (rain|sunshine|a strong wind) in the air, and (hundreds of people|half the town|
            {a.s} whole family) had come (to watch|from <town>|with flags).
    """)
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
    t.run_script("""
        (At the end|When the whistle blew|After two hours) the {w} had won by {mine} to {other}(|, a
            record for this year).
        ask: Which team won the match? {w}
        50% The (reporter|newspaper) (wrote|said) that the {l} had (played badly|been unlucky|not
            trained enough).
        summary: The {w} beat the {l} by {mine} to {other}.
        or: {a.name} played for the {ours}, and the {w} won.
    """)
    end_story(t, happy=won)


def music(t: StoryBuilder) -> None:
    """Write a story: a band records a song, or an old record is played."""
    t.start("music")
    inst, other = t.sample(INSTRUMENTS, 2)
    t.bind(inst=inst, other=other)
    t.run_script("""
        let: band = BANDS
        let: festival = FESTIVALS
        scene: open
        {a} played the {inst} in a band called the {band}(|, together with {b.o}, who played the
            {other}).
        ask: What was the band called? {band}
        ask: What instrument did {a.name} play? {inst}
        <one_day> they wanted to record a song (in a studio|at Harbour Radio|in {b.s} kitchen).
        or: <one_day> {a} found an old record in the (attic|cellar), and on it was the most
            beautiful tune.
        or: They hoped to record their first record before the {festival}.
        or: <one_day> the {band} were asked to play at the {festival}.
        "(I cannot play it|The song is too fast|My fingers hurt)," {b} (complained|sighed). "(Let us
            start again|Let us play it more slowly|We need more time)."
        They practised (every <daypart>|for weeks|night after night) until the (neighbours|people of
            <town>|<job> next door) (knew every note|complained|began to sing along).
        scene: aside
        50% {a} (broke a string|lost the notes|caught a cold) on the day before, (but {b} helped|and
            everyone was <afraid>|but that did not stop {a.o}).
    """)
    if t.chance(0.7):
        t.run_script("""
            <next_day> the {band} played so well that (people danced in the street|the hall would
                not stop clapping|even the drummer cried).
            "(Will you record it for us|Will you play it again|Where can I buy the record)?" (asked|
                called) a (girl|man|lady|<job>) (in the front row|from <town>|at the back|by the
                door).
            summary: The {band}, with {a.name} on the {inst}, played very well.
            or: {a.name} and the {band} had a great success.
            scene: end
        """)
    else:
        t.run_script("""
            <next_day> (the lights went out|it rained into the drum|{b} forgot the words) in the
                middle of the (first|second|last) song.
            They (stopped|bowed) and went home, and (the record was never made|nobody clapped|the
                {inst} stayed in its case for a month).
            summary: The concert of the {band} went wrong.
            or: {a.name} and the {band} had no luck with their music.
            scene: sad_end
        """)


def fair(t: StoryBuilder) -> None:
    """Write a story: a festival or a show, and what two people thought of it."""
    a, _ = t.start()
    t.bind(town=a.town)
    t.run_script("""
        let: fest = FESTIVALS
        thing: x = balloon; ring; teddy bear; lantern; hat; whistle; bracelet
        scene: open
        (Once a year|Every year in <month>|On <weekday>) {town} celebrated the {fest}, and {a} had
            been looking forward to it for weeks.
        {a} went there with {b.o}, who (would rather have stayed at home|had never been there|loved
            such things).
        There were (stalls|tents|lights) (everywhere|in every street), and it smelt of (roast nuts|
            sugar|apples|smoke).
    """)
    verb, how = t.pick((("win", "in a game"), ("buy", "at a stall"), ("lose", "in the crowd")))
    t.happen("a", verb, "x", place=how, new=True)
    t.ask(f"What did {{a.name}} {verb}?", "{x.phrase}")
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
    end_story(t)
