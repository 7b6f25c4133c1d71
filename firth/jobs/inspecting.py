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
from firth.inspection.attribution import METHODS, attribute, find_output
from firth.inspection.explained_output import InputRow
from firth.inspection.generation_steps import generation_steps
from firth.inspection.input_text import fit_text, read_ids
from firth.inspection.inspection import Analysis, AnalysisSection, Inspection
from firth.inspection.model_comparison import compare_models
from firth.inspection.text_attention import text_attention
from firth.inspection.token_layers import token_layers
from firth.inspection.word_senses import word_senses
from firth.jobs.inspect_config import LIMIT, MAX_NEW_TOKENS, InspectConfig
from firth.model import AnyModel, Model, load_if_needed
from firth.models.language_model import predicts_tokens
from firth.tokenizers.counting import Progress
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.notebook import show_progress
from firth.utils.outputs import check_output

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

    `show` chooses among these sections; by default all that fit the model. `target` is what is
    explained: a label, a word, or the output of an encoder-decoder; by default the model's own
    prediction. `layers` and `heads` of attention are counted from 1, or from the end with negative
    numbers. `text_b` is the second text of a pair; `question` is asked about the text. `word` shows
    the vectors of a word in all texts, with `neighbours` its nearest words in a corpus. With
    `compare` and `data`, two models are compared on texts, with labels if there are any. `out` is
    the page to write and `png` a folder for images; the result has `save`, `save_images`, `values`.

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
    pairs = [fit_text(model, text) for text in as_texts(config.texts, "texts")]
    texts = [text for text, _ in pairs]
    notes = [f"Text {i}: {note}" for i, (_, note) in enumerate(pairs, 1) if note]
    sections = list[AnalysisSection]()
    if config.word is not None:
        senses = word_senses(model, config.word, texts, neighbours=config.neighbours)
        sections.append(AnalysisSection("senses", (senses,)))
    for number, text in enumerate(texts, 1):
        one = _text_inspection(model, text, config)
        names = one.fitting_sections() if config.sections is None else config.sections
        for place, name in enumerate(names):
            progress(f"{name} of text {number}", place, len(names))
            sections.append(AnalysisSection(name, tuple(ANALYSES[name](one)), number))
        if config.sections is None and len(one.ids) > MAX_ATTRIBUTED:
            notes.append(
                f"Text {number}: attribution takes long for {len(one.ids):,} tokens, and is shown "
                "if it is chosen with --show attribution."
            )
    return Inspection(
        model=_name(model), texts=tuple(texts), sections=tuple(sections), notes=tuple(notes)
    )


def _text_inspection(model: Model, text: str, config: InspectConfig) -> TextInspection:
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

    @cached_property
    def _pair_row(self) -> InputRow | None:
        return None if self.pair is None else find_output(self.model, self.pair).row

    @cached_property
    def ids(self) -> list[int]:
        """The token ids that the network reads."""
        row = self._pair_row
        return read_ids(self.model, self.text) if row is None else row.tokens.tolist()

    @property
    def output(self) -> str | None:
        """The output of an encoder-decoder, if it is given."""
        return self.target if self.model.config.architecture == "encoder-decoder" else None

    def fitting_sections(self) -> list[str]:
        """Return the sections that fit the model and the text."""
        config, one = self.model.config, self.pair is None
        predicts = predicts_tokens(self.model.network) and not config.label_head
        has_target = config.architecture != "encoder" or has_blanks(self.text)
        explains = bool(config.label_head) or (predicts and has_target)
        fits = {
            "tokens": one,
            "attention": True,
            "lens": one and predicts,
            "attribution": explains and len(self.ids) <= MAX_ATTRIBUTED,
            "generation": one and predicts and config.has_decoder and self._generates,
        }
        return [name for name, fit in fits.items() if fit]

    @property
    def _generates(self) -> bool:
        return bool(self.generation.get("max_new_tokens"))

    def tokens(self) -> Iterator[Analysis]:
        """Follow the tokens through the layers."""
        yield token_layers(self.model, self.text, target=self.output)

    def attention(self) -> Iterator[Analysis]:
        """Compute the attention of all layers and heads."""
        both = self.model.config.architecture == "encoder-decoder"
        target = self.model.decoder_ids(self.ids, self.output) if both else []
        segments = None if self._pair_row is None else self._pair_row.segments.tolist()
        yield text_attention(
            self.model, self.ids, target, segments=segments, layers=self.layers, heads=self.heads
        )

    def lens(self) -> Iterator[Analysis]:
        """Compute what each layer would predict."""
        yield self.model.lens(self.text, target=self.output or (), max_positions=MAX_POSITIONS)

    def attribution(self) -> Iterator[Analysis]:
        """Compute the attributions of each method."""
        for method in METHODS:
            yield attribute(self.model, self.pair or self.text, target=self.target, method=method)

    def generated(self) -> Iterator[Analysis]:
        """Generate token by token."""
        yield generation_steps(self.model, self.text, **self.generation)


ANALYSES: dict[str, Callable[[TextInspection], Iterator[Analysis]]] = {
    "tokens": TextInspection.tokens,
    "attention": TextInspection.attention,
    "lens": TextInspection.lens,
    "attribution": TextInspection.attribution,
    "generation": TextInspection.generated,
}
