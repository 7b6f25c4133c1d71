"""Plots in town: shopping, saving, a purse in the street, a day at work, the doctor, the flood."""

from __future__ import annotations

from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import JOBS, SHOPS
from firth.data.stories.scenes import aside, end_story, open_story
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import phrases, table, words

_FOOD = words("milk milk milk milk eggs sugar flour butter rice cheese tea salt")
_GOODS = words("bread apples carrots sausages stamps roses soap candles fish rolls pears nails")
_GIFT_SHOPS = table("""toy shop: kite, doll, puzzle; music shop: guitar, flute, drum;
    bookshop: map, globe, book; jeweller's: ring, watch, necklace;
    sports shop: ball, racket, bat""")
_ILLNESSES = table("""doctor: a fever, a bad cough, a sore throat;
    nurse: a cut on the knee, a swollen foot; dentist: a toothache""")
_SOLD = {item: shop for shop, items in SHOPS.items() for item in items.split()}


def shopping(t: StoryBuilder) -> None:
    """Write a story: an errand: several things from several shops, one of them forgotten."""
    t.start("money")
    t.bind(sender=t.pick(("mother", "father", "grandmother", "aunt")))
    one = t.pick(_FOOD)
    two, three = t.sample(_GOODS, 2)
    t.bind(one=one, two=two, three=three, shop2=_SOLD[two], shop3=_SOLD[three])
    t.run_script("""
        let: shop = store; store; store; shop
        scene: open
        <one_day> {a.s} {sender} (gave {a.o} some money and a basket|sent {a.o} into town|asked
            {a.o} to go shopping).
        "(We need|Please bring|Do not forget) {one}, {two} and {three}," said {a.s} {sender}.
        {a} went to the {shop} to (buy|get) {one}(| and (paid with a (coin|note)|put it into the
            basket)).
        or: First {a} (walked|ran|hurried) to the {shop} to buy {one}, (because it was close|which
            was easy).
        or: At the {shop} {a} bought (some|fresh) {one}.
        or: {a} went to the {shop} because {a.it} needed {one}.
        Then {a.it} went to the {shop2} to buy {two}.
        or: At the {shop2} {a.it} found {two}, which cost (two|three|five) coins.
        or: (After that|Then) {a} stood in a long line at the {shop2}, where they sell {two}.
        let: street = STREETS
        In (the street|front of the bank|{street}) {a} met {b.o}.
        "(Where have you been|What are you doing here|Where are you going)?" asked {b}.
        "I went to the {shop} to buy {one} and to the {shop2} to buy {two}," <said> {a}.
        or: "I bought {one} at the {shop} and {two} at the {shop2}," said {a}. "Now I am going
            home."
        or: "I had to buy {one}, so I went to the {shop}," {a} answered.
        or: "<ago> I went to the {shop2} to buy {two}, and today I need {one}," said {a}.
        scene: aside
    """)
    if t.chance(0.6):
        t.run_script("""
            "And the {three}?" asked {b.name}, (who could see into the basket|and looked into the
                basket).
            ask: What had {a.name} forgotten? {three}
            {a} had (quite|completely) forgotten the {three}, so {a.it} ran (back |)to the {shop3}
                (before it closed|as fast as {a.it} could|without saying goodbye).
            ask: Where did {a.name} run to? {shop3}
        """)
    else:
        t.say(
            "At the {shop3}, {a} also bought {three}, and then there were only (two|three|four) "
            "coins left."
        )
    t.run_script("""
        At home {a.s} {sender} (unpacked the basket|counted the change|put everything on the table)
            and was <glad>.
        summary: {a.name} bought {one}, {two} and {three} for {a.their} {sender}.
        or: {a.name} went shopping for {a.their} {sender} and met {b.name}.
        scene: end
    """)


