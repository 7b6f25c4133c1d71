"""Parts of speech of the stories' words: the tags that each may have.

The tags are Universal POS (Nivre et al. 2020, section 3.1).
Nouns and verbs are given in their base form; `morphology` inflects them. A word in several lists is
ambiguous, and `pos_tags` decides by its neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from firth.data.stories import lexicon
from firth.data.stories.morphology import gerund, participle, past, plural, third
from firth.data.stories.word_lists import words
from firth.data.stories.world import GARMENTS, TRAITS

_NOUNS = words("""act actor afternoon air airport anger animal answer ant apple apron arm art
    article athlete attic aunt autumn axe baby back baker bakery ball balloon bamboo banana band
    bandage bank barber bark barking barn baseball basket bat beach bean bear bed bee beekeeper
    beginning bell belt bench berry bicycle birch bird birthday biscuit bit blanket blood board
    boat bone book bookshop boot bottle bow bowl box boy bracelet branch brass bread breakfast
    breath bridge broom brother brush bucket builder building bun bunch burrow bus bush butcher
    butter button cabbage cake calculator calf camel camera candle cap capital car card care
    carpenter carpet carrot cart case castle cat cathedral cave cellar cello centre chair chalk
    change character cheese cherry chess chestnut chick chicken child chimney chocolate church
    cinema cinnamon circle circus city clapping classroom clay clerk climb clinic clock cloud
    coal coat coin collection colour compass computer concert cook cooking coop copper corn
    corner costume cottage cough country course court cousin cow crab crack cream cricket
    crocodile crow crowd crown crumb cub cup curry curtain cushion daisy dance dancing dark
    daughter day deer den dentist desert dessert diary dinner dish distance doctor dog doll
    donkey door doorbell doubt dough dozen dragon drawer drawing drink driver drum drummer duck
    duckling dust eagle ear east edge egg elephant end ending engine envelope evening experiment
    eye family farm farmer father fault fear feather fence fever field film finger finish fire
    firefighter fish fisherman fishing flag flat floor florist flour flower flowerpot flute fly
    foal fog food foot football forest fountain fox fridge friend frog front frost fruit
    furniture game garage garden gardener garlic gate geography ghost gift giraffe girl glass
    glove glue goat gold goldfish goose gosling gown grandfather grandmother grape grass
    greeting grocery ground guest guide guitar hail hair half hall ham hammer hand harbour
    hardware harm harp hat hay head headache heart heat hedge hedgehog help hen hill history
    hive hockey hole holiday home honey hope horse hose hospital hotel hour house hundred hunter
    hurry ice insect instrument interest iron island jacket jam jar jeweller joke journey joy
    judge jumper jungle kennel kettle key kick kid kind king kitchen kite kitten knee knife knot
    laboratory ladder lady lake lamb lamp language lantern laundry lead leaf leap leather leg
    lemon lemonade letter librarian library life light lighthouse lighting lightning lily line
    lion lip loaf lock lot love lunch magazine magnet mailman man map maple marble mark market
    match maths mayor meadow meal meat mechanic medal medicine metal microphone microscope
    midnight milk milkman mill mind mine miner minute mirror mist mistake moment money monkey
    month moon moral morning mother mountain mouse mouth mouthful mud museum mushroom music
    musician nail name necklace nectar needle neighbour nest net news newspaper night
    nightingale nod noise noodle noon north note notebook nurse nut oak office officer oil
    omelette onion opposite orchard order otter owl owner page paint paintbox painter painting
    pair pan pancake panda paper parcel park parrot passport past pastry path patience patient
    pear pen penguin penny pepper person pet pharmacy photograph photographer piano picnic
    picture pie piece pig piglet pile pillow pilot pine pipe pirate pity place plane plant plate
    player playground pleasure plot plum plumber pocket police policeman pond pool post postcard
    poster postman pot potato potter pottery price prize pudding pumpkin pupil puppy purse
    puzzle queen quiz rabbit race racer racket radio railway rain rainbow rake ray reading
    recipe record reed rent reporter rest restaurant ribbon rice ride ring river road roast roll
    roof room rooster rope rose row rowing rucksack runner running sack safety sail sailor salad
    salmon salt sand sandal sandwich sauce saucer sausage savanna scarf school science scientist
    scooter sea seal season seat second secret seed shade shadow shame shape shark shed sheep
    shelf shell shepherd ship shirt shoe shoemaker shop shopkeeper shopping shoulder shovel show
    side sigh sight sign sill singer sister site skateboard ski skin sky sled sleep smile smoke
    snail snake snow snowman soap sofa song sound soup south spade sparrow spice spider spoon
    spoonful sport spring square squirrel stable stair stall stamp star start station step stew
    stick stitch stomach stone store stork storm story stove stranger strawberry street strength
    string studio study sty sugar suitcase summer sun sunflower sunlight sunshine supper
    surprise swan sweet swim swimming sword table tadpole tail tailor tea teacher teapot tear
    teddy telephone telescope television tent test theatre thermometer thief thing throat thumb
    thunder ticket time tin toe tomato tool tooth toothache top torch tour towel tower town toy
    tractor train trap tray treat tree triangle trick trouble trumpet trunk tulip tune turn
    umbrella uncle vain vase vegetable veil vet view village violet violin visit visitor voice
    voyage waiter walk wall wallet war watch water waterfall way weather web week west whale
    wheel whistle willow wind window wing wink winter wire wolf woman wood word work workshop
    world worm worry wrench writer yard year zoo""")
_PLURAL_NOUNS = words("""ant bamboo banks blood calculator children clothes computer glasses
    gloves goldfish gown greetings groceries hose iron jungle news panda people pity recipe
    scales scissors shade sight sparrow thanks tractor treat veil wrench""")
_VERBS = words("""act agree answer arrange arrive ask avoid bake bark be beat begin believe
    belong bend bite blame bleat bloom blow blush boil book borrow bow bray break bring brush
    build burn burst buy buzz call calm care carry catch caw celebrate change cheer chew chirp
    choose chop circle clap clean clear climb close cluck collect come comfort complain cook
    cost cough count cover crack crawl croak cross crow cry cure cut cycle dance dare decide
    deliver dig disappear dislike divide draw dream dress drink drive drop earn eat empty end
    enjoy enter exclaim expect face fall fear feed feel fetch fight fill find finish fish fit
    fix flood flutter fly fold follow forget freeze gather get give glance go greet grow grunt
    guard hang hate hear help hide hiss hit hold honk hoot hop hope howl hug hurry hurt invite
    joke judge juggle jump keep kick kiss knit knock know land last laugh lead lean leap learn
    leave lend let lick lie lift light like listen live lock long look lose love make march mean
    measure meet melt mend meow mind miss mix moo move murmur need neigh nod notice offer open
    order pack paint park pass pay peel pick plant play point pour practise praise prepare press
    promise pull put quack rain raise read recommend record remember rent repair reply rest ride
    ring ripen rise roar roast roll row rub run rustle sail save say score search see seem sell
    send serve set sew shake share shine shout show shut sigh sing sink sit skate ski sleep slip
    smile smooth snore sound sow speak spend squeak stand start stay steal steer step stick stir
    stop straighten study surprise swallow sweep swim take talk taste teach tell tempt think
    throw tick tie touch train treat trumpet try turn understand unpack use visit wait wake walk
    want warm warn wash watch water wave wear weigh whisper whistle win wink wish wonder work
    worry wrap write yell""")
_VERB_FORMS = words("""beat born bought burnt burst chose cost crept does doing dreamt fled goes
    has having hummed humming hung hurt lay lent lit mixed named regretted sank sat saved says
    shot shown slammed slept smelt spilt spoilt stepped struck swept swollen swung tempted thank
    thanked travelled wagged wondered""")
_AUX = words("""am is are was were be been being can could will would shall should may might
    must cannot""")
_ADJECTIVES = words("""able afraid alone amusing ancient angry annoyed asleep awake awful bad
    beautiful best better big biggest black blue blunt bored boring brand-new brave bright
    brilliant brown busy careful charming cheap cheerful clean clever close cloudy clumsy cold
    comfortable confusing correct cosy cowardly crisp cross crowded curious cute cutest dark
    dazzling dear deep delicious delighted delightful determined difficult dirty disappointed
    disappointing disgusting dreadful dreary dry dull dusty early easy embarrassing empty
    enchanting excellent exciting exhausted fair familiar fantastic fascinating fast faster few
    filthy fine finest first fit flat foggy following fond foolish fresh friendly frightened
    frosty full funniest funny furious gentle glad gloomy glorious golden good graceful greasy
    great greedy green grey gripping guilty happier happy hard heavenly heavy high higher
    hilarious hollow honest hopeless horrible hot huge hungry icy ill important inspiring
    interesting juicy kind large last late laziest lazy less lifeless light little lively lonely
    long longer loud loveliest lovely low many memorable merry messy mild miserable missing more
    most moving much narrow nasty nervous new next noisy old only open orange original other
    overjoyed painful pale patient peaceful perfect pink plain pleasant pleased pointless polite
    poor possible powerful predictable pretty proud purple quick quiet rainy red rich right ripe
    rough round ruined sad safe salty same scared second shabby shallow sharp shining shiny
    short shy sick silent silly silver simple single sleepy slow sly small smart soft soggy sore
    sorry sour splendid stale steep stormy straight strange straw strong stubborn stupid such
    sunny superb sure sweet swollen tall tasteless tasty tedious terrible thick thin thirsty
    thrilling tight tiny tired tiresome true unfriendly unhappy unlucky unpleasant upset used
    usual warm weak weary well wet white whole wide wild windy witty wonderful wooden woollen
    worn worried worse worth wrong yellow young""")
_ADVERBS = words("""after afterwards again ago ahead all almost alone aloud already also always
    angrily as away back badly before best better carefully certainly cheerfully close
    completely dearly deep early else enough even ever everywhere exactly far fast faster first
    forward gently gladly happily hard hardly here high higher home how indeed inside instead
    just last late later less little long longer loosely loudly low merrily more most mostly
    much nearer nearly never next now nowhere o'clock often once only outside patiently proudly
    quickly quietly quite rather really right sadly seldom slowly so softly sometimes somewhere
    soon still straight suddenly terribly then there throughout today together tomorrow tonight
    too truly twice unhappily upside upstairs usually very well when whenever where why wrong
    yesterday yet""")
_CLOSED = {
    "ADP": """about above across after against along among around as at before behind beside
        between but by down during for from in inside into like near next of off on opposite out
        outside over past round since than through throughout to towards under until up upon
        with without worth""",
    "AUX": " ".join(_AUX) + " had have has do did does having done",
    "CCONJ": """and both but either or yet""",
    "DET": """a all an another any both each either every half no some such that the these this
        those what which""",
    "INTJ": """goodbye no please well yes""",
    "NUM": """eight eighteen eleven fifteen five four fourteen hundred nine nineteen one seven
        seventeen six sixteen sixty ten thirteen three twelve twenty two zero""",
    "PART": "to not 's '",
    "PRON": """all anybody anyone anything everybody everyone everything he her herself him
        himself his i it its me mine my nobody nothing one ones oneself others our she some
        somebody something that their them themselves there these they this those us we what
        which who whoever whose you your""",
    "SCONJ": """after although as because before for if once since so than that until whenever
        while""",
    "VERB": " ".join((*_AUX[:8], *_VERB_FORMS)) + " had have has do did does having done",
    "PUNCT": """. , ; : ! ? " ' ( ) -""",
}


