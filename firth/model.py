"""`Model`: a network with its tokenizer; `load` and `export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from firth.adapt.apply import get_adapters, merge
from firth.adapt.saving import adapter_base, load_adapter
from firth.formats.gguf_model import read_gguf
from firth.formats.hub import resolve
from firth.formats.huggingface.directory import family_of, read_network, write_network
from firth.formats.sentence_transformers import SentenceEncoderConfig, read_sentence, write_sentence
from firth.formats.tokenizers.loading import holds_tokenizer, load_tokenizer
from firth.inference.embedding.embedder import Embedder, Layer, make_embedder
from firth.inference.embedding.semantic_search import SearchHit, SearchIndex, open_index, search
from firth.inference.embedding.vectors import Floats, TokenVector, embed, embed_tokens
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.text_generation import PromptCompletions, TextGenerator
from firth.inference.infilling.fill_methods import (
    BlankFiller,
    FillCandidate,
    FillResult,
    make_filler,
)
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.infilling.spelling import CorrectedText, correct_batch, make_corrector
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer, count_parameters
from firth.quantization.int8 import count_int8_weights, to_int8
from firth.tasks.registry import TASKS
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import drop_language_head
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.run_directory import RUN, best_run, read_run
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError, storage_errors
from firth.utils.files import write_json

QUANTIZERS = {"int8": to_int8}  # of weight matrices, for inference
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Names under which sentence encoders store the prompts of documents and of queries.
PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}
ENCODER_FOLDER = "reader"  # with the tokenizer of an encoder that has its own
JOINED = "joined"  # folder with the base model of an adapter on a joined encoder and decoder


@dataclass
class Model:
    """A network and its tokenizer, in eval mode after `load`."""

    network: LanguageNetwork
    tokenizer: Tokenizer | None
    path: Path | None = None
    source: str | None = None  # the argument of `load`: a path or a name on the hub
    sentence_encoder: SentenceEncoderConfig | None = None  # pooling and prompts for embeddings
    task: TaskMetadata | None = None  # of its fine-tuning
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with a vocabulary of its own
    objective: str | None = None  # of its pre-training, if run.json names it

    @property
    def config(self) -> ModelConfig:
        """Return the config of the network."""
        return self.network.config

    @property
    def transformer(self) -> Transformer:
        """Return the network; raise an error if it is no Transformer, which some functions need."""
        if not isinstance(self.network, Transformer):
            kind = type(self.network).__name__
            raise MismatchError(f"This function needs a Transformer, and the network is a {kind}.")
        return self.network

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters, quantized ones included."""
        return count_parameters(self.network) + count_int8_weights(self.network)

    @property
    def generates(self) -> bool:
        """Return whether the model was fine-tuned for a task with generated outputs."""
        return self.task is not None and self.task.task in TASKS and TASKS[self.task.task].generates

    def fill(
        self, text: str, *, top: int = 5, targets: Sequence[str] = ()
    ) -> list[list[FillCandidate]]:
        """Return candidates for each blank of a text ([MASK], <extra_id_0>, ___), best first.

        With `targets`, score only these words.
        """
        return self.fill_texts([text], top=top, targets=targets)[0].blanks

    def fill_texts(
        self, texts: Sequence[str], *, top: int = 5, targets: Sequence[str] = ()
    ) -> list[FillResult]:
        """Fill the blanks of several texts; rank whole sentences where a text has several."""
        filler = self.blank_filler()
        return fill_batch(filler, [filler.encode(text) for text in texts], top=top, targets=targets)

    def correct(self, text: str) -> CorrectedText:
        """Correct words that are improbable in their context."""
        corrector = make_corrector(self.blank_filler())
        return correct_batch(corrector, [text], [corrector.find_suspects(text)])[0]

    def blank_filler(self) -> BlankFiller:
        """Return the method by which this model fills blanks."""
        return make_filler(self.network, self.require_tokenizer(), objective=self.objective)

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...

    @overload
    def generate(self, prompt: Sequence[str], **settings: Any) -> list[str]: ...

    def generate(self, prompt: str | Sequence[str], **settings: Any) -> str | list[str]:
        """Generate the completion of a prompt, without the prompt; a list for a list of prompts.

        `settings` are fields of `GenerationConfig`: max_new_tokens=40, temperature=0.8, beams=4, …
        """
        if isinstance(prompt, str):
            return self.completions([prompt], **settings)[0].completions[0].text
        return [done.completions[0].text for done in self.completions(prompt, **settings)]

    def completions(self, prompts: Sequence[str], **settings: Any) -> list[PromptCompletions]:
        """Generate all completions of each prompt, with tokens, scores and stop reasons."""
        return list(self.text_generator(**settings).complete(prompts))

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Generate the completion of a prompt, yielding text as it is decoded."""
        pieces = self.text_generator(**settings).stream(prompt)
        return (piece for piece in pieces if isinstance(piece, str))

    def text_generator(self, **settings: Any) -> TextGenerator:
        """Return a text generator; settings that are None have their default."""
        return TextGenerator(
            network=self.network,
            tokenizer=self.require_tokenizer(),
            encoder_tokenizer=self.require_encoder_tokenizer(),
            fine_tuned=self.generates,
            config=GenerationConfig.of(settings),
        )

    def embed(
        self,
        texts: Sequence[str] | str,
        *,
        pooling: str | None = None,
        layer: Layer | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        precision: str = "auto",
    ) -> Floats:
        """Compute one vector for each text, (n, hidden_size).

        `pooling` is mean, cls, last, max, …, by default the model's own; `layer` is one layer, or
        several to average. `precision` is fp32, bf16 (cosine similarity above 0.9999 to fp32), or
        auto: bf16 for encoders on a GPU.
        """
        embedder = self.embedder(
            pooling=pooling, layer=layer, normalize=normalize, prompt=prompt, precision=precision
        )
        return embed(embedder, texts)

    def embed_tokens(self, text: str, *, layer: Layer | None = None) -> list[TokenVector]:
        """Compute one vector for each token of a text, with the token's character span."""
        return embed_tokens(self.embedder(layer=layer), text)

    def index(self, file: str | Path, *, place: str | Path | None = None) -> SearchIndex:
        """Embed all rows of a file into a search index, stored beside the file or at `place`."""
        return open_index(self.embedder(normalize=True, role="document"), file, path=place)

    def search(
        self, where: Sequence[str] | SearchIndex | Path, query: str, *, top: int = 5
    ) -> list[SearchHit]:
        """Find the texts of a list, an index or a file that are nearest to a query, best first."""
        if isinstance(where, str | Path):
            where = self.index(where)
        if not isinstance(where, SearchIndex):
            texts = list(where)
            embedder = self.embedder(normalize=True, role="document")
            where = SearchIndex(embed(embedder, texts), texts)
        return search(self.embedder(normalize=True, role="query"), where, query, top=top)

    def embedder(
        self, *, role: str = "", prompt: str | None = None, batch_tokens: int = 0, **options: Any
    ) -> Embedder:
        """Return an embedder with the options of `make_embedder`.

        `role` is document or query, for models with a prompt for each.
        """
        prompts = self.sentence_encoder.prompts if self.sentence_encoder is not None else {}
        of_role = next((name for name in PROMPTS.get(role, ()) if name in prompts), None)
        tokenizer = self.require_encoder_tokenizer() or self.require_tokenizer()
        options["prompt"] = of_role if prompt is None else prompt
        embedder = make_embedder(self.network, tokenizer, self.sentence_encoder, **options)
        return replace(embedder, batch_tokens=batch_tokens)

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise an error if there is none."""
        if self.tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} has no tokenizer, which text input needs."
            )
        return self.tokenizer

    def require_encoder_tokenizer(self) -> Tokenizer | None:
        """Return the encoder's own tokenizer; None if encoder and decoder share one."""
        if self.config.encoder is not None and self.encoder_tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} lacks the tokenizer of its encoder, in the folder "
                f"{ENCODER_FOLDER}."
            )
        return self.encoder_tokenizer

    def save(self, path: str | Path, *, dtype: torch.dtype | None = None) -> str:
        """Save the model for `firth.load` and, if it has the architecture, for `transformers`.

        Return the name of the model family; "firth" if `transformers` has no such architecture.
        """
        folder = Path(path)
        if folder.is_file():
            raise UsageError(f"{folder} is a file; a model needs a directory.")
        if get_adapters(self.network):
            raise UsageError(
                "The model has an adapter: merge it first with firth.adapt.apply.merge or "
                "`firth export`."
            )
        if count_int8_weights(self.network):
            raise UsageError(
                "A model with int8 weights cannot be saved: load it without weights='int8'."
            )
        with storage_errors(folder, "Free some disk space or choose another directory."):
            family = write_network(self.network, folder, dtype=dtype)
            if self.config.has_decoder:
                write_json(folder / "generation_config.json", self.config.special_token_ids)
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
            if self.encoder_tokenizer is not None:
                self.encoder_tokenizer.save(folder / ENCODER_FOLDER)
            if self.sentence_encoder is not None:
                write_sentence(self.sentence_encoder, folder, self.config.hidden_size)
        return family


