"""Log-probabilities of texts in memory, of tables and of files."""

from __future__ import annotations

from typing import Unpack, overload

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.inference.scoring.text_scoring import TextScore
from firth.jobs.row_streams import EncodedText, read_texts
from firth.jobs.text_inputs import TextInputOptions
from firth.model import AnyModel, load_if_needed
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import answer_good_rows
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.errors import UsageError


@overload
def score(  # type: ignore[overload-overlap]
    model: AnyModel, texts: str, context: str | None = None, **options: Unpack[TextInputOptions]
) -> TextScore: ...


@overload
def score(
    model: AnyModel, texts: Data, context: Data | None = None, **options: Unpack[TextInputOptions]
) -> list[TextScore | None]: ...


@check_arguments
@restored_torch_state()
def score(
    model: AnyModel,
    texts: Data,
    context: Data | None = None,
    *,
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    device: Device = None,
) -> TextScore | list[TextScore | None]:
    """Compute the log-probability of each text, per token and in total; see `Model.score`.

    `texts` is a text, a list or Series of texts, a table with a text `column`, or a `Path`; a list
    gives a list of scores. `context` is what precedes all texts, or one text for each. The score of
    a bad row is None, and its error is logged; with `strict`, it is raised.
    """
    rows = read_texts(texts, "texts", column, format)
    contexts = None if context is None else as_texts(context, "context")
    if contexts is not None and not isinstance(context, str) and len(contexts) != len(rows):
        raise UsageError(f"There are {len(rows)} texts, but {len(contexts)} contexts.")
    loaded = load_if_needed(model, device, dtype=dtype)

    def answer(rows: list[EncodedText]) -> list[TextScore]:
        own = contexts and [contexts[row.number % len(contexts)] for row in rows]
        return loaded.score([row.text for row in rows], own)

    scores = answer_good_rows(rows, answer, strict=strict)
    return scores[0] if isinstance(texts, str) else scores
