"""Readers of tables: `.tsv .csv .jsonl .parquet`, each also compressed.

The first line of TSV and CSV names the columns. In TSV a quotation mark is text, as in GLUE's
files; in CSV it encloses a field. Columns are found by `columns.py`. Plain text, for prediction,
has one column, `text`, and one row per line. Errors name file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.data.readers import Bad
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
    reporting_errors,
    require_examples,
    row_text,
    table_rows,
    text_list,
)
from firth.tasks.readers.examples import ChoiceExample, Label, LabelledExample, Seq2SeqExample
from firth.tasks.readers.running_text import read_passages
from firth.utils.errors import InputError, UsageError

__all__ = [
    "each_choice",
    "each_source",
    "each_text",
    "read_choices",
    "read_labelled",
    "read_passages",
    "read_translated",
]

MAX_FLOAT = 3.4028234e38  # of 32 bits
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
) -> list[LabelledExample]:
    """Read texts or pairs of texts with their labels.

    With `numbers`, labels are numeric. If the first row has a list of labels, the data are
    multi-label. `pair`: by default, decided by the columns' names.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.tsv")
    >>> _ = path.write_text("premise\\thypothesis\\tlabel\\nIt snows.\\tIt is cold.\\tyes\\n")
    >>> read_labelled(path)
    [LabelledExample(text='It snows.', second='It is cold.', label='yes', line=2)]
    """
    examples: list[LabelledExample] = []
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
    require_examples(path, examples, on_empty)
    return examples


def each_text(
    path: str | Path,
    *,
    pair: bool | None = None,
    text: str | tuple[str, str] | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[LabelledExample]:
    """Yield texts or pairs of texts for prediction, ignoring labels."""
    texts: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        with reporting_errors(bad):
            texts = texts or _text_columns(row, pair, text, header_place(path, line))
            yield _texts(row, texts, line, place(path, line), "keep")


def _texts(
    row: dict[str, Any], columns: Names, line: int, where: str, on_empty: OnEmpty
) -> LabelledExample:
    parts = [row_text(row, column, where, on_empty) for column in columns]
    return LabelledExample(text=parts[0], second=(*parts, None)[1], line=line)


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


def _text_columns(
    row: dict[str, Any], pair: bool | None, named: str | tuple[str, str] | None, where: str
) -> Names:
    """Find the one or two columns of texts."""
    if named and pair is not None and pair != isinstance(named, tuple):
        raise UsageError(f"text={named} names {'one column' if pair else 'a pair'}.")
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


def read_choices(
    path: str | Path,
    *,
    text: str | None = None,
    choices: str | None = None,
    label: str | None = None,
    need_label: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
) -> list[ChoiceExample]:
    """Read texts with their choices; the label is the index of the right one, or its text.

    Choices are a list (in TSV and CSV a JSON list), or columns `choice_0`, `choice_1`, …, the last
    of which may be empty; or, as in ARC, `{"text": [...], "label": ["A", ...]}`.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "choices.jsonl")
    >>> _ = path.write_text('{"text": "Ice is", "choices": ["hot", "cold"], "label": "cold"}')
    >>> read_choices(path)
    [ChoiceExample(text='Ice is', choices=('hot', 'cold'), label=1, line=1)]
    """
    examples: list[ChoiceExample] = []
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
        examples.append(ChoiceExample(text=words, choices=offered, label=found, line=line))
    require_examples(path, examples, on_empty)
    return examples


def each_choice(
    path: str | Path,
    *,
    text: str | None = None,
    choices: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[ChoiceExample]:
    """Yield texts with their choices for prediction, ignoring labels."""
    texts: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        where = place(path, line)
        with reporting_errors(bad):
            if not texts:
                header = header_place(path, line)
                prompt = need_columns(PROMPT, row, header, text)
                listed = _choice_columns(row, choices, header)
                texts = prompt
            offered, _ = _choices(row, listed, where)
            words = row_text(row, texts[0], where, "keep")
            yield ChoiceExample(text=words, choices=offered, line=line)


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
    """The index of the right choice, given by its index, text or name."""
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


def read_translated(
    path: str | Path,
    *,
    source: str | None = None,
    target: str | None = None,
    need_target: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
    bad: Bad | None = None,
) -> list[Seq2SeqExample]:
    """Read sources and targets: columns `source` and `target`, or two that are named.

    Rows like `{"translation": {"en": ..., "fr": ...}}` have the languages as columns. Errors of
    single rows are passed to `bad`, if given, and reading continues.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = path.write_text('en,fr\\nA cat.,Un chat.\\n')
    >>> read_translated(path, source="en", target="fr")
    [Seq2SeqExample(source='A cat.', target='Un chat.', line=2)]
    """
    if target and not source:
        raise UsageError(f"target={target} needs source=NAME as well.")
    file = find_source(path, format)
    examples: list[Seq2SeqExample] = []
    names: Names = ()
    for line, row in table_rows(file, bad):
        where = place(path, line)
        if isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not names:
            header = header_place(path, line)
            names = _translation_columns(row, source, target, need_target, header)
        with reporting_errors(bad):
            text = row_text(row, names[0], where, on_empty)
            empty = on_empty if need_target else "keep"
            made = row_text(row, names[1], where, empty) if len(names) > 1 else ""
            found = made if made or need_target else None
            examples.append(Seq2SeqExample(source=text, target=found, line=line))
    require_examples(path, examples, on_empty)
    return examples


def each_source(
    path: str | Path,
    *,
    source: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Seq2SeqExample]:
    """Yield sources for prediction, ignoring targets."""
    names: Names = ()
    for line, row in table_rows(find_source(path, format), bad):
        if isinstance(row.get("translation"), dict):
            row = row["translation"]
        with reporting_errors(bad):
            names = names or _translation_columns(
                row, source, None, False, header_place(path, line)
            )
            yield Seq2SeqExample(
                source=row_text(row, names[0], place(path, line), "keep"), line=line
            )


def _translation_columns(
    row: dict[str, Any], source: str | None, target: str | None, need_target: bool, where: str
) -> Names:
    """Find the column of the source and, if there is one, of the target."""
    if source and (target or need_target):
        return need_columns(SOURCE_AND_TARGET, row, where, (source, target or "target"))
    both = None if source else find_columns(SOURCE_AND_TARGET, row, where)
    if need_target and not both:
        return need_columns(SOURCE_AND_TARGET, row, where)
    return both or need_columns(SOURCE, row, where, source)
