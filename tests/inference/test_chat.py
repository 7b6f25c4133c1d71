"""Chat templates render as in `transformers`, in a sandbox and with bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

import firth
from firth.inference.generation import template_sandbox
from firth.inference.generation.chat_template import render_chat
from firth.tokenizers.tokenizer import Tokenizer

CHATML = """\
{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ \
message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system is defined and loop.last else '') }}
        {{- message.content + ' [/INST]' }}
    {%- else %}
        {% generation %}{{- ' ' + message.content + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""
ODD = """\
{%- set ns = namespace(turns=0) -%}
{% for message in messages %}
  {% if message.content is not string %}{% continue %}{% endif %}
  {% set ns.turns = ns.turns + 1 %}
  {{ message | tojson }} {{ message.content.split('?')[0] | upper }}
  {% if ns.turns >= 2 %}{% break %}{% endif %}
{% endfor %}
{{ ns.turns }} of {{ range(3) | list }} {{ strftime_now('%Y') }} {{ pad_token }}{{ sep_token }}|
"""
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " Who are you? "}],
    [
        {"role": "system", "content": 'Be brief: <b>"é"</b>'},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now?"},
    ],
]


def make_tokenizer(template: Any) -> Tokenizer:
    words = tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    return Tokenizer(tokenizers.Tokenizer(words), config)


@pytest.mark.parametrize("chat", CHATS, ids=["question", "dialogue"])
@pytest.mark.parametrize(
    "template", [CHATML, LLAMA3, MISTRAL, ODD], ids="chatml llama3 mistral odd".split()
)
def test_a_chat_is_rendered_as_in_transformers(template: str, chat: Any) -> None:
    ours = make_tokenizer(template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=ours.backend, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert render_chat(ours, chat) == expected
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    assert render_chat(make_tokenizer(named), chat) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
        "{{ messages[0].nothing.more }}",
        "{% for %}",
        "{{ raise_exception('roles must alternate') }}",
    ],
)
def test_a_template_that_fails(template: str) -> None:
    with pytest.raises(firth.MismatchError, match="chat template"):
        render_chat(make_tokenizer(template), CHATS[0])


GROWING = "{% set ns = namespace(x='ab', l=[]) %}{% for i in range(99) %}STEP{% endfor %}OUTPUT"


@pytest.mark.parametrize(
    "step",
    [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
        "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.x = ','.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x.replace('a', ns.x) %}",
        "{% set ns.x = ns.x | replace('a', ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = ns.l + [1] + ns.l %}",
        "{% for j in range(99) %}{% for k in range(99) %}{% endfor %}{% endfor %}",
        "{% for j in 'a' * 9999 %}{% endfor %}",
        "{% set ns.l = ns.l + [('a' * 9999)[1:]] %}",
        "{% set ns.l = [([['a' * 999]] * 999) | map(attribute=0) | join] %}",
        "{{ 'a' * 9999 }}",
        "{% set x %}{% for j in range(9) %}" + "a" * 999 + "{% endfor %}{% endset %}",
    ],
)
def test_a_template_that_grows(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "BUDGET", 1 << 16)
    template = GROWING.replace("STEP", step).replace("OUTPUT", "{{ ns }}")
    with pytest.raises(firth.MismatchError, match="too long"):
        render_chat(make_tokenizer(template), CHATS[0])