def load(
    source: str | Path,
    *,
    dtype: str | None = None,
    weights: str | None = None,
    device: str = "cpu",
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
) -> Model:
    """Load a run directory, a Hugging Face directory, a GGUF file, or a model from the hub.

    `dtype` is float32, bfloat16 or float16, by default that of the file. A hub name may have a
    revision ("org/name@main"); with `offline`, only the local cache is used. With `allow_legacy`, a
    pickled checkpoint is converted to safetensors. `weights="int8"` quantizes the weight matrices,
    for inference on a CPU. The model is in eval mode.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> Model(network, tokenizer=None).save(folder)
    'bert'
    >>> load(folder).config.num_layers
    2
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"There is no dtype {dtype!r}; known are {', '.join(DTYPES)}.")
    check_weights(weights, device)
    path = resolve(source, revision=revision, offline=offline, allow_legacy=allow_legacy)
    if (base := adapter_base(path)) is not None:
        adapted = _adapted(path, base, dtype, device, offline, allow_legacy)
        return _quantize(adapted, weights)
    if (best := best_run(path)) is not None:
        raise InputError(f"{path} contains several runs: load one of them; the best is {best}.")
    torch_dtype = DTYPES[dtype] if dtype else None
    sentence = read_sentence(path)
    if path.suffix == ".gguf":
        network, tokenizer = read_gguf(path, dtype=torch_dtype)
    else:
        folder = path / sentence.folder if sentence is not None else path
        network = read_network(folder, dtype=torch_dtype)
        tokenizer = load_tokenizer(folder) if holds_tokenizer(folder) else None
    encoder_tokenizer = _encoder_tokenizer(path, network.config)
    _check_size(tokenizer, network.config, path)
    _check_size(encoder_tokenizer, network.config.input_config, path / ENCODER_FOLDER)
    if sentence is not None:
        sentence.width(network.config.hidden_size)
        if sentence.lowercase and tokenizer is not None:
            tokenizer.lowercase()
    network = network.to(device).eval()
    task = _task(path, network.config)
    model = Model(
        network,
        tokenizer,
        path=path,
        source=str(source),
        sentence_encoder=sentence,
        task=task,
        encoder_tokenizer=encoder_tokenizer,
        objective=_objective(path),
    )
    return _quantize(model, weights)


def check_weights(weights: str | None, device: str) -> None:
    """Raise a usage error for unknown quantization, or one that the device does not support."""
    if weights is None:
        return
    if weights not in QUANTIZERS:
        raise UsageError(f"--weights is {', '.join(QUANTIZERS)}, not {weights!r}.")
    if torch.device(device).type != "cpu":
        raise UsageError(
            f"--weights {weights} needs a CPU: add --device cpu, or use --dtype bfloat16 on a GPU."
        )


def _quantize(model: Model, weights: str | None) -> Model:
    """Merge adapters, and quantize the weight matrices."""
    if weights is None:
        return model
    if get_adapters(model.network):
        try:
            merge(model.network, keep=False)
        except UsageError as error:
            raise UsageError(f"{model.path} cannot be quantized (--weights): {error}") from error
    QUANTIZERS[weights](model.transformer)
    return model


def _encoder_tokenizer(path: Path, config: ModelConfig) -> Tokenizer | None:
    """Load the tokenizer of an encoder that has its own."""
    if config.encoder is None or not holds_tokenizer(path / ENCODER_FOLDER):
        return None
    return load_tokenizer(path / ENCODER_FOLDER)


def _check_size(tokenizer: Tokenizer | None, config: ModelConfig, path: Path) -> None:
    if tokenizer is not None and len(tokenizer) > config.vocab_size:
        raise MismatchError(
            f"The tokenizer in {path} has {len(tokenizer):,} tokens, but the model's vocab_size is "
            f"{config.vocab_size:,}."
        )


def _adapted(
    path: Path, base: str, dtype: str | None, device: str, offline: bool, allow_legacy: bool
) -> Model:
    """Load an adapter on its base model, which may be in the adapter's own directory."""
    where = path / JOINED if base == JOINED else base
    try:
        # Adapters are trained on float32 weights, whose checksum they store.
        model = load(
            where, dtype="float32", device=device, offline=offline, allow_legacy=allow_legacy
        )
    except FirthError as error:
        raise type(error)(
            f"{path} is an adapter whose base model cannot be loaded. {error}"
        ) from error
    load_adapter(model.transformer, path)
    if dtype:
        model.network.to(DTYPES[dtype])
    model.network.eval()
    return replace(model, path=path, source=str(path), task=_task(path, model.network.config))


