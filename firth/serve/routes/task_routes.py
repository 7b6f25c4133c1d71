"""`/fill`, `/classify`, `/tag`, `/answer` and `/score`: the JSON of the verbs of these names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firth.data.cleaning import is_invisible
from firth.inference.infilling.fill_methods import EncodedBlanks, FillResult
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.scoring.text_scoring import TextScore
from firth.serve.api_errors import ApiError
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.field_kinds import MAX_INPUTS, TEXT, TEXTS, any_of, boolean, integer, list_of
from firth.serve.model_pool import PoolEntry
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.served_model import ServedModel
from firth.tasks.batched_inference import batched_outputs
from firth.tasks.ensembles import max_task_length, task_template, truncation_note
from firth.tasks.readers.examples import LabelledExample, QuestionExample
from firth.tasks.task import Answer, EncodedExample, Example

MAX_TOP = 1000
MAX_BATCHES = 128  # that one input may take: it cannot be interrupted
PAIR = list_of(TEXT, "a pair of strings", minimum=2, maximum=2)
ROWS = list_of(any_of(TEXT, PAIR), "a list of strings or pairs", minimum=1, maximum=MAX_INPUTS)
TRUNCATE = "Truncate a text that is longer than the model's maximum length; else it is an error."
Item = tuple[Example, EncodedExample]


@dataclass(frozen=True, kw_only=True)
class FillFields(RequestFields):
    """The parameters of `/fill`."""

    text: Any = parameter("Text or texts with blanks: [MASK], <mask>, <extra_id_0> or ___.", TEXTS)
    top: int = parameter("Candidates per blank.", integer(minimum=1, maximum=MAX_TOP), 5)
    targets: Any = parameter("Score only these words.", TEXTS, ())


@dataclass(frozen=True, kw_only=True)
class PredictFields(RequestFields):
    """The parameters of `/classify` and `/tag`."""

    texts: Any = parameter(
        "Text or texts; for tasks on two texts, a list of pairs.", any_of(TEXT, ROWS)
    )
    truncate: bool = parameter(TRUNCATE, boolean(), False)


@dataclass(frozen=True, kw_only=True)
class AnswerFields(RequestFields):
    """The parameters of `/answer`."""

    question: str = parameter("A question about the context.", TEXT)
    context: str = parameter("The text that may contain the answer; of any length.", TEXT)


@dataclass(frozen=True, kw_only=True)
class ScoreFields(RequestFields):
    """The parameters of `/score`."""

    text: Any = parameter("Text or texts whose log-probability to compute.", TEXTS)
    context: str | None = parameter(
        "What precedes the text; an encoder-decoder's input.", TEXT, None
    )


# ---- blanks -----------------------------------------------------------------------------------


def _fill(
    served: ServedModel, settings: tuple[int, tuple[str, ...]], texts: Sequence[EncodedBlanks]
) -> list[FillResult]:
    top, targets = settings
    return fill_batch(served.model.blank_filler(), texts, top=top, targets=targets)


async def fill(state: ServerState, fields: FillFields) -> dict[str, Any]:
    """Predict the words in the blanks of texts."""
    entry = state.pool.find(fields.model, "fill")
    texts = [fields.text] if isinstance(fields.text, str) else fields.text
    targets = (fields.targets,) if isinstance(fields.targets, str) else tuple(fields.targets)
    filler = entry.served.model.blank_filler()
    encoded = await off_loop(sum(map(len, texts)), lambda: [*map(filler.encode, texts)])
    # Several blanks are filled by a beam search: a pass over `top` copies for each.
    sizes = [len(one.ids) * _passes(one, fields.top) for one in encoded]
    settings = (fields.top, targets)
    found = await compute(entry, _fill, settings, encoded, sizes)
    values = [one.values() for one in found]
    return values[0] if isinstance(fields.text, str) else {"results": values}


def _passes(one: EncodedBlanks, top: int) -> int:
    return 1 + (len(one.blanks) - 1) * top


# ---- tasks ------------------------------------------------------------------------------------


def predict_items(served: ServedModel, settings: None, items: Sequence[Item]) -> list[Answer]:
    """Predict encoded examples."""
    task, metadata = served.task()
    examples, encoded = [item[0] for item in items], [item[1] for item in items]
    outputs = batched_outputs(task, served.model.network, encoded, metadata)
    return task.answers(examples, encoded, outputs, metadata)


def encode_examples(served: ServedModel, examples: Sequence[Example]) -> list[Item]:
    """Tokenize the examples of the model's task."""
    task, metadata = served.task()
    template = task_template(served.model, task, metadata)
    return list(zip(examples, task.encode(examples, template, metadata), strict=True))


