r"""Prompts: some examples and a question in the same words, cut where the answer belongs.

A template says how one example reads. Filled in with examples and their answers, one behind the
other, it shows a model what is wanted; the last one breaks off where the answer would stand (Brown
et al. 2020, section 2). Its fields are those of the task's files, and {label} (or [MASK]) is the
place of the answer:

    Review: {text}\nSentiment: {label}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from firth.errors import Misuse

Values = Mapping[str, str]  # field -> what stands in its place
Part = tuple[str, str]  # words, and the field behind them or ""

# What a template must show of an example, task by task.
FIELDS: dict[str, tuple[str, ...]] = {
    "classify": ("text",),
    "pair": ("text_a", "text_b"),
    "choice": ("text",),
    "seq2seq": ("source",),
}
ANSWER = ("label", "target")  # two names of one place
LABELS = "labels"  # all words that may be answered: "negative or positive"
BLANK = "[MASK]"

# How a task is put where nobody says; to a masked model as in LM-BFF (Gao et al. 2021, table 1).
USUAL = {
    "classify": "{text} => {label}",  # Brown et al. 2020, figure 2.1
    "pair": "{text_a} | {text_b} => {label}",
    "choice": "{text} {label}",
    "seq2seq": "{source} => {target}",
}
USUAL_CLOZE = {
    "classify": "{text} It was [MASK].",
    "pair": "{text_a} ? [MASK], {text_b}",
    "choice": "{text} {label}",
}


@dataclass(frozen=True)
class Template:
    """How one example reads: what stands before its answer, and what behind."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    blank: bool = False  # the place of the answer is written as a blank

    @property
    def sees_all(self) -> bool:
        """Whether nothing of an example stands behind its answer."""
        return not any(field for _, field in self.after)

    def cut(self, values: Values) -> tuple[str, str]:
        """What stands before the answer to an example, and what behind."""
        return _filled(self.before, values), _filled(self.after, values)

    def whole(self, values: Values, answer: str) -> str:
        """An example with its answer."""
        before, after = self.cut(values)
        return f"{before}{answer.strip()}{after}"


@dataclass(frozen=True, kw_only=True)
class Wording:
    r"""How prompts read: a template, what stands above all examples, and what between two.

    >>> wording = Wording(template=parse_template("{source} => {target}", "seq2seq"))
    >>> wording.prompt([({"source": "cheese"}, "fromage")], {"source": "sea otter"})
    ('cheese => fromage\nsea otter => ', '')
    """

    template: Template
    instruction: str = ""
    between: str = "\n"

    def prompt(self, shots: Sequence[tuple[Values, str]], asked: Values) -> tuple[str, str]:
        """The whole prompt, up to the answer that is asked for; and what follows that."""
        before, after = self.template.cut(asked)
        above = [self.instruction] if self.instruction else []
        shown = [self.template.whole(values, answer) for values, answer in shots]
        return self.between.join([*above, *shown, before]), after

    @property
    def stop(self) -> str:
        """What ends an answer: what would stand behind it, or the end of its line."""
        after = _filled(self.template.after, {}).strip(" ")
        return "\n" if not after or after.startswith("\n") else after


def make_wording(
    task: str, template: str | None = None, instruction: str = "", *, cloze: bool = False
) -> Wording:
    """The wording that is asked for, or the usual one; `cloze`: for a masked model.

    Between examples that take several lines, or stand below an instruction, a line is left empty.
    """
    usual = (USUAL_CLOZE if cloze else USUAL)[task]
    parsed = parse_template(template if template is not None else usual, task)
    above = _unescaped(instruction).strip()
    lines = any("\n" in words for words, _ in (*parsed.before, *parsed.after))
    between = "\n\n" if lines or above else "\n"
    return Wording(template=parsed, instruction=above, between=between)


def parse_template(text: str, task: str) -> Template:
    r"""A template as a person writes it; \n and \t stand for what they stand for.

    >>> template = parse_template(r"Review: {text}\nSentiment: {label}", "classify")
    >>> template.whole({"text": "So bad."}, "negative")
    'Review: So bad.\nSentiment: negative'
    >>> template.cut({"text": "So {label}!"})
    ('Review: So {label}!\nSentiment: ', '')
    """
    written = _unescaped(text)
    marked = written.replace(BLANK, "{label}")
    try:
        parts = [(words, field) for words, field, _, _ in Formatter().parse(marked)]
    except ValueError as error:
        raise Misuse(f"The template {text!r} cannot be read: {error}.") from error
    known = (*FIELDS[task], *ANSWER, LABELS)
    for _, field in parts:
        if field is not None and field not in known:
            there = ", ".join(f"{{{name}}}" for name in known)
            raise Misuse(f"A template for {task} has no field {{{field}}}; there are {there}.")
    answers = [i for i, (_, field) in enumerate(parts) if field in ANSWER]
    if len(answers) != 1:
        many = "no place" if not answers else f"{len(answers)} places"
        raise Misuse(
            f"The template {text!r} has {many} for the answer; it takes one: "
            f"{{{ANSWER[task == 'seq2seq']}}} or {BLANK}."
        )
    place = answers[0]
    for field in FIELDS[task]:
        if field not in [name for _, name in parts]:
            raise Misuse(f"The template {text!r} does not show {{{field}}} of an example; add it.")
    before = tuple((words, field or "") for words, field in parts[:place])
    after = tuple((words, field or "") for words, field in parts[place + 1 :])
    return Template((*before, (parts[place][0], "")), after, blank=BLANK in written)


def listed(words: Sequence[str]) -> str:
    """Words that may be answered, as a template's {labels} has them.

    >>> listed(["yes", "no"]), listed(["red", "green", "blue"])
    ('yes or no', 'red, green or blue')
    """
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _filled(parts: Sequence[Part], values: Values) -> str:
    return "".join(f"{words}{values.get(field, '').strip()}" for words, field in parts)


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")
