"""Chat templates: Jinja2 programs that turn messages into the prompt of a chat model.

They come with a model's tokenizer, so they run in a sandbox, with the same extensions, filters and
functions as in `transformers`, and with bounded loops and output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError, UsageError

MAX_CHARACTERS = 1 << 22  # of a rendered chat
MAX_LOOPS = 100_000  # numbers of all ranges of one rendering, as jinja2 allows for one range
MAX_EXPONENT = 64

Messages = Sequence[Mapping[str, Any]]  # {"role": "user", "content": "…"}


def make_messages(question: str, system: str | None = None) -> list[dict[str, str]]:
    """Return the messages of one question, after an optional system message."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}]


def render_chat(tokenizer: Tokenizer, messages: Messages) -> str:
    """Render messages as the prompt of the assistant's next turn."""
    template = chat_template(tokenizer)
    plain = _plain(messages)
    tokens = {f"{role}_token": text for role, text in tokenizer.special_tokens.items()}
    try:
        return _render(template, messages=plain, **tokens)
    except Exception as error:  # a template may raise anything
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MismatchError(f"The model's chat template failed: {message.rstrip('.')}.") from error


def chat_template(tokenizer: Tokenizer) -> str:
    """Return a tokenizer's chat template; of several, the one named default."""
    found = tokenizer.config.get("chat_template")
    if isinstance(found, list):
        found = {one["name"]: one["template"] for one in found if {"name", "template"} <= set(one)}
    if isinstance(found, dict):
        found = found.get("default")
    if not found:
        raise MismatchError(
            "This model has no chat template (in tokenizer_config.json or chat_template.jinja): "
            "use a chat model, or give the text to continue without `chat`."
        )
    if not isinstance(found, str):
        raise InputError("The chat_template in tokenizer_config.json is not a text.")
    return found


def _plain(messages: Messages) -> Any:
    """Check messages, and convert them to plain JSON values, which have no methods to misuse."""
    valid = isinstance(messages, Sequence) and not isinstance(messages, str) and bool(messages)
    if not valid or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise UsageError(
            'Messages are a list such as [{"role": "user", "content": "Hello!"}], not '
            f"{messages!r:.80}."
        )
    try:
        return json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError) as error:
        raise UsageError(f"Messages must be JSON values: {error}.") from error


def _render(template: str, **values: Any) -> str:
    values |= {"tools": None, "documents": None, "add_generation_prompt": True}
    pieces, size = [], 0
    for piece in _compile(template).generate(**values, range=_LoopBudget()):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise SecurityError(f"it renders more than {MAX_CHARACTERS:,} characters")
    return "".join(pieces)


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    del environment.globals["lipsum"]
    return environment.from_string(template)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox without attributes of Python's internals, changes of values, and huge products."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product or power of bounded size."""
        sizes = [len(value) if hasattr(value, "__len__") else 1 for value in (left, right)]
        factor = max((abs(value) for value in (left, right) if isinstance(value, int)), default=1)
        is_long = operator == "*" and max(sizes) * factor > MAX_CHARACTERS and max(sizes) > 1
        if is_long or (operator == "**" and abs(right) > MAX_EXPONENT):
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's turns for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _LoopBudget:
    """`range`, with a limit for all ranges of one rendering together: loops may be nested."""

    def __init__(self) -> None:
        self._left = MAX_LOOPS

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._left -= len(numbers)
        if self._left < 0:
            raise SecurityError(f"its loops exceed {MAX_LOOPS:,} steps")
        return numbers


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
