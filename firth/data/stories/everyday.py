"""Everyday sentences in which the facts of `knowledge` show: who eats what, who does what, where.

The same facts as in `facts`, as things that happen: "the bear looked for honey" and not "bears eat
honey". A model that knows a fact finds it in both.
"""

from __future__ import annotations

from typing import NamedTuple

from firth.data.stories import knowledge
from firth.data.stories.facts import RELATIONS
from firth.data.stories.lexicon import JOBS, WEEKDAYS
from firth.data.stories.morphology import gerund, past, plural, third
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import phrases


class Everyday(NamedTuple):
    """Rows of words, and the templates whose slots they fill."""

    rows: tuple[dict[str, str], ...]
    templates: tuple[str, ...]


_SHELTERS = phrases("kennel; barn; stable; sty; coop; hole; hive; nest; den; cave; burrow; web")
_ANIMALS = knowledge.ANIMALS.items()
_EATING = tuple(
    {
        "x": animal,
        "xs": plural(animal),
        "y": food,
        "few": "two" if food.endswith("s") and food != "grass" else "some",
    }
    for animal, food in knowledge.FOOD_OF.items()
)
_SOUNDS = tuple(
    {
        "x": animal,
        "xs": plural(animal),
        "do": row[0],
        "did": past(row[0]),
        "doing": gerund(row[0]),
    }
    for animal, row in _ANIMALS
)
_HOMES = tuple(
    {
        "x": animal,
        "xs": plural(animal),
        "y": home,
        "went": "flew" if animal in ("bee", "bird", "crow", "bat") else "went",
    }
    for animal, home in knowledge.HOME_OF.items()
    if home in _SHELTERS
)
_YOUNG = tuple({"x": x, "y": row[3], "ys": plural(row[3])} for x, row in _ANIMALS if row[3] != "-")
_DRINKS = tuple(
    {"who": who, "whos": plural(who), "y": drink, "cup": cup}
    for who, (drink, *cups) in knowledge.DRINKS.items()
    for cup in cups
)
_GOODS = tuple({"x": item, "y": shop} for item, shop in RELATIONS["shop"].pairs)
_PLACES = tuple({"x": deed, "y": place} for deed, place in knowledge.PLACES_FOR.items())
_JOBS = tuple(
    {"job": job, "jobs": plural(job), "where": where, "do": do, "did": past(do), "does": third(do)}
    for job, (where, do, _) in JOBS.items()
)
_COLOURS = tuple(
    {
        "x": thing.removeprefix("a ").removeprefix("an ").removeprefix("the "),
        "y": colour,
        "a_x": thing,
    }
    for thing, colour in knowledge.COLOURS_OF.items()
)
_SEASONS = tuple(
    {
        "x": f"{who} {do if who in knowledge.SEVERAL else third(do)}",
        "x_past": f"{who} {past(do)}",
        "y": season,
        "month": month,
        "weather": weather,
    }
    for season, signs in knowledge.SIGNS.items()
    for who, do in signs
    for month in knowledge.MONTHS_OF[season]
    for weather in knowledge.WEATHER_OF[season]
)
_DAYS = tuple({"x": x, "y": y} for x, y in zip(WEEKDAYS, (*WEEKDAYS[1:], WEEKDAYS[0]), strict=True))
_PARTS = tuple(
    {"x": whole, "n": number, "parts": parts}
    for whole, row in knowledge.PARTS.items()
    for number, parts in [row.split(" ", 1)]
)
_TOOLS = tuple(
    {"x": tool, "do": use, "did": past(use), "doing": gerund(use)}
    for tool, use in knowledge.TOOLS.items()
    if "one" not in use
)

# modifiers; an empty option leaves the part out
RULES = {
    "when": """|||every day|in the morning|at night|on <weekday>|last week|in the evening|yesterday|
        today|again|at last|before breakfast|after the rain""",
    "nearby": """|||near the <place>|behind the house|in our street|in the yard|in the village|
        at the zoo|on the farm|in <town>|under a tree|by the road|next door""",
    "beast": """|||hungry|little|old|big|young|grey|brown|clever|tired|poor|friendly|wild|lazy|
        frightened""",
    "person": "|||old|young|new|tall|friendly|tired|busy|good|kind",
    "look": "||||old|big|new|lovely|soft|fresh|strange|fine|bright|ripe|large",
    "det": "the|the|the|a|that|our|one|this|my|the neighbour's|his|her",
    "someone": """{a}|{b}|the <job>|a <job>|my <relative>|his <relative>|her <relative>|we|I|
        the children|a boy|a girl|somebody|the old man|the old woman|they""",
    "some": "||some|the|its|fresh|more|a lot of|all the|enough|the last",
    "reason": """it was hungry|it saw a stranger|it was afraid|it heard a noise|it was alone|
        it wanted to (play|come in|go out|eat)|the door opened|the sun came up|<someone> came""",
    "moved": "ran away|came nearer|looked up|lay down|went across the <place>|jumped up|hid",
}

