"""Mask filling and spelling correction for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from firth.data.readers import Bad
from firth.inference.infilling.fill_methods import FillResult
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.infilling.spelling import CorrectedText, correct_batch, make_corrector
from firth.jobs.row_streams import EncodedText, answer_rows, encoded_texts
from firth.model import Model
from firth.tasks.readers.columns import ONLY_TEXT, find_source
from firth.utils.errors import InputError

BATCH_TEXTS = 256


class FilledRow(NamedTuple):
    """A text and its result, or the error of its row."""

    text: str
    found: FillResult | CorrectedText | InputError


def fill_file(
    model: Model,
    file: str | Path,
    *,
    top: int = 5,
    targets: Sequence[str] = (),
    correct: bool = False,
    column: str | None = None,
    format: str | None = None,
    bad: Bad,
) -> Iterator[FilledRow]:
    """Fill the blanks of each row of a file, or correct its spelling, row by row.

    Errors of single rows are passed to `bad`, and the stream continues.
    """
    source = find_source(file, format, "txt")
    filler = model.blank_filler()
    corrector = make_corrector(filler) if correct else None

    def answer(rows: list[EncodedText]) -> Sequence[FillResult | CorrectedText]:
        encoded = [row.encoded for row in rows]
        if corrector is not None:
            return correct_batch(corrector, [row.text for row in rows], encoded)
        return fill_batch(filler, encoded, top=top, targets=targets)

    encode = filler.encode if corrector is None else corrector.find_suspects
    rows = answer_rows(
        encoded_texts(source, ONLY_TEXT, column, encode),
        answer,
        lambda row: len(row.text),
        bad=bad,
        max_items=BATCH_TEXTS,
        live=source.is_stream,
    )
    return (FilledRow(row.text if row else "", found) for row, found in rows)
