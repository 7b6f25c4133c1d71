"""Plots among animals: fables, a cat in a tree, a night at the farm."""

from __future__ import annotations

from firth.data.stories.knowledge import FOOD_OF
from firth.data.stories.lexicon import TREES
from firth.data.stories.scenes import (
    did_you_know,
    end_story,
    open_story,
    wild_sounds,
)
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import words
from firth.data.stories.world import StoryEntity

_WALKERS = words("fox bear wolf rabbit squirrel mouse hedgehog goat donkey lion monkey deer frog")
_ADJECTIVES = words(
    "clever lazy proud hungry old young greedy kind lonely brave shy sly quick vain cute"
)


def fable(t: StoryBuilder) -> None:
    """Write a story: two animals, a wish for food, a trick or a kindness, and a moral."""
    one, two = t.sample(_WALKERS, 2)
    adj, adj2 = t.sample(_ADJECTIVES, 2)
    a = StoryEntity(one, "m" if t.chance(0.5) else "f", adjective=adj)
    b = StoryEntity(two, "n", adjective=adj2)
    t.topic = "animals"
    t.roles["z"] = StoryEntity(t.pick(("owl", "crow", "stork", "snail")), adjective="old")
    t.bind(a=a, b=b, one=one, two=two, food=FOOD_OF.get(one, "berries"))
    t.run_script("""
        let: tree = TREES
        Once upon a time {a.a} lived (in a (deep|dark|green) forest|at the edge of a forest|near a
            river).
        or: There was once {a.a} who (was always hungry|had no friends|feared nobody|slept all day).
        or: In a forest (far away|behind the hills) there lived {a.a} and {b.a}.
        or: Long ago, when animals could speak, {a.a} met {b.a}.
        (That winter|One day|After a long summer) there was nothing to eat, and {a.the} (had had no|
            dreamt of|longed for) {food}(| for days).
        {a} went from (tree to tree|door to door|hill to hill) and (asked everyone|looked
            everywhere), but found nothing.
        (Then|At last|Under a {tree} tree) {a} met {b.the}, who (had a whole (basket|sack|store) of
            {food}|was carrying {food}).
        ask: What did {b.the} have? {food}
        "(Give me some {food}, or I will be angry|Will you share your {food} with me, friend|What
            fine {food} you have)!" said {a.the}.
    """)
    mood = t.rng.random()
    if mood < 0.45:
        t.run_script("""
            "(Nobody should be hungry|Take what you need|There is enough for two)," {b.the} answered
                and (shared|divided) the {food}.
            {a} ate and ate, and (promised never to forget it|was <glad>|bowed).
            <next_day> {b.the} fell into a (hole|trap|river), and {a.the} heard it and (ran|came) to
                help.
            "(You helped me, and now I help you|Now we are even|Hold on to my tail)," said {a.the}.
            summary: A {two} shared its {food} with a {one} and was helped in return.
            or: A {one} saved a {two} that had been kind.
        """)
    elif mood < 0.75:
        t.run_script("""
            "(First close your eyes and count to ten|Look, the hunters are coming|Sing for me
                first)," said {b.the}, who was cute enough to know what to do.
            {a} did so, and {b.the} (ran away|climbed up a tree|disappeared) with all the {food}.
            {a} (looked|felt) very (foolish|stupid) and <angry>.
            summary: A {two} tricked a {one} and kept its {food}.
            or: A {one} wanted {food}, but a {two} was cleverer.
        """)
    else:
        t.run_script("""
            "(No|Never)," {b.the} said. "(Who does not work shall not eat|You slept all summer while
                I worked)."
            {a} went away (with an empty stomach|hungry and <sad>|without a word).
            (The next summer|From then on) {a.the} worked hard and had {food} (enough for two
                winters|all year round).
            summary: A {two} would not give a {one} any {food}, and the {one} learned to work.
            or: A {one} learned to work.
        """)
    t.run_script("""
        50% The sun went down (slowly|red and round) (in the west|behind the hills in the west), and
            the forest grew dark.
        "<moral>," say the old animals.
        or: <moral>.
        or: And the moral is: <moral>.
        or: That is why the {one} and the {two} are (friends|no friends) to this day.
    """)


