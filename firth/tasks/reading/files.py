"""Task files that are tables: `.tsv .csv .jsonl .parquet`, each also compressed.

The first line of TSV and CSV names the columns. In TSV a quotation mark is text, as in GLUE's
files; in CSV it holds a field together. Columns are found as `columns.py` says. Plain
text has one column, `text`: a row is a line, for predicting. Everything else that is wrong is
refused in one sentence with file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.errors import InputError, Misuse
from firth.tasks.reading.columns import (
    CHOICES,
    LABEL,
    PAIR,
    PROMPT,
    RIGHT,
    SOURCE,
    SOURCE_AND_TARGET,
    TEXT,
    TEXT_OR_PAIR,
    Names,
    OnEmpty,
    field,
    find_columns,
    find_label,
    find_source,
    header_place,
    json_list,
    label_list,
    label_text,
    need_columns,
    place,
    refuse_nothing,
    row_text,
    spared,
    table_rows,
    text_list,
)
from firth.tasks.reading.examples import Choice, Label, Labelled, Translated
from firth.tasks.reading.passages import read_passages
from firth.text.readers import Bad

__all__ = [
    "each_choice",
    "each_source",
    "each_text",
    "read_choices",
    "read_labelled",
    "read_passages",
    "read_translated",
]

LARGEST = 3.4028234e38  # of the numbers that a network computes with
NUMBERED = re.compile(r"(?:choice|option|ending)_?(\d{1,4})", re.IGNORECASE)


def read_labelled(
    path: str | Path,
    *,
    numbers: bool = False,
    pair: bool | None = None,
    text: str | tuple[str, str] | None = None,
    label: str | None = None,
    need_label: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
) -> list[Labelled]:
    """Texts or pairs of texts with their labels.

    `numbers`: labels are scores. Where the first row has a list of labels, a text has several or
    none. `pair`: by default, whatever the columns' names say.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.tsv")
    >>> _ = path.write_text("premise\\thypothesis\\tlabel\\nIt snows.\\tIt is cold.\\tyes\\n")
    >>> read_labelled(path)
    [Labelled(text='It snows.', second='It is cold.', label='yes', line=2)]
    """
    examples: list[Labelled] = []
    texts: Names = ()
    many: bool | None = None
    for line, row in table_rows(find_source(path, format)):
        where = place(path, line)
        if not texts:
            header = header_place(path, line)
            texts = _text_columns(row, pair, text, header)
            labels = find_label(LABEL, row, header, label, need_label)
        value = row.get(labels) if labels else None
        if many is None and value is not None:
            many = isinstance(value, list) or _is_list(value)
        found = _label(value, labels, where, numbers, bool(many))
        if found is None and need_label:
            raise InputError(f"{where}: '{labels}' is empty; fill it in or remove the row.")
        examples.append(replace(_texts(row, texts, line, where, on_empty), label=found))
    refuse_nothing(path, examples, on_empty)
    return examples


def each_text(
    path: str | Path,
    *,
    pair: bool | None = None,
    text: str | tuple[str, str] | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Labelled]:
    """Texts or pairs of texts, one after the other; nobody looks at labels."""
    texts: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        with spared(bad):
            texts = texts or _text_columns(row, pair, text, header_place(path, line))
            yield _texts(row, texts, line, place(path, line), "keep")


def _texts(
    row: dict[str, Any], columns: Names, line: int, where: str, on_empty: OnEmpty
) -> Labelled:
    parts = [row_text(row, column, where, on_empty) for column in columns]
    return Labelled(text=parts[0], second=(*parts, None)[1], line=line)


def _is_list(value: Any) -> bool:
    """Whether a field of a table holds a list as JSON.

    >>> _is_list('["red", "round"]'), _is_list("[red]"), _is_list("red")
    (True, False, False)
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return False
    try:
        return isinstance(json.loads(value), list)
    except (ValueError, RecursionError):
        return False