@cache
def possible_tags() -> dict[str, frozenset[str]]:
    """Return the tags that each word may have, in lower case.

    >>> sorted(possible_tags()["watches"]), sorted(possible_tags()["kite"])
    (['NOUN', 'VERB'], ['NOUN'])
    """
    found: dict[str, set[str]] = defaultdict(set)
    named = (word for text in (*lexicon.THINGS, *lexicon.JOBS) for word in text.split()[-1:])
    for noun in (*_NOUNS, *named, *GARMENTS):
        found[noun].add("NOUN")
        found[plural(noun)].add("NOUN")
    for verb in _VERBS:
        for form in (verb, third(verb), past(verb), participle(verb), gerund(verb)):
            found[form].add("VERB")
    adjectives = (*_ADJECTIVES, *lexicon.COLOURS, *lexicon.SIZES, *lexicon.AGES, *lexicon.LOOKS)
    lists = {
        "NOUN": _PLURAL_NOUNS,
        "ADJ": (*adjectives, *TRAITS),
        "ADV": _ADVERBS,
        "PROPN": ("Easter", *lexicon.WEEKDAYS, *map(plural, lexicon.WEEKDAYS), *lexicon.MONTHS),
        **{tag: words(text) for tag, text in _CLOSED.items()},
    }
    for tag, members in lists.items():
        for word in members:
            found[word.lower()].add(tag)
    return {word: frozenset(tags) for word, tags in found.items()}


@cache
def base_forms() -> frozenset[str]:
    """Return the infinitives of the verbs."""
    return frozenset((*_VERBS, "be", "have", "do"))


@cache
def participles() -> frozenset[str]:
    """Return the past participles of the verbs."""
    return frozenset((*map(participle, _VERBS), *_VERB_FORMS, "been", "had", "done"))
