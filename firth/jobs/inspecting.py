"""`firth.inspect`: what happens inside a model for some texts, or inside two for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.inference.attention_maps import Numbers
from firth.inference.generation.generation_config import GenerationOptions
from firth.inference.infilling.blanks import has_blanks
from firth.inspection.alignment_matrix import alignment_matrix, has_alignment
from firth.inspection.attribution import attribute, explains, methods_for
from firth.inspection.generation_steps import generation_steps
from firth.inspection.input_text import ModelInput, fit_text, model_input
from firth.inspection.inspection import Analysis, AnalysisSection, Inspection
from firth.inspection.model_comparison import compare_models
from firth.inspection.task_prediction import task_prediction
from firth.inspection.text_attention import text_attention
from firth.inspection.text_neighbours import text_neighbours
from firth.inspection.token_layers import token_layers
from firth.inspection.word_senses import word_senses
from firth.jobs.inspect_config import LIMIT, MAX_NEW_TOKENS, InspectConfig
from firth.model import AnyModel, Model, load_if_needed
from firth.models.language_model import predicts_tokens
from firth.models.static_vectors import StaticVectors
from firth.models.transformer import Transformer
from firth.tokenizers.counting import Progress
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.errors import MismatchError
from firth.utils.notebook import show_progress
from firth.utils.outputs import check_output

LAYER_SECTIONS = (
    "tokens",
    "attention",
    "lens",
    "attribution",
    "generation",
)  # that only a Transformer has
MAX_POSITIONS = 48  # of the logit lens
MAX_ATTRIBUTED = 256  # tokens up to which attribution is shown without being chosen


@check_arguments
@restored_torch_state()
def inspect(
    model: AnyModel,
    texts: Data = (),
    *,
    show: str | Sequence[str] | None = None,
    target: str | None = None,
    text_b: str | None = None,
    question: str | None = None,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    temperature: float | None = None,
    word: str | None = None,
    neighbours: Data | None = None,
    compare: AnyModel | None = None,
    data: Data | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    limit: int = LIMIT,
    seed: int = 0,
    out: str | Path | None = None,
    png: str | Path | None = None,
    overwrite: bool = False,
    dtype: Dtype = None,
    device: Device = None,
    progress: Progress = show_progress,
) -> Inspection:
    """Look inside a model: tokens, attention, logit lens, attribution and generation of texts.

    `show` chooses among these sections, and the nearest words of word vectors or token embeddings
    (`neighbours`); by default all that fit the model. `target` is what is
    explained: a label, a word, or the output of an encoder-decoder; by default the model's own
    prediction. `layers` and `heads` of attention are counted from 1, or from the end with negative
    numbers. `text_b` is the second text of a pair; `question` is a question that the text answers,
    for a model fine-tuned for `span`. `word` shows the vectors of a word in all texts, with
    `neighbours` its nearest words in a corpus. With `compare` and `data`, two models are compared
    on texts, with labels if there are any. `out` is the page to write and `png` a folder for
    images; the result has `save`, `save_images` and `values`.

    >>> found = inspect("stories-encoder", "The [MASK] barked loudly.", show="lens")
    >>> found.values()["texts"][0]["lens"]["layers"][-1]["predictions"][2]["candidates"][0]["token"]
    '·dog'
    """
    config = config_of(InspectConfig, locals())
    for path in (out, png):
        if path is not None:
            check_output(path, overwrite)
    loaded = load_if_needed(model, device, dtype=dtype)
    run = _inspect_texts if compare is None else _compare
    found = run(loaded, config, progress)
    if out is not None:
        found.save(out, overwrite=overwrite)
    if png is not None:
        found.save_images(png, overwrite=overwrite)
    return found


def _name(model: Model) -> str:
    return str(model.source or model.path or "model")


def _compare(model: Model, config: InspectConfig, progress: Progress) -> Inspection:
    assert config.compare is not None
    assert config.data is not None
    other = load_if_needed(config.compare, config.device, dtype=config.dtype)
    found = compare_models(
        model,
        other,
        config.data,
        limit=config.limit,
        seed=config.seed,
        columns=config.columns,
        format=config.format,
        progress=progress,
    )
    return Inspection(
        model=_name(model),
        compared=_name(other),
        sections=(AnalysisSection("comparison", (found,)),),
        notes=found.notes,
    )


def _inspect_texts(model: Model, config: InspectConfig, progress: Progress) -> Inspection:
    generates = config.word is None and (config.sections is None or "generation" in config.sections)
    room = config.max_new_tokens if generates and model.config.architecture == "decoder" else 0
    pairs = [fit_text(model, text, room=room) for text in as_texts(config.texts, "texts")]
    texts = [text for text, _ in pairs]
    notes = [f"Text {i}: {note}" for i, (_, note) in enumerate(pairs, 1) if note]
    sections = list[AnalysisSection]()
    _check_sections(model, config.sections or ())
    if config.word is not None:
        senses = word_senses(model, config.word, texts, neighbours=config.neighbours)
        sections.append(AnalysisSection("senses", (senses,)))
    for number, text in enumerate(texts, 1):
        one = _text_inspection(model, text, config, len(texts))
        names = one.fitting_sections() if config.sections is None else config.sections
        if not names and config.word is None:
            raise MismatchError(
                f"{_name(model)} is a {type(model.network).__name__}, which has nothing to show: "
                "most sections need the layers of a Transformer."
            )
        for place, name in enumerate(names):
            progress(f"{name} of text {number}", place, len(names))
            sections.append(AnalysisSection(name, tuple(ANALYSES[name](one)), number))
        if config.sections is None:
            notes += (f"Text {number}: {note}" for note in one.notes(names))
    return Inspection(
        model=_name(model),
        texts=tuple(texts),
        second=config.question or config.text_b or "",
        sections=tuple(sections),
        notes=tuple(notes),
    )


def _check_sections(model: Model, chosen: Sequence[str]) -> None:
    """Raise MismatchError for a section that the model has nothing for."""
    for name in chosen:
        if name in LAYER_SECTIONS and not isinstance(model.network, Transformer):
            raise MismatchError(
                f"--show {name} needs the layers and the attention of a Transformer, and "
                f"{_name(model)} is a {type(model.network).__name__}."
            )


def _text_inspection(
    model: Model, text: str, config: InspectConfig, texts_on_page: int
) -> TextInspection:
    pair = None
    if config.question is not None:
        pair = config.question, text
    elif config.text_b is not None:
        pair = text, config.text_b
    layers, heads = (
        [numbers] if isinstance(numbers, int) else numbers
        for numbers in (config.layers, config.heads)
    )
    generation = GenerationOptions(max_new_tokens=config.max_new_tokens, seed=config.seed)
    generation |= (
        {"method": "greedy"}
        if config.temperature is None
        else {"method": "sample", "temperature": config.temperature}
    )
    return TextInspection(
        model=model,
        text=text,
        pair=pair,
        target=config.target,
        layers=layers,
        heads=heads,
        generation=generation,
        texts_on_page=texts_on_page,
    )


@dataclass(frozen=True, kw_only=True)
class TextInspection:
    """The analyses of one text, or of two that a model reads together."""

    model: Model
    text: str
    pair: tuple[str, str] | None
    target: str | None
    layers: Numbers
    heads: Numbers
    generation: GenerationOptions
    texts_on_page: int

    @cached_property
    def read(self) -> ModelInput:
        """The tokens that the network reads."""
        return model_input(self.model, self.pair or self.text, self.target)

    def fitting_sections(self) -> list[str]:
        """Return the sections that fit the model and the text."""
        predicts = predicts_tokens(self.model.network) and not self.model.config.label_head
        one = self.pair is None
        fits = {
            "prediction": self.model.task is not None and bool(self.model.config.label_head),
            "tokens": self.model.network.has_layers,
            "attention": self.has_layers,
            "lens": self.has_layers and one and predicts,
            "attribution": self.has_layers and self._is_short and self.explains,
            "generation": self.has_layers and one and predicts and self.generates,
            "alignment": has_alignment(self.model),
            "neighbours": isinstance(self.model.network, StaticVectors),
        }
        return [name for name, fit in fits.items() if fit]

    def notes(self, shown: Sequence[str]) -> Iterator[str]:
        """Yield notes on blanks, and on attributions that are left out."""
        if has_blanks(self.text) and self.model.reads_left_context_only:
            yield "a decoder has no blanks: it reads [MASK] or ___ as ordinary characters."
        if "attribution" in shown or not self.has_layers:
            return
        if len(self.read.ids) > MAX_ATTRIBUTED:
            yield (
                f"attribution takes long for {len(self.read.ids):,} tokens, and is shown if it is "
                "chosen with --show attribution."
            )
        elif predicts_tokens(self.model.network) and not has_blanks(self.text):
            yield "without a blank such as [MASK] there is no prediction to attribute."

    @property
    def _is_short(self) -> bool:
        return len(self.read.ids) <= MAX_ATTRIBUTED

    @property
    def has_layers(self) -> bool:
        """Whether the network has the layers of a Transformer, with attention."""
        return isinstance(self.model.network, Transformer)

    @property
    def explains(self) -> bool:
        """Whether there is a prediction to explain."""
        return explains(self.model, self.pair or self.text)

    @property
    def generates(self) -> bool:
        """Whether tokens are generated."""
        return self.model.config.has_decoder and bool(self.generation.get("max_new_tokens"))

    def prediction(self) -> Iterator[Analysis]:
        """Predict the model's task."""
        yield task_prediction(self.model, self.pair or self.text)

    def tokens(self) -> Iterator[Analysis]:
        """Show the tokens, and what each layer computes of them."""
        yield token_layers(self.model, self.read)

    def attention(self) -> Iterator[Analysis]:
        """Compute the attention of all layers and heads."""
        yield text_attention(
            self.model,
            self.read,
            layers=self.layers,
            heads=self.heads,
            texts_on_page=self.texts_on_page,
        )

    def lens(self) -> Iterator[Analysis]:
        """Compute what each layer would predict."""
        yield self.model.lens(self.text, target=self.target or (), max_positions=MAX_POSITIONS)

    def attribution(self) -> Iterator[Analysis]:
        """Compute the attributions of each method."""
        for method in methods_for(self.model):
            yield attribute(self.model, self.pair or self.text, target=self.target, method=method)

    def neighbours(self) -> Iterator[Analysis]:
        """Find the nearest words of each word."""
        yield text_neighbours(self.model, self.text)

    def alignment(self) -> Iterator[Analysis]:
        """Compute the attention of a recurrent decoder on its source."""
        yield alignment_matrix(self.model, self.text, self.target)

    def generated(self) -> Iterator[Analysis]:
        """Generate token by token."""
        yield generation_steps(self.model, self.text, **self.generation)


ANALYSES: dict[str, Callable[[TextInspection], Iterator[Analysis]]] = {
    "prediction": TextInspection.prediction,
    "tokens": TextInspection.tokens,
    "attention": TextInspection.attention,
    "lens": TextInspection.lens,
    "attribution": TextInspection.attribution,
    "generation": TextInspection.generated,
    "alignment": TextInspection.alignment,
    "neighbours": TextInspection.neighbours,
}
