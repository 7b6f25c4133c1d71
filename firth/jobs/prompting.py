"""Zero-, one- and few-shot prompting, without training.

For `classify`, `pair` and `choice`, every possible answer is scored as a completion of the prompt,
and the most likely one is chosen; for `seq2seq`, the model generates the answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.memory import Data
from firth.inference.generation.chat_template import render_chat
from firth.inference.prompting.candidates import PromptedModel, check_mask_token
from firth.inference.prompting.prompt_scorer import (
    PromptPrediction,
    PromptQuestion,
    generate_answers,
    score_answers,
)
from firth.inference.prompting.templates import PromptFormat, make_prompt_format
from firth.jobs.prompt_config import LABELLED, PromptConfig
from firth.jobs.prompt_data import (
    PromptDataset,
    build_questions,
    load_prompt_dataset,
    select_demonstrations,
)
from firth.jobs.prompt_results import SCORERS, majority_accuracy
from firth.metrics.bootstrap import Metric, means, metrics_to_json
from firth.model import Model, load_if_needed
from firth.objectives.registry import infill_format
from firth.tasks.ensembles import Progress
from firth.tasks.task import Answer
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of
from firth.utils.devices import Device, restored_torch_state
from firth.utils.errors import MismatchError, UsageError, storage_errors
from firth.utils.files import growing_file
from firth.utils.notebook import show_progress
from firth.utils.outputs import check_output
from firth.utils.rng import Floats


@dataclass(frozen=True)
class DemonstrationSet:
    """One set of demonstrations and the scores of the answers with it."""

    shown: list[int]  # lines of the demonstrations; [] if each query has its own
    right: dict[str, Floats]  # metric -> (n,) score of each answer

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics with these demonstrations."""
        return means(self.right) if self.right else {}

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {"examples": self.shown, "metrics": metrics_to_json(self.metrics)}