def saving(t: StoryBuilder) -> None:
    """Write a story: a wish, a price, a way to earn, and the thing bought, or sold to another."""
    t.start("money", hero="child")
    shop = t.pick(tuple(_GIFT_SHOPS))
    t.thing("x", _GIFT_SHOPS[shop])
    price = 8 + int(t.rng.random() * 12)
    has = 1 + int(t.rng.random() * 5)
    t.bind(shop=shop, price=NUMBERS[price], has=NUMBERS[has], left=NUMBERS[price - has])
    t.run_script("""
        let: bank = the bank; a tin; a jar; Northern Bank
        scene: open
        In the window of the {shop} {a} saw {x.a}(| and could not stop looking at it|, the (finest|
            loveliest) in the world|).
        {x} cost {price} coins, but {a} had only {has}.
        ask: How much did {x.the} cost? {price} coins
        "(How can I get {left} coins more|Where can I find {left} more coins)?" {a} wondered.
        let: way = wash cars; walk the neighbour's dog; pick apples; sell lemonade; deliver
            newspapers; sweep the yard; feed the ducks; water the neighbour's garden
        "You could {way}," said {b}. "(People pay for that|That is how I earned my bicycle|Everybody
            needs help)."
        So {a} began to {way}, and (every <weekday>|each evening|week by week) {a.it} put the money
            in {bank}.
        scene: aside
        50% (Once|One evening) {a} was tempted to spend it all on (ice cream|sweets|the circus), but
            {a.it} did not.
    """)
    if t.chance(0.75):
        t.say("<next_day> {a} had {price} coins at last and (ran|went|hurried) to the {shop}.")
        t.happen("a", "buy", "x", place="at the {shop}")
        t.ask("Where did {a.name} buy {x.the}?", "{shop}")
        t.sum_up(
            "{a.name} saved {price} coins and bought {x.a}.",
            "{a.name} earned enough money to buy {x.a} at the {shop}.",
        )
        end_story(t)
    else:
        t.run_script("""
            But when {a} came to the {shop} with the money, {x.the} (had been sold|was no longer
                there|was gone).
            "(A boy|A lady|An old man) bought it (this morning|yesterday|an hour ago)," said the
                owner of the shop. "I am (very|so|truly) sorry."
            summary: {a.name} saved money for {x.a}, but somebody else bought it.
            or: {a.name} came too late to buy {x.a}.
            scene: sad_end
        """)


