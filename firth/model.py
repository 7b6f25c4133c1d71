"""The handle people hold: a network with its tokenizer, loaded, used and saved as one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from firth.adapt.adapted import adapters_on, merge
from firth.adapt.files import base_of, load_adapter
from firth.errors import FirthError, InputError, MismatchError, Misuse, storage_errors
from firth.files import write_json
from firth.inference.completions import Completed, Teller
from firth.inference.correct import Corrected, correct_all, make_corrector
from firth.inference.embed import Floats, TokenVector, embed, embed_tokens
from firth.inference.embedder import Embedder, Layer, make_embedder
from firth.inference.fill import fill_all
from firth.inference.filler import Filled, Filler, Guess, make_filler
from firth.inference.search import Hit, Index, open_index, search
from firth.inference.settings import Generation
from firth.models.config import ModelConfig
from firth.models.formats.directory import family_of, read_network, write_network
from firth.models.formats.gguf import read_gguf
from firth.models.formats.hub import resolve
from firth.models.formats.sentence import Sentence, read_sentence, write_sentence
from firth.models.int8 import count_numbers, to_int8
from firth.models.transformer import Transformer, count_parameters
from firth.runs import RUN, best_of_several, read_run
from firth.tasks.heads import drop_language_head
from firth.tasks.table import TASKS
from firth.tasks.task import Facts
from firth.text.tokenizer import Tokenizer

WEIGHTS = {"int8": to_int8}  # how the matrices of a network may be kept, to be used alone
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What may stand before a text that is searched, and before a query, if a model's files have it.
PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}
READER = "reader"  # the folder of the tokenizer of an encoder that has its own
JOINED = "joined"  # the folder of an encoder and a decoder that were joined for an adapter


@dataclass
class Model:
    """A network and the tokenizer that goes with it."""

    network: Transformer
    tokenizer: Tokenizer | None
    path: Path | None = None
    source: str | None = None  # what it was asked for as, perhaps a name on the hub
    sentence: Sentence | None = None  # how it makes one vector of a text, where its files say so
    task: Facts | None = None  # what it was taught to do
    reader_tokenizer: Tokenizer | None = None  # of an encoder that has a vocabulary of its own
    objective: str | None = None  # what it was pre-trained with, where its run says so

    @property
    def config(self) -> ModelConfig:
        """What the network is made of."""
        return self.network.config

    @property
    def parameters(self) -> int:
        """How many numbers the network has learned."""
        return count_parameters(self.network) + count_numbers(self.network)

    @property
    def writes(self) -> bool:
        """Whether it was taught a task in which it writes."""
        return self.task is not None and self.task.task in TASKS and TASKS[self.task.task].writes

    def fill(self, text: str, *, top: int = 5, targets: Sequence[str] = ()) -> list[list[Guess]]:
        """What may stand in each blank of a text ([MASK], <extra_id_0>, ___), best first.

        With `targets`, how likely just these words are.
        """
        return self.fill_texts([text], top=top, targets=targets)[0].blanks

    def fill_texts(
        self, texts: Sequence[str], *, top: int = 5, targets: Sequence[str] = ()
    ) -> list[Filled]:
        """The same for many texts, with the likeliest whole sentences where blanks are several."""
        filler = self.filler()
        return fill_all(filler, [filler.read(text) for text in texts], top=top, targets=targets)

    def correct(self, text: str) -> Corrected:
        """Corrections for words that are unlikely where they stand, and the text with them."""
        corrector = make_corrector(self.filler())
        return correct_all(corrector, [text], [corrector.doubts(text)])[0]

    def filler(self) -> Filler:
        """How this model fills blanks."""
        return make_filler(self.network, self.tokenizer_needed(), objective=self.objective)

    @overload
    def generate(self, prompt: str, **settings: Any) -> str: ...

    @overload
    def generate(self, prompt: Sequence[str], **settings: Any) -> list[str]: ...

    def generate(self, prompt: str | Sequence[str], **settings: Any) -> str | list[str]:
        """What the model writes behind a prompt, without the prompt; a list of it for a list.

        Settings are those of `Generation`: max_new_tokens=40, temperature=0.8, beams=4, …
        """
        if isinstance(prompt, str):
            return self.completions([prompt], **settings)[0].completions[0].text
        return [done.completions[0].text for done in self.completions(prompt, **settings)]

    def completions(self, prompts: Sequence[str], **settings: Any) -> list[Completed]:
        """The same with all completions of each prompt, their tokens, scores and reasons to end."""
        return list(self.teller(**settings).complete(prompts))

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The completion of a prompt in pieces, as they become certain."""
        pieces = self.teller(**settings).stream(prompt)
        return (piece for piece in pieces if isinstance(piece, str))

    def teller(self, **settings: Any) -> Teller:
        """How this model writes; a setting that is None is as if it were not there."""
        return Teller(
            network=self.network,
            tokenizer=self.tokenizer_needed(),
            reader=self.reader_needed(),
            taught=self.writes,
            settings=Generation.of(settings),
        )

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        layer: Layer | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        precision: str = "auto",
    ) -> Floats:
        """One vector for each text, (n, W): as the model's files say, or as is asked for.

        `pooling` is mean, cls, last, max, …; `layer` is one, or several whose mean is taken.
        `precision` is fp32, bf16 (faster where the machine can; cosines of 0.9999 with fp32), or
        auto: bf16 for encoders on a GPU.
        """
        embedder = self.embedder(
            pooling=pooling, layer=layer, normalize=normalize, prompt=prompt, precision=precision
        )
        return embed(embedder, texts)

    def tokens(self, text: str, *, layer: Layer | None = None) -> list[TokenVector]:
        """One vector for each token of a text, with the characters it stands for."""
        return embed_tokens(self.embedder(layer=layer), text)

    def index(self, file: str | Path, *, place: str | Path | None = None) -> Index:
        """The vectors of all rows of a file, kept beside it (or at `place`) to be searched."""
        return open_index(self.embedder(normalize=True, role="document"), file, place=place)

    def search(self, where: Sequence[str] | Index | Path, query: str, *, top: int = 5) -> list[Hit]:
        """The texts nearest to a query, best first: of a list, an index or a file."""
        if isinstance(where, str | Path):
            where = self.index(where)
        if not isinstance(where, Index):
            texts = list(where)
            written = self.embedder(normalize=True, role="document")
            where = Index(embed(written, texts), texts)
        return search(self.embedder(normalize=True, role="query"), where, query, top=top)

    def embedder(
        self,
        *,
        pooling: str | None = None,
        layer: Layer | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        role: str = "",
        precision: str = "auto",
        batch: int = 0,
    ) -> Embedder:
        """How this model makes vectors of texts; `role`: of those that are searched, or a query."""
        names = PROMPTS.get(role, ())
        there = [name for name in names if self.sentence and name in self.sentence.prompts]
        return make_embedder(
            self.network,
            self.reader_needed() or self.tokenizer_needed(),
            self.sentence,
            pooling=pooling,
            layer=layer,
            normalize=normalize,
            prompt=there[0] if there and prompt is None else prompt,
            precision=precision,
            batch=batch,
        )

    def tokenizer_needed(self) -> Tokenizer:
        """Its tokenizer, where there is no doing without."""
        if self.tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} has no tokenizer, so it understands no text."
            )
        return self.tokenizer

    def reader_needed(self) -> Tokenizer | None:
        """The tokenizer of an encoder that has its own; None where one serves all."""
        if self.config.reader is not None and self.reader_tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} lacks the tokenizer of its encoder, which belongs "
                f"into the folder {READER} in it."
            )
        return self.reader_tokenizer

    def save(self, path: str | Path, *, dtype: torch.dtype | None = None) -> str:
        """Write a directory that `firth.load` opens, and `transformers` wherever it has the family.

        Returns the name of the family: "firth" where no other has this shape.
        """
        folder = Path(path)
        if folder.is_file():
            raise Misuse(f"{folder} is a file; a model needs a directory.")
        if adapters_on(self.network):
            raise Misuse(
                "This model carries an adapter: merge it into the weights first "
                "(firth.adapt.adapted.merge), or let `firth export` do so."
            )
        if count_numbers(self.network):
            raise Misuse("A model with int8 weights is not saved: open it without them.")
        with storage_errors(folder, "Free some space or name another place."):
            family = write_network(self.network, folder, dtype=dtype)
            if self.config.has_decoder:
                write_json(folder / "generation_config.json", _generation(self.config))
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
            if self.reader_tokenizer is not None:
                self.reader_tokenizer.save(folder / READER)
            if self.sentence is not None:
                write_sentence(self.sentence, folder, self.config.width)
        return family


