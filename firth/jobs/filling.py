"""Mask filling and spelling correction: of texts in memory, and of the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Unpack, overload

from firth.data.memory import Data
from firth.inference.infilling.fill_methods import BlankCandidates, FillResult
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.infilling.spelling import CorrectedText, correct_batch, make_corrector
from firth.jobs.row_streams import (
    EncodedText,
    answer_rows,
    encoded_texts,
    read_texts,
)
from firth.jobs.text_inputs import BlankOptions
from firth.model import AnyModel, Model, load_if_needed
from firth.tasks.readers.columns import ONLY_TEXT, find_source
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import BadRows, answer_good_rows
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.errors import InputError

BATCH_TEXTS = 256


@overload
def fill(  # type: ignore[overload-overlap]
    model: AnyModel, texts: str, **options: Unpack[BlankOptions]
) -> BlankCandidates: ...


@overload
def fill(
    model: AnyModel, texts: Data, **options: Unpack[BlankOptions]
) -> list[BlankCandidates | None]: ...


@check_arguments
@restored_torch_state()
def fill(
    model: AnyModel,
    texts: Data,
    *,
    top: int = 5,
    targets: Sequence[str] | str = (),
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    device: Device = None,
) -> BlankCandidates | list[BlankCandidates | None]:
    """Return candidates for each blank of a text ([MASK], <extra_id_0>, ___), best first.

    `texts` is a text, a list or Series of texts, a table with a text `column`, or a `Path`; a list
    gives the blanks of each text. With `targets`, score only these words. A bad row, such as a text
    without a blank, gives None, and its error is logged; with `strict`, it is raised.
    `Model.correct` corrects misspelt words.
    """
    filler = load_if_needed(model, device, dtype=dtype).blank_filler()

    def answer(rows: list[EncodedText]) -> list[BlankCandidates]:
        encoded = [row.encoded for row in rows]
        return [done.blanks for done in fill_batch(filler, encoded, top=top, targets=targets)]

    rows = read_texts(texts, "texts", column, format, filler.encode)
    found = answer_good_rows(rows, answer, strict=strict)
    return found[0] if isinstance(texts, str) else found


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
    bad: BadRows,
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
        partial(encoded_texts, source, ONLY_TEXT, column, encode),
        answer,
        lambda row: len(row.text),
        bad=bad,
        max_items=BATCH_TEXTS,
        live=source.is_stream,
    )
    return (FilledRow(row.text if row else "", found) for row, found in rows)