def purse(t: StoryBuilder) -> None:
    """Write a story: money found in the street finds its way back."""
    t.start("money", friend="adult")
    t.thing("x", ("purse", "wallet", "bag"))
    coins = 5 + int(t.rng.random() * 15)
    t.bind(coins=NUMBERS[coins], reward=NUMBERS[2 + coins // 5])
    t.run_script("""
        let: where = in front of the bank; at the bus stop; on a bench in the park; on the steps of
            the museum; in the middle of the road; beside the fountain
        scene: open_alone
        event: a find x; place={where}; time=<one_day>; new
        ask: Where did {a.name} find {x.the}? {where}
        In it there were {coins} coins and a (note|ticket|card) with the name {b.full}.
        ask: Whose name was in {x.the}? {b.full}
        {a} could have (bought|had) (a bicycle|ice cream for a year|new shoes) with that money, (and
            for a moment {a.it} thought about it|but it was not {a.s} money).
        "(Somebody is looking for this|It does not belong to me|I must give it back)," {a}
            <thought>.
        scene: aside
        let: street = STREETS
        let: company = COMPANIES
        {a} (went to the police station|asked the mailman|asked at the bank), and (there|soon)
            {a.it} learned that {b} (lived on {street}|worked for {company}).
        When {b} opened the door, {b.it} (looked pale|had tears in {b.s} eyes|seemed <sad>).
        event: a bring x; tail=back
        "<thanks>!" cried {b}. "This money was for (the rent|the doctor|my daughter's shoes)."
        or: "(You are honest|There are still honest people)," said {b} and (gave {a.o} {reward}
            coins|invited {a.o} to lunch).
        summary: {a.name} found {x.a} and gave it back to {b.name}.
        or: {b.name} got {b.their} lost {x.noun} back from {a.name}.
        scene: end
    """)


def work_day(t: StoryBuilder) -> None:
    """Write a story: a day at work on which something goes wrong and is put right."""
    a, _ = t.start(hero="adult", friend="adult")
    where, does, tool = JOBS[a.job]
    t.bind(job=a.job, where=where, does=does)
    open_story(t)
    t.say(
        "(Every morning|On working days) {a} got up at (five|six|seven), (drank a cup of tea|had "
        "breakfast|kissed the children) and (went|walked|drove|cycled) to the {where}."
    )
    t.say(
        "<one_day> (everything went wrong|nothing went as it should|there was trouble): {trouble}.",
        trouble=t.pick(
            phrases(f"""the lights went out; the door would not open; the {tool} was broken;
            half the people were ill; a pipe burst; the keys had been left at home;
            the telephone did not stop ringing""")
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
        t.run_script("""
            {b} (repaired|fixed|arranged) everything (with a piece of wire|with a smile|in no time),
                and {a} could {does} (again|after all|as usual).
            (In the evening|At six o'clock|When the work was done) {a} (paid for {b.s} dinner|
                thanked {b.o}|shook {b.s} hand).
            ask: Who helped {a.name}? {b.name}
            summary: {a.name}, a {job}, had trouble at work, and {b.name} put it right.
            or: {b.name} helped {a.name} at the {where}.
            scene: end
        """)
    else:
        t.run_script("""
            But {b} (made it worse|could not do it either|had to leave early), and the {where}
                stayed closed (for the rest of the day|until <weekday>).
            summary: Everything went wrong at the {where}, and {a.name} could not work.
            or: {a.name}, a {job}, had a bad day.
            scene: sad_end
        """)


def doctor(t: StoryBuilder) -> None:
    """Write a story: someone falls ill, and what the doctor says helps."""
    _, b = t.meet("a", "child"), t.meet("b", "adult")
    b.job = t.pick(tuple(_ILLNESSES))
    b.job_known = True
    t.bind(illness=t.pick(_ILLNESSES[b.job]), job=b.job)
    t.run_script("""
        let: by = mother; father; aunt
        scene: open_alone
        <one_day> {a} woke up with {illness} and did not want to (get up|eat|play|go to school).
        ask: What was wrong with {a.name}? {illness}
        {a.s} {by} (called|sent for|took {a.o} to) the {job}, whose name was {b.full}.
        ask: What was the name of the {job}? {b.full}
        {a} was <afraid>, because {a.it} had heard that it (hurt|would hurt).
        "(Open your mouth|Sit down|Show me where it hurts), please," said {b}. "It will not take
            long."
    """)
    t.fact("capital")
    if t.chance(0.7):
        t.say('"{question}" asked {b}, (to take {a.s} mind off it|and smiled).')
    if t.sentences[-1].startswith('"W') and "capital" in t.sentences[-1]:
        t.say('"{answer}," {a} (whispered|said), and before {a.it} knew it, it was over.')
    t.run_script("""
        scene: aside
        "(Drink a lot of tea|Stay in bed for two days|Eat less sugar|Keep it clean and dry) and you
            will (be well soon|be on your feet by <weekday>)," {b} told {a.o}.
        (After two days|By <weekday>|A week later) {a} was (as fit as ever|running about again|quite
            well).
        summary: {a.name} had {illness}, and {b.name}, a {job}, helped {a.them}.
        or: {b.name} cured {a.name}, who had {illness}.
        scene: end
    """)


def flood(t: StoryBuilder) -> None:
    """Write a story: days of rain, a river over its banks, and people who help each other."""
    t.start("weather")
    t.run_script("""
        let: river = RIVERS
        thing: x = boat; ladder; box; clock; carpet; painting; chair; record
        scene: open
        (That|One) (autumn|spring) it rained for (three|six|ten) days(| and nights), and the {river}
            rose (higher and higher|by the hour).
        ask: Which river rose? {river}
        (By <weekday>|Soon|At night) the river flooded its banks, and water ran (down the street|
            into the cellars|over the fields).
        or: The bank of the river was (under water|flooded|washed away) (by <weekday>|before
            morning|in the night).
        or: The water came over the river bank (near the <place>|close to the <place>) (and into the
            gardens|in the night|and did not stop).
        or: On both banks of the {river} the (meadows|gardens|fields) were (flooded|under water) (by
            <weekday>|in the morning|as far as the <place>).
        "(Is our street safe|Will the bridge hold|What shall we do)?" <asked> {b.name}, who was
            <afraid>.
        "(We must|Let us) (carry everything upstairs|help the neighbours|fill bags with sand)," {a}
            <said>.
        let: to = up the stairs; to the attic; to a dry place
        event: a carry x; tail={to}; new
        scene: aside
        (All night|For hours) people from <town> stood in a line and (passed bags of sand from hand
            to hand|built a wall against the water|carried children and (dogs|hens|books) to the
            (church|school)).
        50% (A|The neighbour's) (cat|dog|goat) sat on the roof of a shed and (would not come down|
            cried for help), until {b} (fetched it|saved it) with a (boat|ladder).
        <next_day> the sun (came up|rose) (behind the clouds|over the hills) in the east, the rain
            stopped, and the (water|river) (went down|sank).
        There was mud (on every floor|everywhere|in every cellar|even by the <place>), but nobody
            (in <town> |)had been hurt.
        summary: The {river} flooded, and {a.name} and {b.name} helped the people of {a.town}.
        or: After days of rain the {river} flooded the town, but nobody was hurt.
        scene: end
    """)