@dataclass(frozen=True)
class PromptResult:
    """Answers of a prompted model and, with gold answers, their metrics."""

    task: str
    n: int
    shots: int
    prompt: str  # the first one, for display
    demonstration_sets: list[DemonstrationSet]
    answers: list[Answer]  # with the first demonstrations; those of a file are written to `out`
    words: dict[str, str] = field(default_factory=dict)  # label -> word that is scored
    guess: float | None = None  # accuracy of always predicting the most frequent answer
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The mean over all sets of demonstrations; queries are resampled for the interval."""
        names = self.demonstration_sets[0].right
        if not names:
            return {}
        return means(
            {name: np.mean([d.right[name] for d in self.demonstration_sets], 0) for name in names}
        )

    @property
    def deviations(self) -> dict[str, float]:
        """The standard deviation of each metric over the sets of demonstrations."""
        if len(self.demonstration_sets) < 2:
            return {}
        of = {
            name: [draw.right[name].mean() for draw in self.demonstration_sets]
            for name in self.metrics
        }
        return {name: float(np.std(values, ddof=1)) for name, values in of.items()}

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        metrics = metrics_to_json(self.metrics)
        for name, deviation in self.deviations.items():
            metrics[name]["deviation"] = deviation
        return {
            "task": self.task,
            "n": self.n,
            "shots": self.shots,
            "metrics": metrics,
            "guess": self.guess,
            "draws": [draw.values() for draw in self.demonstration_sets],
            "labels": self.words,
            "prompt": self.prompt,
            "answers": self.answers,
            "notes": self.notes,
        }


@check_arguments
@restored_torch_state()
def prompt(
    model: str | Path | Model,
    queries: Sequence[str] | str = (),
    *,
    task: str = "seq2seq",
    data: Data | None = None,
    limit: int = 0,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    strict: bool = False,
    examples: Data | None = None,
    shots: int | None = None,
    pick: str | None = None,
    near: str | Path | Model | None = None,
    draws: int = 1,
    seed: int = 0,
    labels: Mapping[str, str] | Sequence[str] | str | None = None,
    template: str | None = None,
    instruction: str = "",
    chat: bool = False,
    calibrate: bool | None = None,
    mean: bool | None = None,
    max_new_tokens: int = 32,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: Device = None,
    progress: Progress = show_progress,
) -> PromptResult:
    r"""Prompt a model with zero, one or a few demonstrations, without training.

    `queries` are input texts (for `pair` two texts, for `choice` a text and its choices), or `data`
    is a file or a table of examples. `shots` demonstrations are drawn from `examples`, a file or a
    table; a list of tuples, such as (text, answer) pairs, is shown in its order. `labels` are
    words, map labels to words, or are written as for `--labels`; `calibrate` corrects for labels
    that are likely for any input. With `chat`, the model's chat template is used, and
    demonstrations are earlier turns. With `out`, every answer is written there as a line of JSON.
    Bad rows are skipped and noted; with `strict`, they are an error.

    >>> import tokenizers; from firth import Tokenizer
    >>> from firth.models.transformer import Transformer
    >>> from firth.models.transformer_config import TransformerConfig
    >>> words = tokenizers.models.WordLevel({"?": 0, "dull": 1, "fine": 2}, unk_token="?")
    >>> sizes = dict(hidden_size=8, num_layers=1, num_heads=2, ffn_size=16)
    >>> config = TransformerConfig(architecture="decoder", vocab_size=3, max_positions=32, **sizes)
    >>> network = Transformer(config, ["language"]).eval()
    >>> tiny = Model(network, Tokenizer(tokenizers.Tokenizer(words), {}))
    >>> result = prompt(tiny, "What a day!", task="classify", labels=["dull", "fine"],
    ...               template="{text} It was{label}")
    >>> result.prompt, result.answers[0]["label"] in ("dull", "fine")
    ('What a day! It was', True)
    """
    config = config_of(PromptConfig, locals())
    if out is not None:
        check_output(out, overwrite)
    make_format = partial(make_prompt_format, config.task, config.template, config.instruction)
    prompt_format = make_format()  # an invalid template raises before the model is loaded
    dataset = load_prompt_dataset(config)
    prompted_model = _prompted_model(load_if_needed(model, device), config, prompt_format)
    render = partial(render_chat, prompted_model.tokenizer) if chat else None
    prompt_format = make_format(cloze=prompted_model.cloze, render_chat=render)
    _check_prompt_format(prompt_format, prompted_model)
    notes, by_mean = _scoring(config, dataset, prompted_model, prompt_format)
    answer = partial(
        generate_answers, prompted_model, prompt_format, max_new_tokens=config.max_new_tokens
    )
    if config.task != "seq2seq":
        answer = partial(
            score_answers,
            prompted_model,
            prompt_format,
            calibrate=config.calibrates,
            by_mean=by_mean,
        )
    count = Counter[str]()
    with _open_output(out) as write_answer:
        made = [
            _draw(config, dataset, number, answer, write_answer, count, progress)
            for number in range(config.draws)
        ]
    return PromptResult(
        task=config.task,
        n=len(dataset.queries),
        shots=dataset.shots,
        prompt=made[0][2],
        demonstration_sets=[draw for draw, *_ in made],
        answers=made[0][1],
        words=dataset.words,
        guess=majority_accuracy(config.task, dataset.queries),
        notes=[*dataset.notes, *notes, *_length_notes(count, prompted_model.max_length)],
    )


WriteAnswer = Callable[[Answer], None]
AnswerFunction = Callable[[Iterable[PromptQuestion]], Iterator[PromptPrediction]]


def _draw(
    config: PromptConfig,
    dataset: PromptDataset,
    number: int,
    answer: AnswerFunction,
    write_answer: WriteAnswer,
    count: Counter[str],
    progress: Progress,
) -> tuple[DemonstrationSet, list[Answer], str]:
    """Answer all queries with one set of demonstrations; also return the first prompt."""
    shown = select_demonstrations(config, dataset, number)
    lines = []
    if config.picking != "nearest" and dataset.shots:
        lines = [dataset.shown[i].line for i in next(shown)]
    there, first = len(dataset.queries), ""
    right: dict[str, list[float]] = {}
    answers: list[Answer] = []
    predictions = answer(build_questions(config, dataset, shown))
    for i, (example, one) in enumerate(zip(dataset.queries, predictions, strict=True)):
        own, scores = SCORERS[config.task](example, one, dataset.words)
        first = first or one.prompt.text
        count.update(dropped=one.prompt.dropped > 0, cut=one.prompt.cut, prompts=1)
        for name, value in scores.items():
            right.setdefault(name, []).append(value)
        place = {} if config.data is None else {"draw": number, "line": example.line}
        write_answer({**place, **own})
        answers += [] if isinstance(config.data, str | Path) else [own]
        progress("answered", number * there + i + 1, config.draws * there)
    return (
        DemonstrationSet(lines, {name: np.array(values) for name, values in right.items()}),
        answers,
        first,
    )


# ---- the model -------------------------------------------------------------------------------


def _prompted_model(
    model: Model, config: PromptConfig, prompt_format: PromptFormat
) -> PromptedModel:
    """Prepare a model for prompting, or raise MismatchError."""
    where, architecture = model.source or model.path or "This model", model.config.architecture
    encoder = architecture == "encoder"
    if "language" not in model.network.heads:
        what = (
            f"was fine-tuned on {model.task.task}; use `firth predict`"
            if (model.task is not None)
            else "computes embeddings only"
        )
        raise MismatchError(
            f"{where} has no language head: it {what}. A prompt takes a decoder, an "
            "encoder-decoder, or an encoder that still has the head it was pre-trained with."
        )
    if encoder and config.task == "seq2seq":
        raise MismatchError(
            f"{where} is an encoder, which cannot generate text. Use a decoder or an "
            "encoder-decoder, or --task classify, pair or choice."
        )
    tokenizer = model.require_tokenizer()
    if encoder:
        check_mask_token(tokenizer, str(where))
    fills_masks = infill_format(model.objective) == "masks" and "mask" in tokenizer.special_ids
    blanks = fills_masks and prompt_format.template.blank
    reader = model.require_encoder_tokenizer()
    if config.chat and (encoder or blanks):
        raise MismatchError(f"{where} is no chat model: remove `chat`.")
    return PromptedModel(
        model.network,
        tokenizer,
        reader,
        cloze=encoder or blanks,
        chat=config.chat,
    )


def _check_prompt_format(prompt_format: PromptFormat, prompted_model: PromptedModel) -> None:
    """Raise UsageError for a template whose answer comes before the input in a causal model."""
    template = prompt_format.template
    can_infill = prompted_model.cloze or (
        prompted_model.is_encoder_decoder and template.blank and prompted_model.sentinel is not None
    )
    if not template.answer_is_last and not can_infill:
        raise UsageError(
            "This model is causal: the answer must come after the text in the template."
        )


def _scoring(
    config: PromptConfig,
    dataset: PromptDataset,
    prompted_model: PromptedModel,
    prompt_format: PromptFormat,
) -> tuple[list[str], bool]:
    """Decide whether labels are scored by the mean of their tokens; also return notes."""
    if config.task not in LABELLED:
        return [], False
    words = prompt_format.prompt((), {})
    tokens: dict[str, Sequence[int]] = {}
    for label, word in dataset.words.items():
        ids = prompted_model.make_request(*words, word, blank=prompt_format.template.blank).targets
        if prompted_model.tokenizer.unknown_id in ids:
            raise MismatchError(
                f"The word {word!r} is not in the vocabulary of this model; give the label "
                f"{label!r} another with --labels {label}=WORD."
            )
        same = [other for other in tokens if tokens[other] == ids]
        if same:
            raise MismatchError(
                f"{dataset.words[same[0]]!r} and {word!r} are the same tokens to this model; "
                f"give one of the labels another word with --labels {label}=WORD."
            )
        tokens[label] = ids
    if config.mean is not None or len({len(ids) for ids in tokens.values()}) == 1:
        return [], bool(config.mean)
    sizes = ", ".join(f"{dataset.words[label]} {len(ids)}" for label, ids in tokens.items())
    note = f"Label words have different numbers of tokens ({sizes}): the mean is used as score."
    return [note], True


# ---- notes and output --------------------------------------------------------------------------


def _length_notes(count: Counter[str], room: int) -> list[str]:
    """Notes on prompts that exceed the maximum length."""
    notes = []
    if count["dropped"]:
        notes.append(
            f"{count['dropped']:,} of {count['prompts']:,} prompts exceeded {room:,} tokens; their "
            "first demonstrations were left out."
        )
    if count["cut"]:
        notes.append(f"{count['cut']:,} were still too long and were truncated at the start.")
    return notes


@contextmanager
def _open_output(out: str | Path | None) -> Iterator[WriteAnswer]:
    """Open the output file, which gets one line of JSON per answer as it is computed."""
    if out is None:
        yield lambda answer: None
        return
    path = Path(out)
    with storage_errors(path), growing_file(path) as line:
        yield lambda answer: line(json.dumps(answer, ensure_ascii=False))
