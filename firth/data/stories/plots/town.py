"""Plots in town: shopping, saving, a purse in the street, a day at work, the doctor, the flood."""

from __future__ import annotations

from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import COMPANIES, JOBS, RIVERS, SHOPS, STREETS
from firth.data.stories.morphology import past
from firth.data.stories.scenes import aside, close, open_story
from firth.data.stories.story_builder import StoryBuilder

GROCERIES = (
    "milk",
    "milk",
    "milk",
    "milk",
    "eggs",
    "sugar",
    "flour",
    "butter",
    "rice",
    "cheese",
    "tea",
    "salt",
)
_SOLD = {item: shop for shop, items in SHOPS.items() for item in items.split()}


def shopping(t: StoryBuilder) -> None:
    """An errand: several things from several shops, one of them forgotten."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "money"
    sender = t.pick(("mother", "father", "grandmother", "aunt"))
    one = t.pick(GROCERIES)
    two, three = t.sample(
        (
            "bread",
            "apples",
            "carrots",
            "sausages",
            "stamps",
            "roses",
            "soap",
            "candles",
            "fish",
            "rolls",
            "pears",
            "nails",
        ),
        2,
    )
    t.bind(
        sender=sender,
        one=one,
        two=two,
        three=three,
        shop=t.pick(("store", "store", "store", "shop")),
        shop2=_SOLD[two],
        shop3=_SOLD[three],
    )
    open_story(t, a)
    t.say(
        "<one_day> {a.s} {sender} (gave {a.o} some money and a basket|sent {a.o} into town|asked "
        "{a.o} to go shopping)."
    )
    t.say('"(We need|Please bring|Do not forget) {one}, {two} and {three}," said {a.s} {sender}.')
    t.one_of(
        "{a} went to the {shop} to (buy|get) {one}(| and (paid with a (coin|note)|put it into the "
        "basket)).",
        "First {a} (walked|ran|hurried) to the {shop} to buy {one}, (because it was close|which "
        "was easy).",
        "At the {shop} {a} bought (some|fresh) {one}.",
        "{a} went to the {shop} because {a.it} needed {one}.",
    )
    t.one_of(
        "Then {a.it} went to the {shop2} to buy {two}.",
        "At the {shop2} {a.it} found {two}, which cost (two|three|five) coins.",
        "(After that|Then) {a} stood in a long line at the {shop2}, where they sell {two}.",
    )
    t.say("In (the street|front of the bank|{street}) {a} met {b.o}.", street=t.pick(STREETS))
    t.say('"(Where have you been|What are you doing here|Where are you going)?" asked {b}.')
    t.one_of(
        '"I went to the {shop} to buy {one} and to the {shop2} to buy {two}," <said> {a}.',
        '"I bought {one} at the {shop} and {two} at the {shop2}," said {a}. "Now I am going home."',
        '"I had to buy {one}, so I went to the {shop}," {a} answered.',
        '"<ago> I went to the {shop2} to buy {two}, and today I need {one}," said {a}.',
    )
    aside(t)
    if t.chance(0.6):
        t.say(
            '"And the {three}?" asked {b.name}, (who could see into the basket|and looked into '
            "the basket)."
        )
        t.ask("What had {a.name} forgotten?", three)
        t.say(
            "{a} had (quite|completely) forgotten the {three}, so {a.it} ran (back |)to the "
            "{shop3} (before it closed|as fast as {a.it} could|without saying goodbye)."
        )
        t.ask("Where did {a.name} run to?", t.roles["shop3"])
    else:
        t.say(
            "At the {shop3}, {a} also bought {three}, and then there were only (two|three|four) "
            "coins left."
        )
    t.say(
        "At home {a.s} {sender} (unpacked the basket|counted the change|put everything on the "
        "table) and was <glad>."
    )
    t.sum_up(
        "{a.name} bought {one}, {two} and {three} for {a.their} {sender}.",
        "{a.name} went shopping for {a.their} {sender} and met {b.name}.",
    )
    close(t)


def saving(t: StoryBuilder) -> None:
    """A wish, a price, a way to earn, and the thing bought, or sold to another."""
    a = t.meet("a", "child")
    t.meet("b", like="a")
    t.topic = "money"
    shop, nouns = t.pick(
        (
            ("toy shop", "kite doll puzzle"),
            ("music shop", "guitar flute drum"),
            ("bookshop", "map globe book"),
            ("jeweller's", "ring watch necklace"),
            ("sports shop", "ball racket bat"),
        )
    )
    t.thing("x", nouns.split())
    price = 8 + int(t.rng.random() * 12)
    has = 1 + int(t.rng.random() * 5)
    t.bind(
        shop=shop,
        price=NUMBERS[price],
        has=NUMBERS[has],
        left=NUMBERS[price - has],
        bank=t.pick(("the bank", "a tin", "a jar", "Northern Bank")),
    )
    open_story(t, a)
    t.say(
        "In the window of the {shop} {a} saw {x.a}(| and could not stop looking at it|, the "
        "(finest|loveliest) in the world|)."
    )
    t.say("{x} cost {price} coins, but {a} had only {has}.")
    t.ask("How much did {x.the} cost?", f"{NUMBERS[price]} coins")
    t.say('"(How can I get {left} coins more|Where can I find {left} more coins)?" {a} wondered.')
    ways = (
        "wash cars",
        "walk the neighbour's dog",
        "pick apples",
        "sell lemonade",
        "deliver newspapers",
        "sweep the yard",
        "feed the ducks",
        "water the neighbour's garden",
    )
    way = t.pick(ways)
    t.say(
        '"You could {way}," said {b}. "(People pay for that|That is how I earned my bicycle|'
        'Everybody needs help)."',
        way=way,
    )
    t.say(
        "So {a} began to {way}, and (every <weekday>|each evening|week by week) {a.it} put the "
        "money in {bank}."
    )
    aside(t)
    t.maybe(
        0.5,
        "(Once|One evening) {a} was tempted to spend it all on (ice cream|sweets|the circus), but "
        "{a.it} did not.",
    )
    if t.chance(0.75):
        t.say("<next_day> {a} had {price} coins at last and (ran|went|hurried) to the {shop}.")
        t.happen("a", "buy", "x", place="at the {shop}")
        t.ask("Where did {a.name} buy {x.the}?", shop)
        t.sum_up(
            "{a.name} saved {price} coins and bought {x.a}.",
            "{a.name} earned enough money to buy {x.a} at the {shop}.",
        )
        close(t)
    else:
        t.say(
            "But when {a} came to the {shop} with the money, {x.the} (had been sold|was no longer "
            "there|was gone)."
        )
        t.say(
            '"(A boy|A lady|An old man) bought it (this morning|yesterday|an hour ago)," said the '
            'owner of the shop. "I am (very|so|truly) sorry."'
        )
        t.sum_up(
            "{a.name} saved money for {x.a}, but somebody else bought it.",
            "{a.name} came too late to buy {x.a}.",
        )
        close(t, happy=False)


def purse(t: StoryBuilder) -> None:
    """Money found in the street finds its way back."""
    a, b = t.meet("a"), t.meet("b", "adult", like="a")
    t.topic = "money"
    t.thing("x", ("purse", "wallet", "bag"))
    coins = 5 + int(t.rng.random() * 15)
    where = t.pick(
        (
            "in front of the bank",
            "at the bus stop",
            "on a bench in the park",
            "on the steps of the museum",
            "in the middle of the road",
            "beside the fountain",
        )
    )
    t.bind(coins=NUMBERS[coins], where=where)
    open_story(t, a)
    t.happen("a", "find", "x", place="{where}", time="<one_day>", new=True)
    t.ask("Where did {a.name} find {x.the}?", where)
    t.say("In it there were {coins} coins and a (note|ticket|card) with the name {b.full}.")
    t.ask("Whose name was in {x.the}?", f"{b.name} {b.surname}")
    t.say(
        "{a} could have (bought|had) (a bicycle|ice cream for a year|new shoes) with that money, "
        "(and for a moment {a.it} thought about it|but it was not {a.s} money)."
    )
    t.say(
        '"(Somebody is looking for this|It does not belong to me|I must give it back)," {a} '
        "<thought>."
    )
    aside(t)
    t.say(
        "{a} (went to the police station|asked the mailman|asked at the bank), and (there|soon) "
        "{a.it} learned that {b} (lived on {street}|worked for {company}).",
        street=t.pick(STREETS),
        company=t.pick(COMPANIES),
    )
    t.say("When {b} opened the door, {b.it} (looked pale|had tears in {b.s} eyes|seemed <sad>).")
    t.happen("a", "bring", "x", tail="back")
    t.one_of(
        '"<thanks>!" cried {b}. "This money was for (the rent|the doctor|my daughter\'s shoes)."',
        '"(You are honest|There are still honest people)," said {b} and (gave {a.o} {reward} '
        "coins|invited {a.o} to lunch).",
        reward=NUMBERS[2 + coins // 5],
    )
    t.sum_up(
        "{a.name} found {x.a} and gave it back to {b.name}.",
        "{b.name} got {b.their} lost {x.noun} back from {a.name}.",
    )
    close(t)


def work_day(t: StoryBuilder) -> None:
    """A day at work on which something goes wrong and is put right."""
    a, b = t.meet("a", "adult"), t.meet("b", "adult", like="a")
    where, does, tool = JOBS[a.job]
    t.bind(job=a.job, where=where, does=does, did=past(does), tool=tool)
    open_story(t, a)
    t.say(
        "(Every morning|On working days) {a} got up at (five|six|seven), (drank a cup of tea|had "
        "breakfast|kissed the children) and (went|walked|drove|cycled) to the {where}."
    )
    t.say(
        "<one_day> (everything went wrong|nothing went as it should|there was trouble): {trouble}.",
        trouble=t.pick(
            (
                "the lights went out",
                "the door would not open",
                f"the {tool} was broken",
                "half the people were ill",
                "a pipe burst",
                "the keys had been left at home",
                "the telephone did not stop ringing",
            )
        ),
    )
    t.say('"How (am I to|can I|shall I) {does} now?" {a} asked {b.o}, who worked there too.')
    t.say(
        '"(Let me see|Do not worry|Give me ten minutes)," said {b}. "(My <relative> was a {other} '
        'and taught me a few things|We have seen worse|I know what to do)."',
        other=t.pick(tuple(JOBS)),
    )
    aside(t)
    if t.chance(0.75):
        t.say(
            "{b} (repaired|fixed|arranged) everything (with a piece of wire|with a smile|in no "
            "time), and {a} could {does} (again|after all|as usual)."
        )
        t.say(
            "(In the evening|At six o'clock|When the work was done) {a} (paid for {b.s} dinner|"
            "thanked {b.o}|shook {b.s} hand)."
        )
        t.ask("Who helped {a.name}?", b.name)
        t.sum_up(
            "{a.name}, a {job}, had trouble at work, and {b.name} put it right.",
            "{b.name} helped {a.name} at the {where}.",
        )
        close(t)
    else:
        t.say(
            "But {b} (made it worse|could not do it either|had to leave early), and the {where} "
            "stayed closed (for the rest of the day|until <weekday>)."
        )
        t.sum_up(
            "Everything went wrong at the {where}, and {a.name} could not work.",
            "{a.name}, a {job}, had a bad day.",
        )
        close(t, happy=False)


def doctor(t: StoryBuilder) -> None:
    """Someone falls ill, and what the doctor says helps."""
    a, b = t.meet("a", "child"), t.meet("b", "adult")
    b.job = t.pick(("doctor", "nurse", "dentist"))
    b.told.add("job")
    ill = {
        "doctor": ("a fever", "a bad cough", "a sore throat"),
        "nurse": ("a cut on the knee", "a swollen foot"),
        "dentist": ("a toothache",),
    }
    illness = t.pick(ill[b.job])
    t.bind(illness=illness, job=b.job, by=t.pick(("mother", "father", "aunt")))
    open_story(t, a)
    t.say(
        "<one_day> {a} woke up with {illness} and did not want to (get up|eat|play|go to school)."
    )
    t.ask("What was wrong with {a.name}?", illness)
    t.say("{a.s} {by} (called|sent for|took {a.o} to) the {job}, whose name was {b.full}.")
    t.ask("What was the name of the {job}?", f"{b.name} {b.surname}")
    t.say("{a} was <afraid>, because {a.it} had heard that it (hurt|would hurt).")
    t.say(
        '"(Open your mouth|Sit down|Show me where it hurts), please," said {b}. "It will not take '
        'long."'
    )
    t.maybe(
        0.7,
        '"{question}" asked {b}, (to take {a.s} mind off it|and smiled).',
        question=t.fact("capital").question,
    )
    if t.sentences[-1].startswith('"W') and "capital" in t.sentences[-1]:
        t.say('"{answer}," {a} (whispered|said), and before {a.it} knew it, it was over.')
    aside(t)
    t.say(
        '"(Drink a lot of tea|Stay in bed for two days|Eat less sugar|Keep it clean and dry) and '
        'you will (be well soon|be on your feet by <weekday>)," {b} told {a.o}.'
    )
    t.say(
        "(After two days|By <weekday>|A week later) {a} was (as fit as ever|running about again|"
        "quite well)."
    )
    t.sum_up(
        "{a.name} had {illness}, and {b.name}, a {job}, helped {a.them}.",
        "{b.name} cured {a.name}, who had {illness}.",
    )
    close(t)


def flood(t: StoryBuilder) -> None:
    """Days of rain, a river over its banks, and people who help each other."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "weather"
    river = t.pick(RIVERS)
    t.thing("x", ("boat", "ladder", "box", "clock", "carpet", "painting", "chair", "record"))
    t.bind(river=river)
    open_story(t, a)
    t.say(
        "(That|One) (autumn|spring) it rained for (three|six|ten) days(| and nights), and the "
        "{river} rose (higher and higher|by the hour)."
    )
    t.ask("Which river rose?", river)
    t.one_of(
        "(By <weekday>|Soon|At night) the river flooded its banks, and water ran (down the street|"
        "into the cellars|over the fields).",
        "The bank of the river was (under water|flooded|washed away) (by <weekday>|before morning|"
        "in the night).",
        "The water came over the river bank (near the <place>|close to the <place>) (and into the "
        "gardens|in the night|and did not stop).",
        "On both banks of the {river} the (meadows|gardens|fields) were (flooded|under water) (by "
        "<weekday>|in the morning|as far as the <place>).",
    )
    t.say(
        '"(Is our street safe|Will the bridge hold|What shall we do)?" <asked> {b.name}, who was '
        "<afraid>."
    )
    t.say(
        '"(We must|Let us) (carry everything upstairs|help the neighbours|fill bags with sand)," '
        "{a} <said>."
    )
    t.happen(
        "a",
        "carry",
        "x",
        tail=t.pick(("up the stairs", "to the attic", "to a dry place")),
        new=True,
    )
    aside(t)
    t.say(
        "(All night|For hours) people from <town> stood in a line and (passed bags of sand from "
        "hand to hand|built a wall against the water|carried children and (dogs|hens|books) to "
        "the (church|school))."
    )
    t.maybe(
        0.5,
        "(A|The neighbour's) (cat|dog|goat) sat on the roof of a shed and (would not come down|"
        "cried for help), until {b} (fetched it|saved it) with a (boat|ladder).",
    )
    t.say(
        "<next_day> the sun (came up|rose) (behind the clouds|over the hills) in the east, the "
        "rain stopped, and the (water|river) (went down|sank)."
    )
    t.say(
        "There was mud (on every floor|everywhere|in every cellar|even by the <place>), but "
        "nobody (in <town> |)had been hurt."
    )
    t.sum_up(
        "The {river} flooded, and {a.name} and {b.name} helped the people of {a.town}.",
        "After days of rain the {river} flooded the town, but nobody was hurt.",
    )
    close(t)