def rescue(t: StoryBuilder) -> None:
    """Write a story: a pet is missing or stuck, and people get it back."""
    a, _ = t.start("animals")
    pet = a.pet = t.own("pet", t.pick(("cat", "cat", "dog", "goat", "rabbit", "parrot", "hen")))
    where = t.pick(
        {
            "cat": ("up in a {tree} tree", "on the church roof"),
            "dog": ("in a well", "behind the station"),
        }.get(pet.noun, ("in the neighbour's shed", "under a bridge"))
    )
    t.bind(tree=t.pick(TREES), species=pet.noun)
    t.bind(where=t.words(where))
    t.run_script("""
        scene: open
        {a} had a {species} (called|named) {pet.name}, (and the two were always together|who was
            (three|five|seven) years old|the (cutest|laziest|funniest) {species} in town).
        ask: What kind of animal was {pet.name}? {species}
        scene: sounds
        <one_day> {pet} did not come (home|when {a} called|for {pet.s} supper).
        "Have you seen my {species}?" {a} asked (everyone in the street|{b.o}|the mailman).
        "(No|I have not seen a {species} all day|Not since yesterday)," said {b}. "But I will help
            you look."
        scene: weather
        (They called and called|They looked under every bush|{a} put up posters), and <later> they
            heard a (soft|strange|familiar) sound.
        There was {pet}, {where}, (afraid to move|hungry and cold|and could not get out).
        ask: Where was {pet.name}? {where}
        thing: x = ladder; rope; basket; blanket; net
        event: b fetch x; time=<quickly>; new
        {a} climbed up and (took|lifted|carried) {pet.o} (down|out|to safety).
        or: With it they (got|pulled|lifted) {pet.o} out.
        or: It took (an hour|half the night), but then {pet.name} was safe.
        At home {pet} (ate everything in the bowl|slept for a whole day|would not leave {a.o}
            alone).
        summary: {a.name}'s {species} {pet.name} was found {where} and saved.
        or: {a.name} and {b.name} saved {pet.name}, who was {where}.
        scene: end
    """)


def camp(t: StoryBuilder) -> None:
    """Write a story: a night outside, stars and noises, and the sunrise."""
    t.start("travel")
    t.run_script("""
        let: site = in the forest; by the lake; on the hill; at the beach; in the mountains; on the
            island
        thing: x = tent; lantern; blanket; telescope; guitar; compass
        scene: open
        <one_day> {a} and {b} (set out|left home|packed their rucksacks) to spend a night {site}.
        ask: Where did they spend the night? {site}
        event: a bring x; new
        {b} (gathered wood|struck a match|lit a fire), and they (roasted potatoes|boiled water|ate
            <food_talk>).
        scene: weather
        In the dark (something|a branch) (cracked|moved|rustled), and {b} was <afraid>.
        "It is only a (fox|hedgehog|deer|mouse|owl)," <said> {a}. "(Go back to sleep|Look, there it
            runs|It is more afraid than you)."
        They (watched|counted|looked at) the stars, and {a} told {b.o} a story about (pirates|a
            ghost|the moon|a dragon).
        scene: aside
        (Early in the morning|At five o'clock) they watched the sun come up in the east.
        or: "Where does the sun come up?" asked {b}, and {a} pointed to the east.
        or: When the sun rose (in the east|over the trees in the east), they were (already awake|
            still asleep).
        or: In the east the sun was rising, (red as an apple|slow and golden|and the birds began to
            sing).
        or: They sat facing east, because that is where the sun rises.
        (On the way home|At breakfast) {b} said that {b.it} had not (slept|been afraid) (at all|for
            a moment), and {a} laughed.
        summary: {a.name} and {b.name} spent a night {site}.
        or: {a.name} and {b.name} camped {site} and saw the sun rise.
        scene: end
    """)


def letter(t: StoryBuilder) -> None:
    """Write a story: the mailman comes, the dog barks, and there is news in the letter."""
    a, _ = t.start("animals")
    a.pet = dog = t.own("pet", "dog")
    t.bind(name=a.name)
    open_story(t)
    if not any(dog.name in s for s in t.sentences):
        t.say(
            "{a} had a (big|small|brown|black|clever) dog (called|named) {pet.name}(|, who "
            "guarded the house)."
        )
        t.ask("What was the name of {a.name}'s dog?", "{pet.name}")
    t.run_script("""
        Every (morning|day), when the mailman came, {pet} <barks>.
        or: The dog barked at the mailman (every morning|whenever he came|so loudly that the windows
            shook).
        or: (Each day|Day after day) {pet} <barks> at the mailman, (who was a patient man|and the
            mailman sighed).
        or: When the mailman opened the gate, the dog barked loudly and (jumped up|ran in circles).
        "(Why does your dog bark at me|What have I done to your dog|Does your dog bark at
            everyone)?" asked the (mailman|postman)(|, who came from <town>|, a friendly man|, who
            was new in <town>).
        "(Dogs bark at strangers|All dogs bark|It is only a game)," {a} <said>. "(Give {pet.them} a
            bone and you will be friends|Tomorrow it will be better|Do not be afraid)."
        <next_day> the mailman brought a bone, (and the dog stopped barking|and {pet} wagged {pet.s}
            tail|and there was no barking at all).
        scene: aside
        let: far = Spain; Canada; Italy; Japan
        That day there was also a letter from {b.o}(|, who had moved to {far}|, who was on a
            journey).
        ask: Who was the letter from? {b.name}
        "Dear {name}, (I will come and see you|I am coming home) <soon>," it said.
    """)
    did_you_know(t) if t.chance(0.3) else wild_sounds(t)
    t.sum_up(
        "{a.name}'s dog barked at the mailman until he brought a bone.",
        "The mailman and {a.name}'s dog became friends.",
    )
    end_story(t)
