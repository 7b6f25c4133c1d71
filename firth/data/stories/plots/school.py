"""Plots of learning: a lesson, a skill, a book."""

from __future__ import annotations

from firth.data.stories.knowledge import NUMBERS
from firth.data.stories.lexicon import SKILLS
from firth.data.stories.reviews import opinion_clauses
from firth.data.stories.scenes import aside, end_story
from firth.data.stories.story_builder import StoryBuilder
from firth.data.stories.word_lists import words

_QUIZ_TOPICS = 9 * ("capital",) + words("""sun sun opposite colour tool sound food young count day
    season kind shop job month language home""")


def lesson(t: StoryBuilder) -> None:
    """Write a story: a lesson or a quiz: questions, right and wrong answers, a mark at the end."""
    t.start("school", hero="child", friend="child")
    c = t.meet("c", "adult")
    c.job = "teacher"
    c.job_known = True
    t.run_script("""
        let: school = SCHOOLS
        let: subject = CLASSES
        scene: open
        {a} and {b} (went to|were pupils at) {school}, and their (teacher|{subject} teacher) was
            called {c.full}.
        ask: What was the teacher called? {c.full}
        <one_day> {c} (walked into the classroom|closed the book|wrote a word on the board) and
            said, "Today we (will have|are having) a (quiz|test)."
        60% {a} was <afraid>, because {a.it} had (not learned much|been ill|forgotten {a.s} books).
    """)
    right = 0
    asked = 3 + int(t.rng.random() * 3)
    for turn in range(asked):
        drawn = t.fact(t.pick(_QUIZ_TOPICS))
        t.one_of(
            '"{question}" asked {c}.',
            '{c} looked at {a.o}: "{question}"',
            '"(And now|Next|Tell me), {a.name}: {question}" (asked|said) {c}.',
            '"{question}" {c} asked (next|then).',
        )
        if t.chance(0.65):
            right += 1
            t.one_of(
                '"{answer}," <said> {a}, and that was (right|correct).',
                '"{answer}!" <shouted> {a} (at once|without waiting).',
                '{a} (thought for a while|raised a hand|stood up) and said, "{answer}."',
            )
            if t.chance(0.5):
                t.bind(fact=_upper(drawn.statement))
                t.say('"(Right|Correct|Very good|Well done)," said {c}. "{fact}."')
        else:
            t.one_of(
                '"{wrong}," <said> {a}.',
                '{a} was not sure and said, "{wrong}."',
                '"{wrong}?" {a} whispered.',
            )
            t.one_of(
                '"(No|Wrong|I am afraid not)," said {c}. "{fact}."',
                '"(That is wrong|Not quite)," said {b}. "{answer}!"',
                '"No," {c} said. "Who knows better?" "{answer}," (called|answered|said) {b}.',
                fact=_upper(drawn.statement),
                answer=_upper(drawn.answer),
            )
        if turn == 1 and t.chance(0.5):
            aside(t)
    t.bind(right=NUMBERS[right], asked=NUMBERS[asked])
    if right == 1:
        t.say("In the end {a} had one right answer out of {asked}.")
        summary = "gave only one right answer"
    else:
        t.say("In the end {a} had {right} (right answers|answers right) out of {asked}.")
        summary = "gave {right} right answers out of {asked}"
    t.ask("How many answers did {a.name} have right?", "{right}")
    t.sum_up("In a quiz at {school} {a.name} " + summary + ".")
    end_story(t, happy=right * 2 > asked)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def skill(t: StoryBuilder) -> None:
    """Write a story: learning to do something: failure, advice, practice, success."""
    t.start()
    goal = t.pick(tuple(SKILLS))
    advice, fails = SKILLS[goal]
    t.bind(goal=goal, advice=advice, fails=fails)
    t.run_script("""
        scene: open
        {a} could not {goal}, (and that made {a.o} <sad>|but {a.it} wanted to learn it|although
            everyone else could).
        ask: What did {a.name} want to learn? {goal}
        "(Can you teach me to|Will you show me how to) {goal}?" {a} asked {b.o}.
        "<yes>," said {b}. "{advice}."
        <one_day> {a} tried it for the first time and {fails}.
        "I will never learn to {goal}!" {a} <shouted> (and wanted to give up|with tears in {a.s}
            eyes|angrily).
        "{advice}, as I told you," said {b}.
        or: "Nobody learns it in a day," {b} <said>. "(Try again|Once more|Again)."
        or: "I also {fails} when I began," {b} said.
        scene: aside
        So {a} practised <slowly>, (every <daypart>|in the rain and in the sun|week after week), and
            (it went better each time|{b} never lost patience).
    """)
    if t.chance(0.8):
        t.run_script("""
            <next_day> {a} could {goal} (better than {b}|without any help|as if {a.it} had never
                done anything else).
            "(You see|I told you so|Look at you)!" said {b} (proudly|with a smile|and clapped).
            summary: {b.name} taught {a.name} to {goal}.
            or: {a.name} learned to {goal} with the help of {b.name}.
            scene: end
        """)
    else:
        t.run_script("""
            But {a} never (really |)learned to {goal}, (and in the end {a.it} tried something else|
                and one day {a.it} stopped trying).
            summary: {a.name} tried to learn to {goal} but gave up.
            or: {a.name} never learned to {goal}.
            scene: sad_end
        """)


def reading(t: StoryBuilder) -> None:
    """Write a story: a book that is borrowed, read by night and talked about."""
    t.start()
    t.run_script("""
        let: book = BOOKS
        let: hero = a boy who could talk to birds; a girl who sailed round the world; a clever fox;
            a thief with a golden heart; two sisters who lost their way; a king who could not sleep
        scene: open
        <one_day> {a} borrowed "{book}" from the (library|Little Owl Library)(|, because it had a
            red cover|, since it was raining).
        ask: Which book did {a.name} borrow? {book}
        It was (about|the story of) {hero}, and {a} (could not put it down|read until (midnight|
            morning)|forgot to eat).
        "(What are you reading|Is it good|Why are your eyes so red)?" {b} asked <later>.
        "It is called {book}," said {a}. "You should read it."
        scene: did_you_know
        {b} took the book home and (read it twice|did not get past the first page|left it on the
            bus).
    """)
    t.say('"{opinion}," {b} said <next_day>.', opinion=opinion_clauses(t, "book", t.chance(0.6)))
    aside(t)
    t.sum_up(
        '{a.name} borrowed "{book}" and lent it to {b.name}.',
        '{a.name} and {b.name} both talked about "{book}".',
    )
    end_story(t, happy=t.chance(0.8))
