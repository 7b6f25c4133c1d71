"""Readers of tables: `.tsv .csv .jsonl .parquet`, each also compressed.

The first line of TSV and CSV names the columns. In TSV a quotation mark is text, as in GLUE's
files; in CSV it encloses a field. Columns are found by `columns.py`. Plain text, for prediction,
has one column, `text`, and one row per line. Errors name file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import (
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
    TaskFile,
    empty_field,
    find_columns,
    find_label,
    header_place,
    json_list,
    label_list,
    label_text,
    need_columns,
    place,
    row_field,
    row_text,
    text_list,
)
from firth.tasks.readers.examples import ChoiceExample, Label, LabelledExample, Seq2SeqExample
from firth.utils.errors import InputError, UsageError

MAX_FLOAT = 3.4028234e38  # of 32 bits
NUMBERED = re.compile(r"(?:choice|option|ending)_?(\d{1,4})", re.IGNORECASE)


def read_labelled(
    file: TaskFile, *, numbers: bool = False, pair: bool | None = None
) -> Iterator[LabelledExample]:
    """Yield texts or pairs of texts with their labels.

    With `numbers`, labels are numeric. If the first row has a list of labels, the data are
    multi-label. `pair`: by default, decided by the columns' names.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "pairs.tsv")
    >>> _ = path.write_text("premise\\thypothesis\\tlabel\\nIt snows.\\tIt is cold.\\tyes\\n")
    >>> next(read_labelled(TaskFile(path)))
    LabelledExample(text='It snows.', second='It is cold.', label='yes', line=2)
    """
    texts: Names = ()
    many: bool | None = None
    for line, row in file.table_rows():
        where = place(file.path, line)
        with reporting_errors(file.bad):
            if not texts:
                header = header_place(file.path, line)
                found = _text_columns(row, pair, file, header)
                texts, labels = found, find_label(LABEL, row, header, file)
            parts = [row_text(row, name, where, allow_empty=file.allow_empty) for name in texts]
            value = row.get(labels) if labels else None
            if many is None and value is not None:
                many = isinstance(value, list) or _is_list(value)
            label = _label(value, labels, where, numbers, bool(many))
            if label is None and file.labels == "required":
                raise empty_field(where, labels)
            yield LabelledExample(text=parts[0], second=(*parts, None)[1], label=label, line=line)
    file.require_examples(texts)


def _is_list(value: Any) -> bool:
    """Whether a field of a table is a list in JSON.

    >>> _is_list('["red", "round"]'), _is_list("[red]"), _is_list("red")
    (True, False, False)
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return False
    try:
        return isinstance(json.loads(value), list)
    except (ValueError, RecursionError):
        return False


def _text_columns(row: dict[str, Any], pair: bool | None, file: TaskFile, where: str) -> Names:
    """Find the one or two columns of texts."""
    given = {
        role: file.columns[role] for role in ("text", "text_a", "text_b") if role in file.columns
    }
    named = tuple(given.values())
    if named and pair is not None and pair != (len(named) > 1):
        shown = " ".join(f"{role}={name}" for role, name in given.items())
        raise UsageError(f"{shown} names {'one column' if pair else 'a pair'}.")
    role = {True: PAIR, False: TEXT, None: TEXT_OR_PAIR}[pair]
    return need_columns(role, row, where, named)


def _label(value: Any, column: str | None, where: str, numbers: bool, many: bool) -> Label | None:
    """Convert a label to text, a tuple of texts or a number."""
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
            f"{where}: '{column}' is a list of labels, but earlier rows have one label; use lists "
            "in all rows or in none."
        )
    found = label_text(value, where, column)
    if many:
        return () if found is None else (found,)
    return found


def _number(value: Any, where: str, column: str) -> float | None:
    """Parse a finite number."""
    try:
        text = label_text(value, where, column)
        if text is None and value != value:
            raise ValueError
        if text is None:
            return None
        number = float(text)
        if isinstance(value, bool) or "_" in text or not abs(number) <= MAX_FLOAT:
            raise ValueError
    except ValueError as error:
        raise InputError(f"{where}: '{column}' is {value!r:.40}, not a finite number.") from error
    return number


# ---- choices ------------------------------------------------------------------------------------


