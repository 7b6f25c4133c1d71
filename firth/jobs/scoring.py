"""Log-probabilities of texts in memory, of tables and of files."""

from __future__ import annotations

from typing import Unpack, overload

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.data.readers import ReadOptions
from firth.inference.scoring.text_scoring import TextScore
from firth.jobs.text_inputs import TextInputOptions
from firth.model import AnyModel, load_if_needed
from firth.utils.arguments import check_arguments
from firth.utils.devices import Device, Dtype, restored_torch_state


@overload
def score(  # type: ignore[overload-overlap]
    model: AnyModel, texts: str, context: str | None = None, **options: Unpack[TextInputOptions]
) -> TextScore: ...


@overload
def score(
    model: AnyModel, texts: Data, context: Data | None = None, **options: Unpack[TextInputOptions]
) -> list[TextScore]: ...


@check_arguments
@restored_torch_state()
def score(
    model: AnyModel,
    texts: Data,
    context: Data | None = None,
    *,
    column: str = "text",
    format: str | None = None,
    dtype: Dtype = None,
    device: Device = None,
) -> TextScore | list[TextScore]:
    """Compute the log-probability of each text, per token and in total; see `Model.score`.

    `texts` is a text, a list or Series of texts, a table with a text `column`, or a `Path`; a list
    gives a list of scores. `context` is what precedes the text, or one text for each.
    """
    reading = ReadOptions(column=column, format=format)
    loaded = load_if_needed(model, device, dtype=dtype)
    contexts = None if context is None else as_texts(context, "context")
    scores = loaded.score(as_texts(texts, "texts", reading), contexts)
    return scores[0] if isinstance(texts, str) else scores
