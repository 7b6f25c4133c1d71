"""Phrases that any story may use: times, moods, manners, exclamations. Rules of the grammar."""

from __future__ import annotations

from firth.data.stories.knowledge import ANIMALS, COUNTRIES, FAR, WEIGHTED_COUNTRIES
from firth.data.stories.lexicon import HIDING, JOBS, MONTHS, PLACES, TOWNS, WEEKDAYS
from firth.data.stories.morphology import past
from firth.data.stories.word_lists import words

# details that make a common sentence unique to a story; each is used at most once in a story
PASSERS_BY = words("young old tall tired friendly sleepy busy cheerful thin polite noisy quiet")
CLAUSES = (
    ", while {z} (looked on|went by|stood at the gate|watched from a window|waited for the bus)",
    ", (and|while) {z} (smiled|nodded|listened|whistled|coughed|said nothing)",
    ", and {a} (straightened|pulled at|touched|smoothed|looked down at) {a.s} {wears}",
    ", and {a} thought of {k.a} (that {a.it} had left <hidden>|{a.it} had once seen in <capital>|"
    "{a.it} had lost near the <place>)",
    ", and again {a} thought of {k.the}",
    ", while (the shadow of a cloud lay|mist lay|sunlight lay|a light rain fell|evening fell|the "
    "smoke of chimneys hung) over the (roofs|streets|gardens|squares) of {town_}",
    ", as {a} (told|wrote to) {a.s} <relative> in <capital>, (afterwards|that evening|years later|"
    "on <weekday>)",
    ", and (somewhere near|not far from|behind) the <place> a <cry>",
)
GESTURES = (
    ", (straightening|pulling at|touching|smoothing|playing with) {their} {wears}",
    ", (looking|nodding|waving|smiling|glancing) at {z.o}",
    ", with (a smile|a wink|a nod|a friendly word) for {z.o}",
    ", (rubbing|hiding|warming|folding) {their} hands",
)