@pytest.mark.parametrize(
    "expression",
    [
        "'a' * HUGE",
        "HUGE * [1]",
        "9 ** 99999999",
        "(2 ** 4000) * (2 ** 4000)",
        "'%1000000000000d' % 1",
        "'%*d' % (HUGE, 1)",
        "'{:1000000000000d}'.format(1)",
        "'{:{}}'.format(1, HUGE)",
        "'{x:{y[0]}}'.format_map({'x': 1, 'y': [HUGE]})",
        "'%1000000000000d' | format(1)",
        "'a'.ljust(HUGE)",
        "'1'.zfill(HUGE)",
        "'\t'.expandtabs(HUGE)",
        "(1).to_bytes(HUGE)",
        "'a' | center(HUGE)",
        "['a'] | map('center', HUGE) | list",
        "'a\na' | indent(HUGE)",
        "['a'] | slice(HUGE) | list",
        "['a'] | batch(HUGE, 1) | list",
        "[1] | tojson(indent=HUGE)",
        "strftime_now('%Y' * 1000)",
    ],
)
def test_a_value_that_would_be_huge(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed before it is refused, not even when the template is compiled."""
    monkeypatch.setattr(template_sandbox, "BUDGET", 1 << 16)
    template = "{{ " + expression.replace("HUGE", "1000000000000") + " }}"
    with pytest.raises(firth.MismatchError, match="too l"):
        render_chat(make_tokenizer(template), CHATS[0])


def test_a_long_chat_is_rendered() -> None:
    chat = [{"role": "user", "content": "é" * 50_000}] * 20
    assert len(render_chat(make_tokenizer(CHATML), chat)) > 1_000_000


@pytest.mark.parametrize("messages", ["Hi", [], ["Hi"], [{"content": "Hi"}], None, [{"role": {1}}]])
def test_messages_that_are_none(messages: Any) -> None:
    with pytest.raises(firth.UsageError, match=r"[Mm]essages"):
        render_chat(make_tokenizer(CHATML), messages)


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def test_generate(gpt: Path, tmp_path: Path, verb: Callable[..., Any]) -> None:
    """The reply is the completion of the rendered prompt; the template survives export."""
    alone = verb("generate", gpt, "--chat", "The sea?")
    assert alone.exit_code == 1
    assert "chat template" in alone.output
    (gpt / "chat_template.jinja").write_text(PLAIN)
    firth.export(gpt, tmp_path / "exported")
    model = firth.load(tmp_path / "exported")
    expected = model.generate("system: Be brief.\nuser: The sea?\nassistant:", max_new_tokens=5)
    question = ("--chat", "The sea?", "--max-new-tokens", 5)
    done = verb("generate", tmp_path / "exported", *question, "--system", "Be brief.", "--json")
    assert json.loads(done.stdout)["completions"][0]["text"] == expected
    assert json.loads(done.stdout)["prompt"] == "The sea?"
    assert model.chat("The sea?", system="Be brief.", max_new_tokens=5) == expected
    messages = [dict(role="system", content="Be brief."), dict(role="user", content="The sea?")]
    assert model.chat(messages, max_new_tokens=5) == expected
    assert verb("generate", gpt, "The sea?", "--system", "Be brief.").exit_code == 2
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert theirs.chat_template == PLAIN


def test_a_template_with_bos_gets_no_second_one(gpt: Path) -> None:
    model = firth.load(gpt)
    tokenizer = model.require_tokenizer()
    tokenizer.config |= {"chat_template": "{{ eos_token }}" + PLAIN}
    generator = model.text_generator()
    ids = generator.encode_chat(CHATS[0]).ids
    assert ids[0] == tokenizer.special_ids["eos"]
    assert tokenizer.special_ids["eos"] not in ids[1:]


def test_invalid_characters_are_replaced(gpt: Path) -> None:
    model = firth.load(gpt)
    model.require_tokenizer().config["chat_template"] = PLAIN
    encoded = model.text_generator().encode_chat([{"role": "user", "content": "a\ud800b"}])
    assert "a\ufffdb" in encoded.text


@pytest.mark.parametrize("template", [[1, 2], [{"name": [1], "template": "x"}], [{}], {}, 1, True])
def test_a_template_that_is_none(template: Any) -> None:
    with pytest.raises(firth.FirthError, match=r"chat.template"):
        render_chat(make_tokenizer(template), CHATS[0])


def test_prompt(gpt: Path) -> None:
    """Instruction, demonstrations and question are messages; labels are scored as replies."""
    model = firth.load(gpt)
    model.require_tokenizer().config["chat_template"] = PLAIN
    options: dict[str, Any] = dict(instruction="Translate.", examples=[("sea", "mer")], chat=True)
    result = firth.prompt(model, "dog", **options, max_new_tokens=4)
    assert result.prompt == ("system: Translate.\nuser: sea\nassistant: mer\nuser: dog\nassistant:")
    assert result.answers[0]["text"] == model.generate(result.prompt, max_new_tokens=4).strip()
    scored = firth.prompt(model, "fine", task="classify", labels=["good", "bad"], chat=True)
    assert scored.prompt == "user: fine\nassistant:"
    assert scored.answers[0]["label"] in ("good", "bad")