EVERYDAY = {
    "eating": Everyday(
        _EATING,
        phrases("""<det> <beast> {x} <nearby> (ate|was eating|had eaten|found|looked for|stole|
        smelt|wanted|waited for|was given|was fond of|dreamt of|carried away|would not share|
        had (stolen|hidden|lost|found)|lived on|asked for) <some> {y} <when>;
        <someone> (gave|brought|threw|showed|offered|promised) <det> <beast> {x} (<some>|{few}) {y}
        <when>;
        <someone> (fed|tempted|caught|called|calmed) <det> <beast> {x} with <some> {y} <when>;
        <someone> (saw|watched) <det> <beast> {x} (eating|looking for|stealing|chewing|hiding)
        <some> {y} <nearby>; {xs} (eat|like|love|need|want|look for|live on|are fond of) <some> {y};
        <det> <beast> {x} (climbed up|came|went out|crept out|jumped up|ran) (to|in order to) (find|
        get|eat|steal) <some> {y} <when>; what does <det> <beast> {x} (like|want|need|eat)? {y}!;
        the {xs} <nearby> (got|were given|fought over|shared|found|were after) <some> {y}
        <when>"""),
    ),
    "sounds": Everyday(
        _SOUNDS,
        phrases("""<det> <beast> {x} <nearby> {did} (loudly|softly|twice|all the time|) <when>;
        <when> <nearby> <det> <beast> {x} {did}; <det> <beast> {x} {did} (because|when|as) <reason>;
        <someone> (heard|saw|was afraid of|laughed at) <det> <beast> {x} {doing} <nearby> <when>;
        <det> <beast> {x} {did} and <moved>;
        the {xs} <nearby> {did} (all night|at once|together|until it was light|) <when>;
        who was {doing} <nearby>? It was <det> <beast> {x}; {xs} {do} (when they are hungry|at
        night|
        when somebody comes|all day long); suddenly <det> <beast> {x} {did}, and <someone> ran"""),
    ),
    "homes": Everyday(
        _HOMES,
        phrases("""the {xs} {went} (back to|out of|into|home to) their {y} <when>;
        <det> <beast> {x} {went} (back to|out of|into) its {y} <when>;
        <det> <beast> {x} (slept|lay|sat|hid|stayed|waited|was safe) in its {y} <when>;
        <someone> (found|saw|looked into|was shown) the {y} of <det> <beast> {x} <nearby>;
        in the {y} <nearby> (slept|lived|waited) <det> <beast> {x};
        the {y} was empty, for <det> {x} was (out|away|gone) <when>"""),
    ),
    "young": Everyday(
        _YOUNG,
        phrases("""<det> {x} and (her|its) <beast> ({y}|{ys}) (slept|lay|stood|played|were) <nearby>
        <when>; <det> {x} (licked|fed|looked for|called|lost|washed|guarded) (her|its) <beast>
        ({y}|{ys}) <when>; the <beast> ({y}|{ys}) (ran after|followed|slept beside|drank beside)
        <det> {x} <when>; <someone> (saw|found|bought|had) a {x} with (a|two|three) <beast> {ys}
        <nearby>; one day <det> {y} will be a <beast> {x}; every {x} was once a {y}"""),
    ),
    "drinks": Everyday(
        _DRINKS,
        phrases("""<det> <beast> {who} (drank|wanted|got|asked for|was given|liked|spilt) (some|
        {cup} of|fresh|more) {y} <when>; <someone> (gave|brought) <det> <beast> {who} (some|
        {cup} of|fresh|more) {y} <when>; <someone> (filled|fetched|emptied|put down) {cup} of {y}
        for <det> <beast> {who}; {whos} (drink|like|need) {y}; there was {y} in {cup} for the {who};
        <someone> poured (some|fresh|the|more) {y} (into {cup}|for <det> {who}) <when>;
        "(Have|Drink|Take) {cup} of {y}," said {b}; {y} is for the {who}, said <someone>"""),
    ),
    "shopping": Everyday(
        _GOODS,
        phrases("""(they had no|nobody had bought|somebody had eaten all the|{a} had forgotten the|
        {a} needed|{b} wanted|they had no more) {x}, (so|and|and so) (she|he|{a}|{b}|<someone>)
        (went|ran|hurried|drove|cycled|rode|had to go|walked back) to the {y} <when>;
        at the {y} <someone> (bought|found|paid for|asked for|saw|chose) (some|the|) {x} <when>;
        the {y} <nearby> (sells|sold|had|has) (good|cheap|fresh|no|the best|) {x};
        <someone> (came back from|left|came out of|stopped at|waited at) the {y} with {x};
        <someone> bought {x} at (the|a|our) {y} <when>; "Where did you buy the {x}?" asked {b}.
        "At the {y}."; for {x} (you|we|people|they) go to the {y}; the {y} was closed, so there was
        nothing to be had: no {x}, nothing; "We need {x}," said {b}. "Go to the {y}." """),
    ),
    "places": Everyday(
        _PLACES,
        phrases("""<someone> (went|drove|walked|cycled|hurried|rode) to the {y} to {x} <when>;
        at the {y} (you|one|people|children) can {x}; if you want to {x}, (go to|visit|you
        should go to|take the bus to) the {y}; "Where can I {x}?" asked {a}. "At the {y}.";
        <someone> wanted to {x} and (looked for|asked for|found) the {y} <when>;
        the {y} <nearby> is the place to {x}; <someone> came to the {y} in order to {x} <when>"""),
    ),
    "jobs": Everyday(
        _JOBS,
        phrases("""<det> <person> {job} <nearby> {did} <when>; <when> <det> <person> {job} {did};
        <det> <person> {job} (will|has to|must|can|wanted to|had to|could) {do};
        <det> {job} {does} (every day|in the morning|at night|all week|gladly|again|);
        <det> <person> {job} (works|worked|was|is|stayed) at (the|a) {where} <when>;
        <someone> (met|saw|asked|called|knew|paid|fetched) a {job} who {did} <when>;
        <someone> went to the {where}, where <det> {job} {did}; {jobs} {do};
        (early|late) in the (morning|evening) <det> {job} {did}; who {does}? The {job} does;
        <someone> wanted to be a {job} and {do}; without a {job} nobody can {do}"""),
    ),
    "colours": Everyday(
        _COLOURS,
        phrases("""<someone> (saw|painted|drew|found|liked|looked at|pointed at|touched|wanted)
        (the|that|this) <look> {y} {x} <nearby> <when>; the <look> {x} <nearby> (was|looked|seemed|
        stayed|had always been) (very|quite|all|bright|dark|deep|) {y} <when>; {y}, {y} {x};
        {a_x} is (always|usually|often|mostly|of course|) {y}; (how|so) {y} the {x} was <when>;
        (the|a|this|that) (coat|hat|scarf|bag|car|cup|door) was as {y} as {a_x};
        "What colour is the {x}?" "{y}."; the {x} was not (purple|silver|golden), it was {y};
        <someone> painted the {x} {y} <when>; like {a_x}, the (coat|hat|door|box) was {y}"""),
    ),
    "seasons": Everyday(
        _SEASONS,
        phrases("""it was (already|still|nearly|late|early|) {y}, (and|for|because) {x_past};
        it was {y}: {x_past} <nearby>; (in|during the|early in|late in) {y} {x} <nearby>;
        every {y} {x} <nearby>; {x_past} (that|in the|early in|all) {y} <nearby>;
        <someone> (liked|loved|waited for|thought of) {y}, (because|for|when) {x};
        when {x}, it is {y}; when {x_past}, it was {y}; {x}: that is {y}; {y} came, and {x_past};
        it was a {weather} day in {month}, (and it was|for it was|in|late in|early in|the best of)
        {y};
        (one|on a) {weather} day in {month}, (in|early in|late in) {y}, <someone> went out; {month}
        is a {y} month;
        it was a {weather} {y} day <nearby>; {weather} days come in {y}; {month} belongs to {y}"""),
    ),
    "days": Everyday(
        _DAYS,
        phrases("""yesterday was {x}, (and|so) today is {y}; today is {x}, and tomorrow is {y};
        "(Tomorrow|The next day) is {y}," said <someone> on {x} (evening|morning|);
        it was {x}, the day before {y}; after {x} (came|comes) {y}; {x} comes before {y};
        on {x} <someone> (was ill|slept badly|worked), but on {y}, the next day, all was well;
        "It is {x}," said {b}. "(So|Then) tomorrow (is|will be) {y}."; {x} was over: it was {y};
        if today is {x}, (then |)tomorrow (is|will be) {y}; {x}, {y}"""),
    ),
    "parts": Everyday(
        _PARTS,
        phrases("""<det> <look> {x} (has|had) {n} {parts}; every {x} has {n} {parts};
        <someone> counted the {parts} of (a|the|one) {x} (and found|and came to|and said:)
        {n}; "How many {parts} has a {x}?" "{n}."; {n} {parts}, that is a {x};
        a {x} without its {n} {parts} is no {x}; the {parts} of a {x} are {n};
        <someone> knew that a {x} has {n} {parts}"""),
    ),
    "tools": Everyday(
        _TOOLS,
        phrases("""<someone> {did} with (a|the|an old|a new|a good|my|his|her) {x} <when>;
        <someone> (took|fetched|needed|looked for|borrowed|bought) (a|the|a good) {x} (to|in order
        to|and began to) {do} <when>; (a|the|my|this|a good) {x} (helps to|is used to|is made to)
        {do}; to {do}, <someone> used (a|the|an old|a new) {x} <when>; if you want to {do}, take a
        {x}; without a {x} nobody could {do} <when>; "Where is the {x}?" asked {b}. "I want to
        {do}."; nobody could {do}, because the {x} was (gone|lost|broken) <when>"""),
    ),
    "troubles": Everyday(
        ({},),
        phrases("""it (rained|was raining|began to rain) <when>, (but|and) <someone> had (an|no|
        forgotten the|a new|lost the) umbrella; <someone> (opened|held up|took|needed|bought) (an|
        the|a big) umbrella, (because|for|when|as) it (rained|was raining|began to rain);
        under the umbrella they stayed dry; in the rain <someone> (opened|needed|wanted) it;
        <someone> (had lost|looked for|found|forgot|asked for|turned) the key, (and|but|so|because)
        the door (was|stayed|had been) locked; without (a|the) key nobody (could|can) open the door;
        <someone> could not find the key, (so|and) the door (was|stayed) locked <when>;
        (she|he|{a}|{b}) looked everywhere for the key (of|to) the (door|house|box|shed);
        the door was (shut|locked|closed), and the key was (lost|gone|not there|in the <place>);
        (the house|the barn|a shed|the mill|the shop) was (burning|on fire), (but|and|so) (a|the|
        two) (firefighter|firefighters) (came|put out the fire|arrived in time|came with a hose);
        (a|the|our) firefighter put out the fire <nearby> <when>; a fire? Call the firefighters;
        <someone> had a (toothache|bad tooth) and (went|had to go|hurried) to the dentist <when>;
        (a|the|my|our) dentist (looked at|pulled|cleaned|cured) the (bad |)tooth <when>;
        <someone> had a tooth that hurt (so much|badly|again|all night), (so|and) (she|he|{a})
        (had|wanted|
        went|hurried|drove) to see (a|the) dentist; a tooth hurts? Then go to the dentist; whose
        tooth hurts must see (a|the) dentist;
        (a|the|our) (mailman|postman) (brought|came with|delivered|lost|had) (a letter|letters|
        a card|the newspaper|two postcards|a parcel) <when>; letters are brought by the (mailman|
        postman); <someone> got a letter from the (mailman|postman) <when>;
        (a|the|our) pilot (landed|steered|turned|flew) (a|the|his|her) plane <nearby> <when>;
        (a|the) plane was (flown|landed) by a (young|old|careful) pilot;
        <someone> (looked at|saw|watched|counted) the (moon|stars) (with|through) (a|the|an old)
        telescope <when>; through (a|the) telescope <someone> saw (the moon|the stars|a star);
        <someone> (took|brought|carried) (the|some|a bag of|a lot of) money to the bank <when>;
        the bank keeps (the|our|all the) money; money is safe in the bank;
        {a} put (all |some |the |)money in the bank <when>"""),
    ),
}


_MODIFIERS = {name: (" ".join(text.split()).replace("| ", "|"),) for name, text in RULES.items()}


def everyday(t: StoryBuilder) -> None:
    """Add an everyday sentence; its words are nothing that the rest of the story refers to."""
    kind = EVERYDAY[t.pick(tuple(EVERYDAY))]
    template = t.pick(kind.templates)
    roles = dict(t.roles)
    t.roles.update(_MODIFIERS)
    t.say(template if template[-1] in '"!?' else f"{template}.", **t.pick(kind.rows))
    t.roles = roles