_RULES = {
    "weekday": "|".join(WEEKDAYS),
    "month": "|".join(MONTHS),
    "daypart": "morning|morning|afternoon|evening",
    "sky": "sunny|rainy|windy|cold|warm|hot|foggy|grey|bright|quiet|frosty|stormy|cloudy|fine",
    "one_day": """one day|one <daypart>|one <sky> <daypart>|on <weekday>|one <weekday>|
        on <weekday> <daypart>|on a <sky> day in <month>|one <daypart> in <month>|
        on a <sky> <weekday>|early one <daypart>|one <sky> day|late one <daypart>""",
    "later": """later that day|that <daypart>|a little later|after a while|an hour later|
        soon afterwards|before long|in the afternoon|by evening|not long after that|at last|
        some time later|after lunch|towards evening|half an hour later""",
    "next_day": """the next day|the next morning|the following day|on the following <daypart>|
        two days later|three days later|a week later|the day after|early the next morning|
        the following <weekday>""",
    "ago": "yesterday|last week|last <weekday>|two days ago|last summer|a month ago|this morning",
    "soon": "tomorrow|next week|on <weekday>|tonight|soon|next month|this afternoon|one day",
    "glad": "happy|glad|pleased|delighted|cheerful|proud|(very|so) happy|full of joy|overjoyed",
    "sad": "sad|unhappy|upset|miserable|disappointed|close to tears|(very|so) sad|gloomy",
    "angry": "angry|furious|cross|annoyed|(very|really) angry|red with anger",
    "afraid": "afraid|frightened|scared|nervous|(very|quite) afraid|pale with fear|worried",
    "tired": "tired|exhausted|sleepy|worn out|too tired to speak|weary",
    "gladly": "happily|gladly|cheerfully|proudly|with a smile|with shining eyes|merrily",
    "sadly": "sadly|with a sigh|unhappily|in a low voice|with tears in {a.s} eyes|quietly",
    "quickly": "quickly|at once|as fast as possible|in a hurry|without waiting|straight away",
    "slowly": "slowly|carefully|step by step|bit by bit|patiently|without hurrying|gently",
    "very": "very|so|really|quite|rather|terribly|truly",
    "said": "said|said|answered|replied|called|whispered|laughed|murmured",
    "asked": "asked|wondered|cried|asked",
    "shouted": "shouted|cried|called|yelled|exclaimed",
    "thought": "thought|said to {a.self}|told {a.self}|decided",
    "yes": "Yes|Of course|Certainly|Gladly|Why not|All right|Yes, please|With pleasure",
    "no": "No|Not at all|I am afraid not|Certainly not|Never|No, I do not think so",
    "thanks": """Thank you|Thank you so much|Thanks a lot|How kind of you|I will never forget this|
        You are a true friend|I do not know what I would do without you""",
    "relative": "mother|father|grandmother|grandfather|aunt|uncle|sister|brother|cousin",
    "together": "together|side by side|with one another|hand in hand",
    "food_talk": "bread and cheese|soup|tea and biscuits|apple cake|sandwiches|hot chocolate",
    "weather_now": """the sun was shining|it was raining (a little|hard|again)|
        a cold wind was blowing|the sky was grey|there was not a cloud in the sky|
        the air smelt of rain|the leaves were turning (red|yellow|brown)|mist hung over the fields|
        it was <very> warm|birds were singing in the trees|the wind shook the (branches|windows)|
        the sun (had just come up|was just coming up) in the east|
        the sun was (going down|sinking|setting) in the west|the moon was bright|
        frost covered the (grass|windows)|thunder rolled far away""",
    "moral": """A friend in need is a friend indeed|
        Whoever asks for help will find it|You learn more from a mistake than from a prize|
        Good things come to those who wait|Small steps lead far|Two heads are better than one|
        Nobody is too small to help|Look before you leap|A kind word costs nothing""",
    "sound_around": """somewhere a dog was barking|a bell rang in the (distance|village|church)|
        a clock struck (four|six|nine|ten|twelve)|a cat meowed (on the roof|under the window)|
        far away a train whistled|cows were mooing in the (meadow|barn)|an owl hooted in the dark|
        the bees buzzed among the flowers|ducks quacked on the pond|a rooster crowed|
        the old clock ticked on the wall|children were laughing in the street|
        a horse neighed in the stable|frogs croaked in the reeds""",
    "dog_target": """mailman|mailman|mailman|mailman|mailman|mailman|postman|cat|stranger|
        visitor|milkman|neighbour|doorbell|moon|passing car|strangers at the gate|
        mailman's bicycle|new mailman""",
    "barks": "barked|barked loudly|barked and barked|barked again|barked angrily|barked twice",
    # words with two senses, in both senses
    "errand": """store to buy (milk|milk|milk|milk|eggs|sugar|flour|butter|rice|cheese)|
        store to buy (milk|milk|eggs|tea|salt)|shop to buy (milk|milk|eggs|sugar|cheese)|
        bakery to buy (bread|rolls|buns)|market to buy (apples|pears|carrots|onions)|
        flower shop to buy (roses|tulips)|bookshop to buy (books|maps)|post office to buy stamps|
        pharmacy to buy medicine|shoe shop to buy boots""",
    "senses": """{a} ran a hand over the rough bark of (a|an old|a tall) (birch|oak|pine|willow)
        near the <place>|
        a <job> was trying to park a (red|blue|green|white|black) car in front of the <place>|
        a <job> from <town> sat in the park and (read|slept|fed the birds)|
        in the church of <town> the bells began to ring|
        {a} saw a <job> with a silver ring on one finger|
        the bank was closed, and a <job> from <town> knocked at its door in vain|
        on the bank of the river a <job> from <town> was fishing|
        {a.s} bag was as light as a feather|
        somebody turned on the light in the <place>|
        it was getting light over the <place>|
        a <job> from <town> went by with a cute little (puppy|kitten|lamb)|
        a <job> from <town> thought it was cute to (whistle|hide|play a trick), but nobody laughed|
        {a} stopped to watch (a <job>|the boats|the clouds) (for a minute|near the <place>)|
        {a} looked at the watch that {a.s} <relative> from <town> had given {a.o}|
        a <job> wanted to record the song of a (bird|frog|nightingale) near the <place>|
        from a window came the sound of an old record that {a.s} <relative> had loved|
        a <job> from <town> had just broken the record in (swimming|running|jumping)|
        a bat (flew|fluttered|circled) around the (roof|lamp|tower) of the <place>|
        two boys from <town> were playing with a bat and a ball near the <place>|
        a <job> struck a match and lit (a lamp|a candle|the stove)|
        the match between <town> and {town_} was to begin at (two|three|four)|
        {a} wrote a letter to {a.s} <relative> in <capital>|
        {a} could not read the first letter of the sign at the <place>""",
    "job": "|".join(JOBS),
    "town": "|".join(TOWNS),
    "capital": "|".join(
        f"({COUNTRIES[c][0]}, the capital of {c}|the capital of {c}, {COUNTRIES[c][0]})"
        for c in WEIGHTED_COUNTRIES
    ),
    "place": "|".join(PLACES),
    "hidden": "|".join(HIDING),
    "cry": "|".join(
        f"{animal} {past(row[0])}" for animal, row in ANIMALS.items() if animal not in FAR
    ),
}
RULES = {name: " ".join(text.split()).replace("| ", "|") for name, text in _RULES.items()}