def _generation(config: ModelConfig) -> dict[str, int | bool]:
    """What `transformers.generate` must know."""
    ids = {
        "pad_token_id": config.padding_id,
        "bos_token_id": config.begin_id,
        "eos_token_id": config.end_id,
        "decoder_start_token_id": config.start_id,
    }
    return {name: id for name, id in ids.items() if id is not None}


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
    """Open a model: a run directory, a Hugging Face directory, a GGUF file, or a name on the hub.

    `dtype` is that of the file unless one is named: float32, bfloat16 or float16. A name may say
    its revision, as in "org/name@main"; `offline`, the hub is not asked, only its cache. With
    `allow_legacy`, a model that is only a pickle is read too, and rewritten as safetensors.
    `weights="int8"`: the matrices are kept in eight bits, for a CPU and to be used alone.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> Model(network, tokenizer=None).save(folder)
    'bert'
    >>> load(folder).config.layers
    2
    """
    if dtype is not None and dtype not in DTYPES:
        raise Misuse(f"There is no dtype {dtype!r}; known are {', '.join(DTYPES)}.")
    check_weights(weights, device)
    path = resolve(source, revision=revision, offline=offline, allow_legacy=allow_legacy)
    if (base := base_of(path)) is not None:
        adapted = _adapted(path, base, dtype, device, offline, allow_legacy)
        return _with_weights(adapted, weights)
    if (best := best_of_several(path)) is not None:
        raise InputError(f"{path} holds several runs: name one of them; the best is {best}.")
    numbers = DTYPES[dtype] if dtype else None
    sentence = read_sentence(path)
    if path.suffix == ".gguf":
        network, tokenizer = read_gguf(path, dtype=numbers)
    else:
        folder = path / sentence.folder if sentence is not None else path
        network = read_network(folder, dtype=numbers)
        tokenizer = Tokenizer.load(folder) if Tokenizer.found(folder) else None
    reader = _reader_tokenizer(path, network.config)
    _check_size(tokenizer, network.config, path)
    _check_size(reader, network.config.reading, path / READER)
    if sentence is not None:
        sentence.width(network.config.width)
        if sentence.lowercase and tokenizer is not None:
            tokenizer.lowercase()
    network = network.to(device).eval()
    task = _task(path, network.config)
    model = Model(network, tokenizer, path, str(source), sentence, task, reader, _objective(path))
    return _with_weights(model, weights)