def _text_columns(
    row: dict[str, Any], pair: bool | None, named: str | tuple[str, str] | None, where: str
) -> Names:
    """The one or two columns with texts."""
    if named and pair is not None and pair != isinstance(named, tuple):
        raise Misuse(f"text={named} names {'one column' if pair else 'a pair'}.")
    role = {True: PAIR, False: TEXT, None: TEXT_OR_PAIR}[pair]
    return need_columns(role, row, where, named)


def _label(value: Any, column: str | None, where: str, numbers: bool, many: bool) -> Label | None:
    """A label as the task wants it."""
    if value is None or column is None:
        return None
    if numbers:
        return _number(value, where, column)
    if many and isinstance(value, str) and value.strip().startswith("["):
        value = json_list(value, where, column)
    if many and isinstance(value, list):
        return tuple(dict.fromkeys(label_list(value, where, column)))
    if isinstance(value, list):
        raise InputError(
            f"{where}: '{column}' is a list of labels where one is wanted; give every row a "
            "list, or every row one label."
        )
    found = label_text(value, where, column)
    if many:
        return () if found is None else (found,)
    return found


def _number(value: Any, where: str, column: str) -> float | None:
    """A score that is a number, and a finite one."""
    try:
        text = label_text(value, where, column)
        if text is None and value != value:
            raise ValueError
        if text is None:
            return None
        number = float(text)
        if isinstance(value, bool) or "_" in text or not abs(number) <= LARGEST:
            raise ValueError
    except ValueError as error:
        raise InputError(f"{where}: '{column}' is {value!r:.40}, not a finite number.") from error
    return number


# ---- choices ------------------------------------------------------------------------------------


def read_choices(
    path: str | Path,
    *,
    text: str | None = None,
    choices: str | None = None,
    label: str | None = None,
    need_label: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
) -> list[Choice]:
    """Texts with their choices; the label is the place of the right one, from 0, or its text.

    Choices are a list (in TSV and CSV a JSON list), or columns `choice_0`, `choice_1`, … of which
    the last may be empty; or, as in ARC, `{"text": [...], "label": ["A", ...]}`.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "choices.jsonl")
    >>> _ = path.write_text('{"text": "Ice is", "choices": ["hot", "cold"], "label": "cold"}')
    >>> read_choices(path)
    [Choice(text='Ice is', choices=('hot', 'cold'), label=1, line=1)]
    """
    examples: list[Choice] = []
    texts: Names = ()
    for line, row in table_rows(find_source(path, format)):
        where = place(path, line)
        if not texts:
            header = header_place(path, line)
            texts = need_columns(PROMPT, row, header, text)
            listed = _choice_columns(row, choices, header)
            right = find_label(RIGHT, row, header, label, need_label)
        words = row_text(row, texts[0], where, on_empty)
        offered, names = _choices(row, listed, where)
        found = _right(row.get(right), offered, names, where, right) if right else None
        if found is None and need_label:
            raise InputError(f"{where}: '{right}' is empty; fill it in or remove the row.")
        examples.append(Choice(text=words, choices=offered, label=found, line=line))
    refuse_nothing(path, examples, on_empty)
    return examples


def each_choice(
    path: str | Path,
    *,
    text: str | None = None,
    choices: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Choice]:
    """Texts with their choices, one after the other; nobody looks at which is right."""
    texts: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        where = place(path, line)
        with spared(bad):
            if not texts:
                header = header_place(path, line)
                prompt = need_columns(PROMPT, row, header, text)
                listed = _choice_columns(row, choices, header)
                texts = prompt
            offered, _ = _choices(row, listed, where)
            words = row_text(row, texts[0], where, "keep")
            yield Choice(text=words, choices=offered, line=line)


def _choice_columns(row: dict[str, Any], named: str | None, where: str) -> Names:
    """The column with a list of choices, or the numbered columns with one each."""
    numbered = {int(match[1]): name for name in row if (match := NUMBERED.fullmatch(name))}
    if named or not numbered or find_columns(CHOICES, row, where):
        return need_columns(CHOICES, row, where, named)
    for expected, number in enumerate(sorted(numbered)):
        if number != expected:
            raise InputError(
                f"{where} has '{numbered[number]}' but no number {expected}; choices are counted "
                "from 0."
            )
    return tuple(numbered[number] for number in sorted(numbered))