def _task(path: Path, config: ModelConfig) -> TaskMetadata | None:
    """Return the task a model was fine-tuned for, from run.json or else from its label head."""
    if (path / RUN).is_file() and "task" in (values := read_run(path)):
        return TaskMetadata.from_dict(values["task"])
    if not config.label_head:
        return None
    able = [task for task in TASKS.values() if task.head == config.label_head]
    number = config.label_type == "number"
    task = next((task for task in able if task.numbers == number), able[0])
    return TaskMetadata(
        task=task.name,
        labels=config.labels,
        label_type=config.label_type,
        max_length=min(task.default_max_length, config.max_positions),
        options=task.default_options(config),
    )


def _objective(path: Path) -> str | None:
    """Return the objective of a run of `firth pretrain`."""
    if not (path / RUN).is_file():
        return None
    job = read_run(path)["job"]
    return job.get("objective") if isinstance(job, dict) else None


def export(
    source: str | Path,
    out: str | Path,
    *,
    to: str = "hf",
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
) -> str:
    """Save a model as a Hugging Face checkpoint, adapters merged; return its model family."""
    if to != "hf":
        raise UsageError(f"The export format is hf, not {to!r}.")
    model = load(source, revision=revision, offline=offline, allow_legacy=allow_legacy)
    if get_adapters(model.network):
        merge(model.network, keep=False)
        drop_language_head(model.network)
    if family_of(model.config, model.network.heads) is None:
        raise MismatchError(
            f"transformers has no model family with the architecture and heads of {source} "
            f"({model.config.architecture}; {', '.join(model.network.heads)}); only firth.load can "
            "load it."
        )
    out = Path(out)
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise UsageError(f"{out} contains other files than a model; choose an empty directory.")
    return model.save(out)
