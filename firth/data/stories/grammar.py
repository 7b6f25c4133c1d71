"""The language of plots: templates with choices, rules and slots.

    one (sunny|rainy|) day      a choice; an empty one leaves the part out
    <mood>                      a rule of `phrases.RULES`, or a list of strings given by name
    {a} {a.o} {a.s} {a.self}    a person or thing as subject, object, possessive, reflexive:
                                a name, a description or a pronoun, chosen by the discourse
    {x.a} {x.the} {a.name}      fixed forms
    [was] [likes]               a verb that agrees with the last subject

A plot is a script of such templates, one step per line; a line indented further continues it:

    {a} lost {x.a}.                            a sentence
    or: {x.the} was gone.                      an alternative to the step before
    50% {a} was <sad>.                         a sentence in half of the stories
    let: place = in the attic; at school       one of several phrases, or of a named list
    thing: x = kite; ball                      one of several things
    event: a find x; place=in the attic; new   an event, which examples can be made of
    ask: What did {a.name} lose? {x.phrase}    a question about the story, and its answer
    summary: {a.name} lost {x.a}.              the story in a sentence
    scene: weather                             a scene of `scenes.SCENES`

Templates and scripts are parsed once.
"""

from __future__ import annotations

import re
from functools import cache
from math import log2
from textwrap import dedent
from typing import NamedTuple

_TOKEN = re.compile(r"\(|\)|\||<\w+>|\{[\w.]+\}|\[\w+\]|[^()|<>{}\[\]]+")


class Choice(NamedTuple):
    options: tuple[tuple[Node, ...], ...]
    bits: float  # log2 of the number of options


class Rule(NamedTuple):
    name: str


class Slot(NamedTuple):
    role: str
    form: str


class Agreeing(NamedTuple):
    verb: str


Node = str | Choice | Rule | Slot | Agreeing


@cache
def parse(template: str) -> tuple[Node, ...]:
    """Parse a template.

    >>> parse("a (big|) {x.o}")
    ('a ', Choice(options=(('big',), ()), bits=1.0), ' ', Slot(role='x', form='o'))
    """
    tokens = _TOKEN.findall(template)
    if "".join(tokens) != template:
        raise ValueError(f"bad template: {template}")
    options, end = _options(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"unbalanced brackets: {template}")
    return options[0] if len(options) == 1 else (Choice(options, log2(len(options))),)


def _options(tokens: list[str], i: int) -> tuple[tuple[tuple[Node, ...], ...], int]:
    """Parse the options from token i to the closing bracket; return them and its position."""
    options: list[tuple[Node, ...]] = []
    nodes: list[Node] = []
    while i < len(tokens) and tokens[i] != ")":
        token = tokens[i]
        if token == "|":
            options.append(tuple(nodes))
            nodes = []
        elif token == "(":
            inner, i = _options(tokens, i + 1)
            nodes.append(Choice(inner, log2(len(inner))))
        elif token[0] == "<":
            nodes.append(Rule(token[1:-1]))
        elif token[0] == "{":
            role, _, form = token[1:-1].partition(".")
            nodes.append(Slot(role, form))
        elif token[0] == "[":
            nodes.append(Agreeing(token[1:-1]))
        else:
            nodes.append(token)
        i += 1
    return (*options, tuple(nodes)), i


class Step(NamedTuple):
    """A step of a script: its kind ("" for a sentence), its alternatives and its probability."""

    kind: str
    options: tuple[str, ...]
    probability: float = 1.0


_STEP = re.compile(r"(?:(let|thing|event|ask|summary|scene): |(\d+)% )?(.*)")


@cache
def parse_script(script: str) -> tuple[Step, ...]:
    """Parse a script.

    >>> parse_script("{a} ran\\n    home.\\nor: {a} slept.")
    (Step(kind='', options=('{a} ran home.', '{a} slept.'), probability=1.0),)
    """
    joined = re.sub(r"\n +", " ", re.sub(r"\|\n +", "|", dedent(script).strip()))
    steps: list[Step] = []
    for line in joined.splitlines():
        if line.startswith("or: "):
            steps[-1] = steps[-1]._replace(options=(*steps[-1].options, line[4:]))
        elif match := _STEP.fullmatch(line):
            steps.append(Step(match[1] or "", (match[3],), int(match[2] or 100) / 100))
    return tuple(steps)


_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[,.?!;])")
_INVERTED = re.compile(r'" (\w+) (he|she|they|it)(?=[ ,.:])')
_QUOTE_START = re.compile(r'(?:^|(?<=[ (]))"([a-z])')


def tidy(text: str) -> str:
    """Normalize spaces, capitals and the order of subject and verb after a quotation.

    >>> tidy('then  he said , "yes!"')
    'Then he said, "Yes!"'
    >>> tidy('"no," said she.')
    '"No," she said.'
    """
    text = " ".join(text.split())
    if " ," in text or " ." in text or " ?" in text or " !" in text:
        text = _SPACE_BEFORE_MARK.sub("", text)
    if '"' in text:
        text = _INVERTED.sub(r'" \2 \1', text)
        text = _QUOTE_START.sub(lambda m: '"' + m[1].upper(), text)
    return text[0].upper() + text[1:]
