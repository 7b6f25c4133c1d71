"""Plots among animals: fables, a cat in a tree, a night at the farm."""

from __future__ import annotations

from firth.data.stories.knowledge import FOOD_OF, HOME_OF
from firth.data.stories.lexicon import TREES
from firth.data.stories.scenes import (
    aside,
    close,
    did_you_know,
    open_story,
    sounds,
    weather,
    wild_sounds,
)
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.world import StoryEntity

_WALKERS = tuple(
    "fox bear wolf rabbit squirrel mouse hedgehog goat donkey lion monkey deer frog".split()
)
_ADJECTIVES = tuple(
    "clever lazy proud hungry old young greedy kind lonely brave shy sly quick vain cute".split()
)


def fable(t: StoryBuilder) -> None:
    """Two animals, a wish for food, a trick or a kindness, and a moral."""
    one, two = t.sample(_WALKERS, 2)
    adj, adj2 = t.sample(_ADJECTIVES, 2)
    a, b = (
        StoryEntity(one, "m" if t.chance(0.5) else "f", adjective=adj),
        StoryEntity(two, "n", adjective=adj2),
    )
    t.topic = "animals"
    food = FOOD_OF.get(one, "berries")
    t.roles["z"] = StoryEntity(t.pick(("owl", "crow", "stork", "snail")), adjective="old")
    t.bind(a=a, b=b, food=food, home=HOME_OF.get(one, "forest"), tree=t.pick(TREES))
    t.one_of(
        "Once upon a time {a.a} lived (in a (deep|dark|green) forest|at the edge of a forest|near "
        "a river).",
        "There was once {a.a} who (was always hungry|had no friends|feared nobody|slept all day).",
        "In a forest (far away|behind the hills) there lived {a.a} and {b.a}.",
        "Long ago, when animals could speak, {a.a} met {b.a}.",
    )
    t.say(
        "(That winter|One day|After a long summer) there was nothing to eat, and {a.the} (had had "
        "no|dreamt of|longed for) {food}(| for days)."
    )
    t.say(
        "{a} went from (tree to tree|door to door|hill to hill) and (asked everyone|looked "
        "everywhere), but found nothing."
    )
    t.say(
        "(Then|At last|Under a {tree} tree) {a} met {b.the}, who (had a whole (basket|sack|store) "
        "of {food}|was carrying {food})."
    )
    t.ask("What did {b.the} have?", food)
    t.say(
        '"(Give me some {food}, or I will be angry|Will you share your {food} with me, friend|'
        'What fine {food} you have)!" said {a.the}.'
    )
    mood = t.rng.random()
    if mood < 0.45:
        t.say(
            '"(Nobody should be hungry|Take what you need|There is enough for two)," {b.the} '
            "answered and (shared|divided) the {food}."
        )
        t.say("{a} ate and ate, and (promised never to forget it|was <glad>|bowed).")
        t.say(
            "<next_day> {b.the} fell into a (hole|trap|river), and {a.the} heard it and (ran|"
            "came) to help."
        )
        t.say(
            '"(You helped me, and now I help you|Now we are even|Hold on to my tail)," said '
            "{a.the}."
        )
        t.sum_up(
            f"A {two} shared its {food} with a {one} and was helped in return.",
            f"A {one} saved a {two} that had been kind.",
        )
    elif mood < 0.75:
        t.say(
            '"(First close your eyes and count to ten|Look, the hunters are coming|Sing for me '
            'first)," said {b.the}, who was cute enough to know what to do.'
        )
        t.say(
            "{a} did so, and {b.the} (ran away|climbed up a tree|disappeared) with all the {food}."
        )
        t.say("{a} (looked|felt) very (foolish|stupid) and <angry>.")
        t.sum_up(
            f"A {two} tricked a {one} and kept its {food}.",
            f"A {one} wanted {food}, but a {two} was cleverer.",
        )
    else:
        t.say(
            '"(No|Never)," {b.the} said. "(Who does not work shall not eat|You slept all summer '
            'while I worked)."'
        )
        t.say("{a} went away (with an empty stomach|hungry and <sad>|without a word).")
        t.say(
            "(The next summer|From then on) {a.the} worked hard and had {food} (enough for two "
            "winters|all year round)."
        )
        t.sum_up(
            f"A {two} would not give a {one} any {food}, and the {one} learned to work.",
            f"A {one} learned to work.",
        )
    t.maybe(
        0.5,
        "The sun went down (slowly|red and round) (in the west|behind the hills in the west), and "
        "the forest grew dark.",
    )
    t.one_of(
        '"<moral>," say the old animals.',
        "<moral>.",
        "And the moral is: <moral>.",
        "That is why the {one} and the {two} are (friends|no friends) to this day.",
        one=one,
        two=two,
    )