def _choices(row: dict[str, Any], listed: Names, where: str) -> tuple[tuple[str, ...], Names]:
    """The choices of a row, and what they are called if they have names."""
    names: Names = ()
    if len(listed) > 1:
        texts = [row_text(row, column, where, "keep") for column in listed]
        while texts and not texts[-1].strip():
            texts.pop()
    else:
        value = json_list(field(row, listed[0], where), where, listed[0])
        if isinstance(value, dict) and {"text", "label"} <= value.keys():
            names = label_list(value["label"], where, "label")
            value = value["text"]
        texts = list(text_list(value, where, listed[0]))
    if len(texts) < 2 or not all(text.strip() for text in texts):
        raise InputError(f"{where}: a choice is empty, or there are fewer than two.")
    if names and len(names) != len(texts):
        raise InputError(f"{where}: {len(texts)} choices but {len(names)} names of choices.")
    return tuple(texts), names


def _right(
    value: Any, choices: tuple[str, ...], names: Names, where: str, column: str
) -> int | None:
    """The place of the right choice, which a file says by its place, its text or its name."""
    text = label_text(value, where, column)
    if text is None or text == "-1":  # as public test files say that they do not tell
        return None
    if names:
        found = {place for place, name in enumerate(names) if name == text}
    else:
        digits = re.fullmatch(r"\d{1,9}", text) and int(text) < len(choices)
        found = {int(text)} if digits else set()
        if isinstance(value, str):
            found |= {place for place, choice in enumerate(choices) if choice.strip() == text}
    if len(found) != 1:
        kind = "more than one" if found else "none"
        raise InputError(
            f"{where}: '{column}' is {text!r:.40}, which names {kind} of the {len(choices)} "
            "choices; give its place, counted from 0."
        )
    return found.pop()


# ---- other tables -------------------------------------------------------------------------------


def read_translated(
    path: str | Path,
    *,
    source: str | None = None,
    target: str | None = None,
    need_target: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
    bad: Bad | None = None,
) -> list[Translated]:
    """Texts and what is to be made of them: columns `source` and `target`, or two that are named.

    Rows as `{"translation": {"en": ..., "fr": ...}}` have the languages as columns. A row that
    cannot be read is told to `bad`, where there is one, and the others are read.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = path.write_text('en,fr\\nA cat.,Un chat.\\n')
    >>> read_translated(path, source="en", target="fr")
    [Translated(source='A cat.', target='Un chat.', line=2)]
    """
    if target and not source:
        raise Misuse(f"target={target} needs source=NAME as well.")
    file = find_source(path, format)
    examples: list[Translated] = []
    names: Names = ()
    for line, row in table_rows(file, bad):
        where = place(path, line)
        if isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not names:
            header = header_place(path, line)
            names = _translation_columns(row, source, target, need_target, header)
        with spared(bad):
            text = row_text(row, names[0], where, on_empty)
            empty = on_empty if need_target else "keep"
            made = row_text(row, names[1], where, empty) if len(names) > 1 else ""
            found = made if made or need_target else None
            examples.append(Translated(source=text, target=found, line=line))
    refuse_nothing(path, examples, on_empty)
    return examples


def each_source(
    path: str | Path,
    *,
    source: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Translated]:
    """Texts of which something is to be made, one after the other; nobody looks at what was."""
    names: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        if isinstance(row.get("translation"), dict):
            row = row["translation"]
        with spared(bad):
            names = names or _translation_columns(
                row, source, None, False, header_place(path, line)
            )
            yield Translated(source=row_text(row, names[0], place(path, line), "keep"), line=line)


def _translation_columns(
    row: dict[str, Any], source: str | None, target: str | None, need_target: bool, where: str
) -> Names:
    """The columns with the source and, if there is one, the target."""
    if source and (target or need_target):
        return need_columns(SOURCE_AND_TARGET, row, where, (source, target or "target"))
    both = None if source else find_columns(SOURCE_AND_TARGET, row, where)
    if need_target and not both:
        return need_columns(SOURCE_AND_TARGET, row, where)
    return both or need_columns(SOURCE, row, where, source)
