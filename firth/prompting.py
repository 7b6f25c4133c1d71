"""Prompting a model as it is: zero-, one- and few-shot, with nothing learned.

For `classify`, `pair` and `choice` every possible answer is scored where a prompt leaves room for
it, and the likeliest is taken; for `seq2seq` the model writes the answer. What is asked are texts,
or a file that says what is right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firth.asking import Progress, open_model
from firth.draws import Floats
from firth.errors import MismatchError, Misuse, storage_errors
from firth.files import growing_file
from firth.inference.answering import Question, Said, choose, write
from firth.inference.candidates import Speaker
from firth.inference.prompt import Wording, make_wording
from firth.metrics.bootstrap import Figure, means, plain_figures
from firth.model import Model
from firth.objectives.table import fills
from firth.prompt_answers import JUDGES, guess
from firth.prompt_material import LABELLED, Material, PromptJob, drawn, gather, questions
from firth.tasks.task import Answer
from firth.text.readers import Bad


@dataclass(frozen=True)
class Draw:
    """One choice of examples, and what it was worth."""

    shown: list[int]  # the lines of the examples; none where each question has its own
    right: dict[str, Floats]  # of each figure, (n,) how right each answer is

    @property
    def figures(self) -> dict[str, Figure]:
        """What the answers were worth."""
        return means(self.right) if self.right else {}

    def values(self) -> dict[str, Any]:
        """The draw as plain JSON values."""
        return {"examples": self.shown, "metrics": plain_figures(self.figures)}


@dataclass(frozen=True)
class Prompted:
    """What a model answered, and what that is worth where it is known what is right."""

    task: str
    n: int
    shots: int
    prompt: str  # the first one, as an example
    draws: list[Draw]
    answers: list[Answer]  # to texts; those to a file are written to a file
    words: dict[str, str] = field(default_factory=dict)  # label -> the word that is scored
    guess: float | None = None  # how often the commonest answer alone would be right
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Figure]:
        """The mean of all draws; its interval is that of other questions."""
        names = self.draws[0].right
        if not names:
            return {}
        return means({name: np.mean([d.right[name] for d in self.draws], 0) for name in names})

    @property
    def deviations(self) -> dict[str, float]:
        """How far apart the figures of several draws are: their standard deviation."""
        if len(self.draws) < 2:
            return {}
        of = {name: [draw.right[name].mean() for draw in self.draws] for name in self.figures}
        return {name: float(np.std(values, ddof=1)) for name, values in of.items()}

    def values(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        metrics = plain_figures(self.figures)
        for name, deviation in self.deviations.items():
            metrics[name]["deviation"] = deviation
        return {
            "task": self.task,
            "n": self.n,
            "shots": self.shots,
            "metrics": metrics,
            "guess": self.guess,
            "draws": [draw.values() for draw in self.draws],
            "labels": self.words,
            "prompt": self.prompt,
            "answers": self.answers,
            "notes": self.notes,
        }


def prompt(
    model: str | Path | Model,
    queries: Sequence[str] | str = (),
    *,
    out: str | Path | None = None,
    device: str | None = None,
    bad: Bad | None = None,
    progress: Progress = lambda what, done, there: None,
    **asked: Any,
) -> Prompted:
    r"""Ask a model in words, behind a few examples; nothing is learned.

    `queries` are texts to answer (for `pair` two that are compared, for `choice` a text and its
    choices). What is `asked` are the fields of `PromptJob`: `data` is a file of texts; `examples`
    are a file, or pairs of a text and its answer, of which `shots` are shown; `labels` are words,
    or say which word stands for which label. With `calibrate`, labels that are likely whatever the
    text count less; so they do unless something else is said, for labels that are not behind
    examples of each text's own. With `out`, every answer is written there as a line of JSON. `bad`
    is told of rows that cannot be read where answers are written, so that the others are answered.

    >>> import tokenizers; from firth import Tokenizer
    >>> from firth.models.config import ModelConfig
    >>> from firth.models.transformer import Transformer
    >>> words = tokenizers.models.WordLevel({"?": 0, "dull": 1, "fine": 2}, unk_token="?")
    >>> config = ModelConfig(architecture="decoder", vocabulary=3, width=8, layers=1, heads=2,
    ...                      inner=16, context=32)
    >>> network = Transformer(config, ["language"]).eval()
    >>> tiny = Model(network, Tokenizer(tokenizers.Tokenizer(words), {}))
    >>> said = prompt(tiny, "What a day!", task="classify", labels=["dull", "fine"],
    ...               template="{text} It was{label}")
    >>> said.prompt, said.answers[0]["label"] in ("dull", "fine")
    ('What a day! It was', True)
    """
    job = PromptJob.of(queries, asked, known=out is None)
    ask = partial(make_wording, job.task, job.template, job.instruction)
    wording = ask()  # a bad template is told at once
    material = gather(job, bad)
    speaker = _speaker(open_model(model, device), job, wording)
    wording = ask(cloze=speaker.cloze)
    _check_wording(wording, speaker)
    notes, by_mean = _scoring(job, material, speaker, wording)
    answer = partial(write, speaker, wording, most=job.max_new_tokens)
    if job.task != "seq2seq":
        answer = partial(choose, speaker, wording, calibrate=job.calibrates, by_mean=by_mean)
    count = Counter[str]()
    with _sink(out) as keep:
        made = [
            _draw(job, material, number, answer, keep, count, progress)
            for number in range(job.draws)
        ]
    return Prompted(
        task=job.task,
        n=len(material.asked),
        shots=material.shots,
        prompt=made[0][2],
        draws=[draw for draw, *_ in made],
        answers=made[0][1] if job.data is None else [],
        words=material.words,
        guess=guess(job.task, material.asked),
        notes=[*material.notes, *notes, *_lengths(count, speaker.room)],
    )


Keep = Callable[[Answer], None]
Answering = Callable[[Iterable[Question]], Iterator[Said]]


def _draw(
    job: PromptJob,
    material: Material,
    number: int,
    answer: Answering,
    keep: Keep,
    count: Counter[str],
    progress: Progress,
) -> tuple[Draw, list[Answer], str]:
    """Ask all questions behind one choice of examples; the first prompt goes with the answers."""
    shown = drawn(job, material, number)
    lines = []
    if job.picking != "nearest" and material.shots:
        lines = [material.shown[i].line for i in next(shown)]
    there, first = len(material.asked), ""
    right: dict[str, list[float]] = {}
    answers: list[Answer] = []
    said = answer(questions(job, material, shown))
    for i, (example, one) in enumerate(zip(material.asked, said, strict=True)):
        own, how_right = JUDGES[job.task](example, one, material.words)
        first = first or one.put.text
        count.update(dropped=one.put.dropped > 0, cut=one.put.cut, prompts=1)
        for name, value in how_right.items():
            right.setdefault(name, []).append(value)
        keep({"draw": number, "line": example.line, **own} if job.data is not None else own)
        answers += [own] if job.data is None else []
        progress("answered", number * there + i + 1, job.draws * there)
    return Draw(lines, {name: np.array(values) for name, values in right.items()}), answers, first


# ---- who is asked -------------------------------------------------------------------------------


def _speaker(model: Model, job: PromptJob, wording: Wording) -> Speaker:
    """A model as it is prompted, or why it cannot be."""
    where, config = model.source or model.path or "This model", model.config
    encoder = config.architecture == "encoder"
    if "language" not in model.network.heads:
        what = (
            f"was taught {model.task.task}, for which `firth predict` asks it"
            if (model.task is not None)
            else "makes vectors, not words"
        )
        raise MismatchError(
            f"{where} has no language head: it {what}. A prompt takes a decoder, an "
            "encoder-decoder, or an encoder that still has the head it was pre-trained with."
        )
    if encoder and job.task == "seq2seq":
        raise MismatchError(
            f"{where} is an encoder, which does not write: it sees both sides of every token. "
            "Prompt a decoder or an encoder-decoder, or let this one choose among answers "
            "(--task classify, pair or choice)."
        )
    tokenizer = model.tokenizer_needed()
    has_mask = "mask" in tokenizer.special_ids
    if encoder and not has_mask:
        raise MismatchError(f"The tokenizer of {where} has no mask token, so it has no blanks.")
    blanks = fills(model.objective) == "masks" and has_mask and wording.template.blank
    reader = model.reader_needed()
    return Speaker(model.network, tokenizer, reader, cloze=encoder or blanks, taught=model.writes)


def _check_wording(wording: Wording, speaker: Speaker) -> None:
    """Refuse a template that shows a model its text too late."""
    template = wording.template
    fills = speaker.cloze or (speaker.behind and template.blank and speaker.sentinel is not None)
    if not template.sees_all and not fills:
        raise Misuse(
            "This model reads from the left: the place of the answer belongs behind the text in "
            "the template."
        )


def _scoring(
    job: PromptJob, material: Material, speaker: Speaker, wording: Wording
) -> tuple[list[str], bool]:
    """Whether labels are scored by the mean of their tokens, and what there is to say about it."""
    if job.task not in LABELLED:
        return [], False
    words = wording.prompt((), {})
    tokens: dict[str, Sequence[int]] = {}
    for label, word in material.words.items():
        ids = speaker.ask(*words, word, blank=wording.template.blank).targets
        if speaker.tokenizer.unknown_id in ids:
            raise MismatchError(
                f"The word {word!r} is not in the vocabulary of this model; give the label "
                f"{label!r} another with --labels {label}=WORD."
            )
        same = [other for other in tokens if tokens[other] == ids]
        if same:
            raise MismatchError(
                f"{material.words[same[0]]!r} and {word!r} are the same tokens to this model; "
                f"give one of the labels another word with --labels {label}=WORD."
            )
        tokens[label] = ids
    if job.mean is not None or len({len(ids) for ids in tokens.values()}) == 1:
        return [], bool(job.mean)
    sizes = ", ".join(f"{material.words[label]} {len(ids)}" for label, ids in tokens.items())
    note = f"The words differ in tokens ({sizes}): each is scored by the mean of its tokens."
    return [note], True


# ---- what else is said --------------------------------------------------------------------------


def _lengths(count: Counter[str], room: int) -> list[str]:
    """What did not fit."""
    notes = []
    if count["dropped"]:
        notes.append(
            f"{count['dropped']:,} of {count['prompts']:,} prompts were longer than the {room:,} "
            "tokens that the model reads; examples were left out at their front."
        )
    if count["cut"]:
        notes.append(f"{count['cut']:,} were too long even so, and were cut at their front.")
    return notes


@contextmanager
def _sink(out: str | Path | None) -> Iterator[Keep]:
    """Where answers are kept: whole lines of JSON, as soon as they are known."""
    if out is None:
        yield lambda answer: None
        return
    path = Path(out)
    with storage_errors(path, "Free some space or name another place."), growing_file(path) as line:
        yield lambda answer: line(json.dumps(answer, ensure_ascii=False))