def check_weights(weights: str | None, device: str) -> None:
    """Refuse weights that cannot be, before a model is opened."""
    if weights is None:
        return
    if weights not in WEIGHTS:
        raise Misuse(f"Weights can be {', '.join(WEIGHTS)}, not {weights!r} (--weights).")
    if torch.device(device).type != "cpu":
        raise Misuse(
            f"Weights in {weights} are for the CPU: add --device cpu, or leave --weights out and "
            "take --dtype bfloat16 on a GPU."
        )


def _with_weights(model: Model, weights: str | None) -> Model:
    """The model with its matrices in fewer bits; adapters become part of them first."""
    if weights is None:
        return model
    if adapters_on(model.network):
        try:
            merge(model.network, keep=False)
        except Misuse as error:
            raise Misuse(f"{model.path} stays as it is, without --weights: {error}") from error
    WEIGHTS[weights](model.network)
    return model


def _reader_tokenizer(path: Path, config: ModelConfig) -> Tokenizer | None:
    """The tokenizer of an encoder that has its own."""
    if config.reader is None or not Tokenizer.found(path / READER):
        return None
    return Tokenizer.load(path / READER)


def _check_size(tokenizer: Tokenizer | None, config: ModelConfig, path: Path) -> None:
    if tokenizer is not None and len(tokenizer) > config.vocabulary:
        raise MismatchError(
            f"The tokenizer in {path} has {len(tokenizer):,} tokens, the model only "
            f"{config.vocabulary:,}: they do not belong together."
        )


def _adapted(
    path: Path, base: str, dtype: str | None, device: str, offline: bool, allow_legacy: bool
) -> Model:
    """A model with an adapter on it; the base may lie in the adapter's own directory."""
    where = path / JOINED if base == JOINED else base
    try:
        # Adapters are learned, and name their base, in this precision.
        model = load(
            where, dtype="float32", device=device, offline=offline, allow_legacy=allow_legacy
        )
    except FirthError as error:
        raise type(error)(
            f"{path} is an adapter, and its base cannot be opened. {error}"
        ) from error
    load_adapter(model.network, path)
    if dtype:
        model.network.to(DTYPES[dtype])
    model.network.eval()
    return replace(model, path=path, source=str(path), task=_task(path, model.network.config))


def _task(path: Path, config: ModelConfig) -> Facts | None:
    """What a model was taught to do: as its run says, or as its head and labels show."""
    if (path / RUN).is_file() and "task" in (values := read_run(path)):
        return Facts.from_dict(values["task"])
    if not config.label_head:
        return None
    able = [task for task in TASKS.values() if task.head == config.label_head]
    number = config.labelling == "number"
    task = next((task for task in able if task.numbers == number), able[0])
    return Facts(
        task=task.name,
        labels=config.labels,
        labelling=config.labelling,
        length=min(task.length, config.context),
        options=task.usual_options(config),
    )


def _objective(path: Path) -> str | None:
    """What a model was pre-trained with, if it is a run of `firth pretrain`."""
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
    """Write a model for the rest of the world; the name of the family it is written in."""
    if to != "hf":
        raise Misuse(f"A model can be exported to hf, not to {to!r}.")
    model = load(source, revision=revision, offline=offline, allow_legacy=allow_legacy)
    if adapters_on(model.network):
        merge(model.network, keep=False)
        drop_language_head(model.network)
    if family_of(model.config, model.network.heads) is None:
        raise MismatchError(
            f"No family that transformers knows has the shape and the heads of {source} "
            f"({model.config.architecture}; {', '.join(model.network.heads)}); it opens with "
            "firth.load alone."
        )
    out = Path(out)
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise Misuse(f"{out} holds something other than a model; name an empty directory.")
    return model.save(out)
