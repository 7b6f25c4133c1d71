r"""Prompt templates: few-shot examples and a question in the same format.

A template is the format of one example. The prompt is the filled templates of the examples,
followed by that of the question up to its answer (Brown et al. 2020, section 2). Fields are the
task's columns; {label}, {target} or [MASK] is the position of the answer:

    Review: {text}\nSentiment: {label}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from firth.utils.errors import UsageError

Values = Mapping[str, str]  # field -> value
RenderChat = Callable[[Sequence[Mapping[str, Any]]], str]  # messages -> prompt
Part = tuple[str, str]  # literal text, and the field after it or ""

# Fields of an example that a template must contain, by task.
FIELDS: dict[str, tuple[str, ...]] = {
    "classify": ("text",),
    "pair": ("text_a", "text_b"),
    "choice": ("text",),
    "seq2seq": ("source",),
}
ANSWER = ("label", "target")  # two names of the answer's field
LABELS = "labels"  # field with all candidate answers: "negative or positive"
BLANK = "[MASK]"

# Templates for masked models are those of LM-BFF (Gao et al. 2021, table 1).
DEFAULT_TEMPLATES = {
    "classify": "{text} => {label}",  # Brown et al. 2020, figure 2.1
    "pair": "{text_a} | {text_b} => {label}",
    "choice": "{text} {label}",
    "seq2seq": "{source} => {target}",
}
DEFAULT_CHAT_TEMPLATES = {  # what precedes the answer is the user's message
    "classify": "{text}\n{label}",
    "pair": "{text_a}\n{text_b}\n{label}",
    "choice": "{text}\n{label}",
    "seq2seq": "{source}\n{target}",
}
DEFAULT_CLOZE_TEMPLATES = {
    "classify": "{text} It was [MASK].",
    "pair": "{text_a} ? [MASK], {text_b}",
    "choice": "{text} {label}",
}


@dataclass(frozen=True)
class Template:
    """The format of one example: the parts before and after its answer."""

    before: tuple[Part, ...]
    after: tuple[Part, ...]
    blank: bool = False  # the answer's position is written as [MASK]

    @property
    def answer_is_last(self) -> bool:
        """Whether no field of the example comes after its answer."""
        return not any(field for _, field in self.after)

    def render_question(self, values: Values) -> tuple[str, str]:
        """Return the text before and after the answer."""
        return _fill(self.before, values), _fill(self.after, values)

    def render_example(self, values: Values, answer: str) -> str:
        """Return an example with its answer."""
        before, after = self.render_question(values)
        return f"{before}{answer.strip()}{after}"


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    r"""The format of prompts: template, instruction and separator of examples.

    >>> format = PromptFormat(template=parse_template("{source} => {target}", "seq2seq"))
    >>> format.prompt([({"source": "cheese"}, "fromage")], {"source": "sea otter"})
    ('cheese => fromage\nsea otter => ', '')
    """

    template: Template
    instruction: str = ""  # before all examples
    separator: str = "\n"
    render_chat: RenderChat | None = None  # a chat model: demonstrations are earlier turns

    def prompt(self, shots: Sequence[tuple[Values, str]], question: Values) -> tuple[str, str]:
        """Return the prompt up to the question's answer, and the text after the answer."""
        if self.render_chat is not None:
            return self.render_chat(self._messages(shots, question)), ""
        before, after = self.template.render_question(question)
        first = [self.instruction] if self.instruction else []
        examples = [self.template.render_example(values, answer) for values, answer in shots]
        return self.separator.join([*first, *examples, before]), after

    def _messages(self, shots: Sequence[tuple[Values, str]], question: Values) -> list[Values]:
        """Return the instruction, the demonstrations and the question as messages of a chat."""
        messages = [("system", self.instruction)] if self.instruction else []
        for values, answer in shots:
            before, _ = self.template.render_question(values)
            messages += [("user", before), ("assistant", answer)]
        messages.append(("user", self.template.render_question(question)[0]))
        return [{"role": role, "content": text.strip()} for role, text in messages]

    @property
    def stop(self) -> str:
        """The stop string of a generated answer: the text after it, or the end of the line.

        A chat model ends its answers with an EOS token instead.
        """
        if self.render_chat is not None:
            return ""
        after = _fill(self.template.after, {}).strip(" ")
        return "\n" if not after or after.startswith("\n") else after


def make_prompt_format(
    task: str,
    template: str | None = None,
    instruction: str = "",
    *,
    cloze: bool = False,
    render_chat: RenderChat | None = None,
) -> PromptFormat:
    """Build a prompt format from a template or the task's default (`cloze`: for masked models).

    Examples of several lines, or after an instruction, are separated by an empty line.
    """
    chat = DEFAULT_TEMPLATES if render_chat is None else DEFAULT_CHAT_TEMPLATES
    default = (DEFAULT_CLOZE_TEMPLATES if cloze else chat)[task]
    parsed = parse_template(template if template is not None else default, task)
    instruction = _unescape(instruction).strip()
    multiline = any("\n" in text for text, _ in (*parsed.before, *parsed.after))
    separator = "\n\n" if multiline or instruction else "\n"
    return PromptFormat(
        template=parsed, instruction=instruction, separator=separator, render_chat=render_chat
    )


def parse_template(text: str, task: str) -> Template:
    r"""Parse a template; the escapes \n and \t are a line break and a tab.

    >>> template = parse_template(r"Review: {text}\nSentiment: {label}", "classify")
    >>> template.render_example({"text": "So bad."}, "negative")
    'Review: So bad.\nSentiment: negative'
    >>> template.render_question({"text": "So {label}!"})
    ('Review: So {label}!\nSentiment: ', '')
    """
    unescaped = _unescape(text)
    try:
        parsed = Formatter().parse(unescaped.replace(BLANK, "{label}"))
        parts = [(literal, field) for literal, field, _, _ in parsed]
    except ValueError as error:
        raise UsageError(f"Cannot parse the template {text!r}: {error}.") from error
    known = (*FIELDS[task], *ANSWER, LABELS)
    for _, field in parts:
        if field is not None and field not in known:
            names = ", ".join(f"{{{name}}}" for name in known)
            raise UsageError(
                f"The template {text!r} has an unknown field {{{field}}}; {task} has {names}."
            )
    answers = [i for i, (_, field) in enumerate(parts) if field in ANSWER]
    if len(answers) != 1:
        count = "no field" if not answers else f"{len(answers)} fields"
        raise UsageError(
            f"The template {text!r} has {count} for the answer; it needs exactly one: "
            f"{{{ANSWER[task == 'seq2seq']}}} or {BLANK}."
        )
    answer = answers[0]
    for field in FIELDS[task]:
        if field not in [name for _, name in parts]:
            raise UsageError(f"The template {text!r} lacks the field {{{field}}}; add it.")
    before = tuple((literal, field or "") for literal, field in parts[:answer])
    after = tuple((literal, field or "") for literal, field in parts[answer + 1 :])
    return Template((*before, (parts[answer][0], "")), after, blank=BLANK in unescaped)


def join_labels(labels: Sequence[str]) -> str:
    """Join labels as the value of a template's {labels}.

    >>> join_labels(["yes", "no"]), join_labels(["red", "green", "blue"])
    ('yes or no', 'red, green or blue')
    """
    if len(labels) < 2:
        return "".join(labels)
    return f"{', '.join(labels[:-1])} or {labels[-1]}"


def _fill(parts: Sequence[Part], values: Values) -> str:
    return "".join(f"{text}{values.get(field, '').strip()}" for text, field in parts)


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")