def read_choices(file: TaskFile) -> Iterator[ChoiceExample]:
    """Yield texts with their choices; the label is the index of the right one, or its text.

    Choices are a list (in TSV and CSV a JSON list), or columns `choice_0`, `choice_1`, …, the last
    of which may be empty; or, as in ARC, `{"text": [...], "label": ["A", ...]}`.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "choices.jsonl")
    >>> _ = path.write_text('{"text": "Ice is", "choices": ["hot", "cold"], "label": "cold"}')
    >>> next(read_choices(TaskFile(path)))
    ChoiceExample(text='Ice is', choices=('hot', 'cold'), label=1, line=1)
    """
    texts: Names = ()
    for line, row in file.table_rows():
        where = place(file.path, line)
        with reporting_errors(file.bad):
            if not texts:
                header = header_place(file.path, line)
                found = need_columns(PROMPT, row, header, file.columns.get("text"))
                listed = _choice_columns(row, file.columns.get("choices"), header)
                texts, right = found, find_label(RIGHT, row, header, file)
            text = row_text(row, texts[0], where, allow_empty=file.allow_empty)
            choices, names = _choices(row, listed, where)
            label = _right(row.get(right), choices, names, where, right) if right else None
            if label is None and file.labels == "required":
                raise empty_field(where, right)
            yield ChoiceExample(text=text, choices=choices, label=label, line=line)
    file.require_examples(texts)


def _choice_columns(row: dict[str, Any], named: str | None, where: str) -> Names:
    """Find the column with a list of choices, or the numbered columns with one each."""
    numbered = {int(match[1]): name for name in row if (match := NUMBERED.fullmatch(name))}
    if named or not numbered or find_columns(CHOICES, row, where):
        return need_columns(CHOICES, row, where, named)
    for expected, number in enumerate(sorted(numbered)):
        if number != expected:
            raise InputError(
                f"{where} has '{numbered[number]}' but no choice {expected}; choices are numbered "
                "from 0."
            )
    return tuple(numbered[number] for number in sorted(numbered))


def _choices(row: dict[str, Any], listed: Names, where: str) -> tuple[tuple[str, ...], Names]:
    """Get the choices of a row, and their names if they have any."""
    names: Names = ()
    if len(listed) > 1:
        texts = [row_text(row, column, where) for column in listed]
        while texts and not texts[-1].strip():
            texts.pop()
    else:
        value = json_list(row_field(row, listed[0], where), where, listed[0])
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
    """The index of the right choice, given by its index, text or name."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = label_text(value, where, column)
    if text is None or text == "-1":  # -1: hidden labels of public test sets
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
            "choices; give its index, counted from 0."
        )
    return found.pop()


# ---- other tables -------------------------------------------------------------------------------


def read_translated(file: TaskFile) -> Iterator[Seq2SeqExample]:
    """Yield sources and targets: columns `source` and `target`, or two that are named.

    Rows like `{"translation": {"en": ..., "fr": ...}}` have the languages as columns.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = path.write_text('en,fr\\nA cat.,Un chat.\\n')
    >>> next(read_translated(TaskFile(path, columns={"source": "en", "target": "fr"})))
    Seq2SeqExample(source='A cat.', target='Un chat.', line=2)
    """
    if "target" in file.columns and "source" not in file.columns and file.labels != "ignored":
        raise UsageError(f"target={file.columns['target']} needs source=NAME as well.")
    names: Names = ()
    for line, row in file.table_rows():
        where = place(file.path, line)
        if isinstance(row.get("translation"), dict):
            row = row["translation"]
        # For prediction any row may be bad; else missing columns are an error of the file.
        with reporting_errors(file.bad if file.labels == "ignored" else None):
            names = names or _translation_columns(row, file, header_place(file.path, line))
        if not names:
            continue
        with reporting_errors(file.bad):
            source = row_text(row, names[0], where, allow_empty=file.allow_empty)
            target = ""
            if len(names) > 1:
                target = row_text(row, names[1], where, allow_empty=file.labels != "required")
            yield Seq2SeqExample(source=source, target=target or None, line=line)
    file.require_examples(names)


def _translation_columns(row: dict[str, Any], file: TaskFile, where: str) -> Names:
    """Find the column of the source and, unless it is ignored or missing, of the target."""
    source, target = (file.columns.get(role) for role in ("source", "target"))
    required, ignored = file.labels == "required", file.labels == "ignored"
    if source and not ignored and (target or required):
        return need_columns(SOURCE_AND_TARGET, row, where, (source, target or "target"))
    both = None if source else find_columns(SOURCE_AND_TARGET, row, where)
    if required and not both:
        return need_columns(SOURCE_AND_TARGET, row, where)
    found = both or need_columns(SOURCE, row, where, source)
    return found[:1] if ignored else found