async def predict_examples(
    entry: PoolEntry, examples: Sequence[Example], *, truncate: bool
) -> tuple[dict[str, Any], int]:
    """Predict examples; return the values of `firth predict` and the number of tokens.

    An example that is too long is an error unless it may be truncated.
    """
    for i, example in enumerate(examples):
        if all(map(is_invisible, example.inputs)):
            raise ApiError(400, f"Text {i} (counted from 0) is empty.", param="texts")
    size = sum(len(text) for example in examples for text in example.inputs)
    items = await off_loop(size, encode_examples, entry.served, examples)
    cut = [i for i, (_, item) in enumerate(items) if item.cut]
    if cut and not truncate:
        limit = max_task_length(entry.served.model, *entry.served.task())
        raise ApiError(
            400,
            f"Text {cut[0]} (counted from 0) is longer than the model's maximum length of "
            f"{limit:,} tokens: shorten it, or set `truncate` to true.",
            param="texts",
            code="context_length_exceeded",
        )
    answers = await compute(entry, predict_items, None, items, [item.size for _, item in items])
    name = entry.served.task()[0].name
    notes = truncation_note(len(cut), len(items))
    tokens = sum(item.size for _, item in items)
    return {"task": name, "predictions": answers, "notes": notes}, tokens


async def classify(state: ServerState, fields: PredictFields) -> dict[str, Any]:
    """Predict labels or a number for texts or pairs of texts."""
    entry = state.pool.find(fields.model, "classify")
    rows = [fields.texts] if isinstance(fields.texts, str) else fields.texts
    pair = getattr(entry.served.task()[0], "pair", True)  # None: texts or pairs
    for i, row in enumerate(rows):
        if pair is not None and pair != isinstance(row, list):
            wanted = "a pair of strings" if pair else "a string"
            raise ApiError(
                400, f"Element {i} of `texts` must be {wanted} for this model.", param="texts"
            )
    found, _ = await predict_examples(entry, labelled_examples(rows), truncate=fields.truncate)
    return found


def labelled_examples(rows: Sequence[str | list[str]]) -> list[LabelledExample]:
    """Make examples of texts and of pairs of texts."""
    pairs = [(row, None) if isinstance(row, str) else (row[0], row[1]) for row in rows]
    return [LabelledExample(text=first, second=second) for first, second in pairs]


async def tag(state: ServerState, fields: PredictFields) -> dict[str, Any]:
    """Predict a tag for each word of texts."""
    entry = state.pool.find(fields.model, "tag")
    texts = [fields.texts] if isinstance(fields.texts, str) else fields.texts
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "`texts` must be a string or a list of strings.", param="texts")
    task, _ = entry.served.task()
    examples = [task.example(text) for text in texts]
    found, _ = await predict_examples(entry, examples, truncate=fields.truncate)
    return found


async def answer(state: ServerState, fields: AnswerFields) -> dict[str, Any]:
    """Find the answer to a question in its context."""
    entry = state.pool.find(fields.model, "answer")
    example = QuestionExample(id="", question=fields.question, context=fields.context)
    found, _ = await predict_examples(entry, [example], truncate=True)
    return found


# ---- scores -----------------------------------------------------------------------------------


def _score(served: ServedModel, context: str | None, texts: Sequence[str]) -> list[TextScore]:
    return served.model.score(list(texts), context)


async def score(state: ServerState, fields: ScoreFields) -> dict[str, Any]:
    """Compute the log-probability of texts, per token and in total."""
    entry = state.pool.find(fields.model, "score")
    texts = [fields.text] if isinstance(fields.text, str) else fields.text
    encode = entry.served.model.require_tokenizer().encode
    context = fields.context
    read = [*texts, context or ""]
    *lengths, more = await off_loop(
        sum(map(len, read)), lambda: [len(encode(text)) for text in read]
    )
    masked = not entry.served.model.config.has_decoder  # one pass for each token
    sizes = [1 + (size * size if masked else size + more) for size in lengths]
    found = await compute(entry, _score, context, texts, sizes)
    values = [one.values() for one in found]
    return values[0] if isinstance(fields.text, str) else {"results": values}


async def compute(
    entry: PoolEntry, function: Any, settings: Any, inputs: Sequence[Any], sizes: Sequence[int]
) -> list[Any]:
    """Compute through the queue and the worker of a model."""
    most = MAX_BATCHES * entry.worker.batch_tokens
    if sizes and (largest := max(sizes)) > most:
        raise ApiError(
            413,
            f"An input needs the computation of {largest:,} tokens, more than {most:,}: shorten "
            "it, or ask for less.",
        )
    with entry.admission.reserve(sum(sizes)):
        return await entry.worker.run(function, settings, inputs, sizes)


ROUTES = (
    ApiRoute("POST", "/fill", "The words in the blanks of a text.", fill, FillFields),
    ApiRoute("POST", "/classify", "Labels of texts or pairs of texts.", classify, PredictFields),
    ApiRoute("POST", "/tag", "A tag for each word of texts.", tag, PredictFields),
    ApiRoute("POST", "/answer", "The answer to a question in a text.", answer, AnswerFields),
    ApiRoute("POST", "/score", "Log-probabilities of texts.", score, ScoreFields),
)
