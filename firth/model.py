"""`Model`: a network with its tokenizer; `load`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch

from firth.adapt.apply import get_adapters, merge
from firth.adapt.saving import adapter_base, load_adapter
from firth.data.memory import Data, as_source, input_names, is_row, table_rows
from firth.formats.arpa import ENDINGS as ARPA_ENDINGS
from firth.formats.arpa import ArpaReader
from firth.formats.gguf_model import read_gguf
from firth.formats.hub import resolve
from firth.formats.huggingface.directory import read_network, write_network
from firth.formats.huggingface.generation_config import (
    GENERATION_CONFIG,
    generation_values,
    read_generation_config,
)
from firth.formats.sentence_transformers import read_sentence, write_sentence
from firth.formats.tokenizers.families import FILES as VOCABULARY_FILES
from firth.formats.tokenizers.loading import holds_tokenizer, load_tokenizer
from firth.formats.word_vectors.static_model import read_static_vectors
from firth.inference.text_model import TextModel
from firth.inference.text_network import ENCODER_FOLDER
from firth.models.config import ModelConfig
from firth.models.label_heads import predicts_labels
from firth.models.language_model import LanguageNetwork
from firth.models.word_embedding import WordNetwork
from firth.quantization.int8 import count_int8_weights, to_int8
from firth.tasks.ensembles import (
    are_texts,
    ensemble_answers,
    input_examples,
    resolve_task,
    truncation_note,
)
from firth.tasks.inputs import task_tokenizer
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import TASKS, task_named
from firth.tasks.task import Answer, Example, TaskMetadata
from firth.tokenizers.tokenizer import CHAT_TEMPLATE, Tokenizer
from firth.training.run_directory import best_run, find_run
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import answer_good_rows
from firth.utils.devices import Device, Dtype, find_dtype, same_device, select_device
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError, storage_errors
from firth.utils.files import write_json
from firth.utils.outputs import check_output, replacing_files
from firth.utils.streams import interleave_errors

QUANTIZERS = {"int8": to_int8}  # of weight matrices, for inference
logger = logging.getLogger("firth")
# Files of an earlier model that `export` replaces or deletes.
MODEL_FILES = (
    *("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"),
    *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
    *("firth.json", "adapter.safetensors", "run.json", "loss.png", "modules.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(GENERATION_CONFIG, CHAT_TEMPLATE, *VOCABULARY_FILES),
)
FEATURES = "features"  # folder with the tokenizer of a network whose hidden states are inputs
JOINED = "joined"  # folder with the base model of an adapter on a joined encoder and decoder


@dataclass(repr=False, eq=False)
class Model(TextModel):
    """A network and its tokenizer, in eval mode after `load`."""

    task: TaskMetadata | None = None  # of its fine-tuning

    @property
    def generates(self) -> bool:
        """Return whether the model was fine-tuned for a task with generated outputs."""
        return self.task is not None and self.task.task in TASKS and TASKS[self.task.task].generates

    @overload
    def predict(self, texts: str | Mapping[str, str], *, task: str | None = None) -> Answer: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, texts: Data, *, task: str | None = None) -> list[Answer | None]: ...

    @check_arguments
    def predict(
        self, texts: Data, *, task: str | None = None
    ) -> Answer | list[Answer | None] | None:
        """Predict the task that the model was fine-tuned on, for one text or several.

        Tasks of more than one text take a tuple, such as a pair for `pair`, a dict with one row, or
        a list of those. The answer of a bad row is None, and its error is logged. `firth.predict`
        also reads files, and averages the predictions of several models.
        """
        chosen, metadata = resolve_task(self, task)
        size = len(input_names(chosen.columns))
        is_tuple = isinstance(texts, tuple) and len(texts) == size > 1 and isinstance(texts[0], str)
        one = isinstance(texts, str) or is_tuple or is_row(texts)
        source: Any = [texts] if one else list(table_rows(texts, "texts"))
        if not are_texts(source):
            rows = as_source(source, "texts", chosen.columns, predicts=True)
            source = TaskFile(rows, labels="ignored", allow_empty=True)

        def answer(examples: list[Example]) -> list[Answer]:
            answers, cut = ensemble_answers([self], chosen, [metadata], examples)
            for note in truncation_note(cut, len(answers)):
                logger.warning(note)
            return answers

        examples = list(interleave_errors(partial(input_examples, chosen, source)))
        found = answer_good_rows(examples, answer)
        return found[0] if one else found

    @check_arguments
    def save(
        self, path: str | Path, *, dtype: torch.dtype | None = None, overwrite: bool = False
    ) -> str:
        """Save the model for `firth.load` and, if it has the architecture, for `transformers`.

        Return the name of the model family; "firth" if `transformers` has no such architecture.
        A language head beside a head for labels, such as that of the base after `merge`, is not
        saved if the family has no such model. A model or run in the folder is an error; with
        `overwrite`, it is replaced.
        """
        folder = Path(path)
        for file in ("run.json", "config.json", "adapter_config.json"):
            check_output(folder / file, overwrite)
        with replacing_files(folder, MODEL_FILES if overwrite else ()):
            return self.write(folder, dtype=dtype)

    def write(self, folder: Path, *, dtype: torch.dtype | None = None) -> str:
        """Write the files of the model, and keep those of its run; `save` checks the folder."""
        if folder.is_file():
            raise UsageError(f"{folder} is a file; a model needs a directory.")
        if get_adapters(self.network):
            raise UsageError(
                "The model has an adapter: merge it first with firth.adapt.apply.merge(network, "
                "keep=False) or `firth export`."
            )
        if count_int8_weights(self.network):
            raise UsageError(
                "A model with int8 weights cannot be saved: load it without weights='int8'."
            )
        with storage_errors(folder):
            family = write_network(self.network, folder, dtype=dtype)
            if self.config.has_decoder:
                values = generation_values(self.config, self.generation_config)
                write_json(folder / GENERATION_CONFIG, values)
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
            if self.encoder_tokenizer is not None:
                self.encoder_tokenizer.save(folder / ENCODER_FOLDER)
            if isinstance(self.network, WordNetwork) and self.network.features is not None:
                self.network.features.tokenizer.save(folder / FEATURES)
            if self.sentence_encoder is not None:
                write_sentence(self.sentence_encoder, folder, self.config.hidden_size)
        return family


AnyModel = str | Path | Model
MAX_FLOAT32_BYTES = 2 * 1024**3  # of weights that a CPU computes with in float32 by default


@check_arguments
def load(
    source: str | Path,
    *,
    dtype: Dtype = None,
    weights: str | None = None,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
    verify: bool = False,
) -> Model:
    """Load a run or Hugging Face directory, a GGUF or vector file, an embedded or a hub model.

    Files of word vectors and ARPA files of n-gram models are models, too.

    `dtype` is float32, bfloat16 or float16, a name or a dtype of torch, or "auto": that of the
    file. By default it is that of the file on a GPU; on a CPU, float32, unless the weights would
    take more than 2 GiB. A hub name may have a revision ("org/name@main"); with `offline`, only the
    local cache is used. With `allow_legacy`, a pickled checkpoint is converted to safetensors.
    `weights="int8"` quantizes the weight matrices, for inference on a CPU. `verify` compares
    weights that Firth wrote with their checksums. The model is in eval mode.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from firth.models.presets import preset; from firth.models.transformer import Transformer
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> Model(network, tokenizer=None).save(folder)
    'bert'
    >>> load(folder).config.num_layers
    2
    """
    check_weights(weights, str(device))
    torch_dtype, device = find_dtype(dtype), str(select_device(device))
    path = resolve(source, revision=revision, offline=offline, allow_legacy=allow_legacy)
    if (base := adapter_base(path)) is not None:
        options: dict[str, Any] = {
            "offline": offline,
            "allow_legacy": allow_legacy,
            "verify": verify,
        }
        adapted = _adapted(path, base, torch_dtype, device, options)
        return _quantize(adapted, weights)
    if (best := best_run(path)) is not None:
        raise InputError(f"{path} contains several runs: load one of them; the best is {best}.")
    network: LanguageNetwork
    generation_config: dict[str, Any] = {}
    sentence = read_sentence(path)
    if path.suffix == ".gguf":
        network, tokenizer = read_gguf(path, dtype=torch_dtype)
    elif path.name.endswith(ARPA_ENDINGS):
        network, tokenizer = ArpaReader(path).read()
    elif path.is_file():
        network, tokenizer = read_static_vectors(path, dtype=torch_dtype)
    else:
        folder = path / sentence.folder if sentence is not None else path
        network = read_network(folder, dtype=torch_dtype, verify=verify)
        tokenizer = load_tokenizer(folder) if holds_tokenizer(folder) else None
        generation_config = read_generation_config(folder)
        if isinstance(network, WordNetwork) and network.features is not None and tokenizer:
            network.features.set_tokenizers(tokenizer, load_tokenizer(folder / FEATURES))
    encoder_tokenizer = _encoder_tokenizer(path, network.config)
    _check_size(tokenizer, network.config, path)
    _check_size(encoder_tokenizer, network.config.input_config, path / ENCODER_FOLDER)
    if sentence is not None:
        sentence.width(network.config.hidden_size)
        if sentence.lowercase and tokenizer is not None:
            tokenizer.lowercase()
    if dtype is None and device == "cpu" and _bytes_in_float32(network) <= MAX_FLOAT32_BYTES:
        network = network.float()
    network, objective = network.to(device).eval(), _objective(path)
    if objective == "prefix":  # earlier versions did not store it in config.json
        network.config = replace(network.config, prefix_lm=True)
    task = _task(path, network.config)
    if task and not task.external and tokenizer is not None and predicts_labels(network):
        tokenizer = task_tokenizer(network.config, tokenizer, task_named(task.task).head)
    model = Model(
        network,
        tokenizer,
        path=path,
        source=str(source),
        sentence_encoder=sentence,
        task=task,
        encoder_tokenizer=encoder_tokenizer,
        objective=objective,
        generation_config=generation_config,
    )
    return _quantize(model, weights)


def _bytes_in_float32(network: torch.nn.Module) -> int:
    return 4 * sum(parameter.numel() for parameter in network.parameters())


def load_if_needed(
    model: AnyModel,
    device: Device,
    *,
    dtype: Dtype = None,
    weights: str | None = None,
) -> Model:
    """Load a model, unless it is loaded already; then the device, if given, must be its own."""
    if not isinstance(model, Model):
        device = default_device(device, weights)
        return load(model, dtype=dtype, device=device, weights=weights)
    for name, value in {"dtype": dtype, "weights": weights}.items():
        if value is not None:
            raise UsageError(
                f"This model is loaded already; use firth.load(…, {name}={value!r}) instead."
            )
    if device is not None and not same_device(select_device(device), model.network.device):
        raise UsageError(
            f"This model is loaded already, on {model.network.device}; use "
            f"model.to({str(device)!r}) first, or omit the device."
        )
    return model


def model_list(models: AnyModel | Sequence[AnyModel]) -> list[AnyModel]:
    """Return one model, or the models of a list or tuple, as a list."""
    if isinstance(models, list | tuple) and not models:
        raise UsageError("The list of models is empty.")
    return list(models) if isinstance(models, list | tuple) else [models]  # type: ignore[list-item]


def default_device(device: Device, weights: str | None = None) -> torch.device:
    """Return the requested device; by default the CPU for int8 weights, which need it."""
    return select_device("cpu" if device is None and weights is not None else device)


def check_weights(weights: str | None, device: str) -> None:
    """Raise a usage error for unknown quantization, or one that the device does not support."""
    if weights is None:
        return
    if weights not in QUANTIZERS:
        raise UsageError(f"--weights is {', '.join(QUANTIZERS)}, not {weights!r}.")
    if not device.startswith("cpu"):
        raise UsageError(
            f"--weights {weights} needs a CPU: add --device cpu, or load it without on a GPU."
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
    path: Path, base: str, dtype: torch.dtype | None, device: str, options: dict[str, Any]
) -> Model:
    """Load an adapter on its base model, which may be in the adapter's own directory."""
    where = path / JOINED if base == JOINED else base
    try:
        # Adapters are trained on float32 weights, whose checksum they store.
        model = load(where, dtype="float32", device=device, **options)
    except FirthError as error:
        raise type(error)(
            f"{path} is an adapter whose base model cannot be loaded. {error}"
        ) from error
    load_adapter(model.transformer, path)
    if dtype:
        model.network.to(dtype)
    model.network.eval()
    return replace(model, path=path, source=str(path), task=_task(path, model.network.config))


def _task(path: Path, config: ModelConfig) -> TaskMetadata | None:
    """Return the task a model was fine-tuned for, from run.json or else from its label head."""
    if "task" in (values := find_run(path)):
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
        external=True,
    )


def _objective(path: Path) -> str | None:
    """Return the objective of a run of `firth pretrain`."""
    objective: str | None = find_run(path).get("job", {}).get("objective")
    return objective
