"""Chat templates: Jinja2 programs that turn messages into the prompt of a chat model.

They come with a model's tokenizer, so they run in a sandbox, with the same extensions, filters and
functions as in `transformers`, and with bounded steps and memory (`template_sandbox`).
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

from firth.inference.generation.template_sandbox import Sandbox, start_rendering
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError, UsageError

MAX_DATE = 200  # characters of a date's format
MAX_CHARACTERS = 1 << 22  # of a rendered chat

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
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = named[-1].get("template") if named else None
    elif isinstance(found, dict):
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
    start_rendering()
    pieces, size = [], 0
    for piece in _compile(template).generate(**values):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise SecurityError(f"it renders more than {MAX_CHARACTERS:,} characters")
    return "".join(pieces)


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.check_filters()
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(template)


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's turns for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(format: str) -> str:
    if len(format) > MAX_DATE:
        raise SecurityError("the format of a date is too long")
    return datetime.now().strftime(format)