def rescue(t: StoryBuilder) -> None:
    """A pet is missing or stuck, and people get it back."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "animals"
    pet = a.pet = t.own("pet", t.pick(("cat", "cat", "dog", "goat", "rabbit", "parrot", "hen")))
    where = t.pick(
        {
            "cat": ("up in a {tree} tree", "on the church roof"),
            "dog": ("in a well", "behind the station"),
        }.get(pet.noun, ("in the neighbour's shed", "under a bridge"))
    )
    t.bind(tree=t.pick(TREES), species=pet.noun)
    where = t.words(where)
    t.bind(where=where)
    open_story(t, a)
    t.say(
        "{a} had a {species} (called|named) {pet.name}, (and the two were always together|who was "
        "(three|five|seven) years old|the (cutest|laziest|funniest) {species} in town)."
    )
    t.ask("What kind of animal was {pet.name}?", pet.noun)
    sounds(t)
    t.say("<one_day> {pet} did not come (home|when {a} called|for {pet.s} supper).")
    t.say('"Have you seen my {species}?" {a} asked (everyone in the street|{b.o}|the mailman).')
    t.say(
        '"(No|I have not seen a {species} all day|Not since yesterday)," said {b}. "But I will '
        'help you look."'
    )
    weather(t)
    t.say(
        "(They called and called|They looked under every bush|{a} put up posters), and <later> "
        "they heard a (soft|strange|familiar) sound."
    )
    t.say("There was {pet}, {where}, (afraid to move|hungry and cold|and could not get out).")
    t.ask("Where was {pet.name}?", where)
    t.thing("x", ("ladder", "rope", "basket", "blanket", "net"))
    t.happen("b", "fetch", "x", time="<quickly>", new=True)
    t.one_of(
        "{a} climbed up and (took|lifted|carried) {pet.o} (down|out|to safety).",
        "With it they (got|pulled|lifted) {pet.o} out.",
        "It took (an hour|half the night), but then {pet.name} was safe.",
    )
    t.say(
        "At home {pet} (ate everything in the bowl|slept for a whole day|would not leave {a.o} "
        "alone)."
    )
    t.sum_up(
        "{a.name}'s {species} {pet.name} was found {where} and saved.",
        "{a.name} and {b.name} saved {pet.name}, who was {where}.",
    )
    close(t)


def camp(t: StoryBuilder) -> None:
    """A night outside, stars and noises, and the sunrise."""
    a = t.meet("a")
    t.meet("b", like="a")
    t.topic = "travel"
    place = t.pick(
        (
            "in the forest",
            "by the lake",
            "on the hill",
            "at the beach",
            "in the mountains",
            "on the island",
        )
    )
    t.thing("x", ("tent", "lantern", "blanket", "telescope", "guitar", "compass"))
    t.bind(place=place)
    open_story(t, a)
    t.say(
        "<one_day> {a} and {b} (set out|left home|packed their rucksacks) to spend a night {place}."
    )
    t.ask("Where did they spend the night?", place)
    t.happen("a", "bring", "x", new=True)
    t.say(
        "{b} (gathered wood|struck a match|lit a fire), and they (roasted potatoes|boiled water|"
        "ate <food_talk>)."
    )
    weather(t)
    t.say("In the dark (something|a branch) (cracked|moved|rustled), and {b} was <afraid>.")
    t.say(
        '"It is only a (fox|hedgehog|deer|mouse|owl)," <said> {a}. "(Go back to sleep|Look, there '
        'it runs|It is more afraid than you)."'
    )
    t.say(
        "They (watched|counted|looked at) the stars, and {a} told {b.o} a story about (pirates|a "
        "ghost|the moon|a dragon)."
    )
    aside(t)
    t.one_of(
        "(Early in the morning|At five o'clock) they watched the sun come up in the east.",
        '"Where does the sun come up?" asked {b}, and {a} pointed to the east.',
        "When the sun rose (in the east|over the trees in the east), they were (already awake|"
        "still asleep).",
        "In the east the sun was rising, (red as an apple|slow and golden|and the birds began to "
        "sing).",
        "They sat facing east, because that is where the sun rises.",
    )
    t.say(
        "(On the way home|At breakfast) {b} said that {b.it} had not (slept|been afraid) (at all|"
        "for a moment), and {a} laughed."
    )
    t.sum_up(
        "{a.name} and {b.name} spent a night " + place + ".",
        "{a.name} and {b.name} camped " + place + " and saw the sun rise.",
    )
    close(t)


def letter(t: StoryBuilder) -> None:
    """The mailman comes, the dog barks, and there is news in the letter."""
    a, b = t.meet("a"), t.meet("b", like="a")
    t.topic = "animals"
    a.pet = dog = t.own("pet", "dog")
    open_story(t, a)
    if not any(dog.name in s for s in t.sentences):
        t.say(
            "{a} had a (big|small|brown|black|clever) dog (called|named) {pet.name}(|, who "
            "guarded the house)."
        )
        t.ask("What was the name of {a.name}'s dog?", dog.name)
    t.one_of(
        "Every (morning|day), when the mailman came, {pet} <barks>.",
        "The dog barked at the mailman (every morning|whenever he came|so loudly that the windows "
        "shook).",
        "(Each day|Day after day) {pet} <barks> at the mailman, (who was a patient man|and the "
        "mailman sighed).",
        "When the mailman opened the gate, the dog barked loudly and (jumped up|ran in circles).",
    )
    t.say(
        '"(Why does your dog bark at me|What have I done to your dog|Does your dog bark at '
        'everyone)?" asked the (mailman|postman)(|, who came from <town>|, a friendly man|, who '
        "was new in <town>)."
    )
    t.say(
        '"(Dogs bark at strangers|All dogs bark|It is only a game)," {a} <said>. "(Give '
        '{pet.them} a bone and you will be friends|Tomorrow it will be better|Do not be afraid)."'
    )
    t.say(
        "<next_day> the mailman brought a bone, (and the dog stopped barking|and {pet} wagged "
        "{pet.s} tail|and there was no barking at all)."
    )
    aside(t)
    t.say(
        "That day there was also a letter from {b.o}(|, who had moved to {far}|, who was on a "
        "journey).",
        far=t.pick(("Spain", "Canada", "Italy", "Japan")),
    )
    t.ask("Who was the letter from?", b.name)
    t.say('"Dear {name}, (I will come and see you|I am coming home) <soon>," it said.', name=a.name)
    did_you_know(t) if t.chance(0.3) else wild_sounds(t)
    t.sum_up(
        "{a.name}'s dog barked at the mailman until he brought a bone.",
        "The mailman and {a.name}'s dog became friends.",
    )
    close(t)
