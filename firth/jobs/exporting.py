"""Export of a model to the files of other libraries: a checkpoint, or a file of word vectors."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from firth.adapt.apply import get_adapters, merge
from firth.formats.arpa import write_arpa
from firth.formats.huggingface.directory import family_of, saved_heads
from firth.formats.huggingface.family import auto_class
from firth.formats.json_files import read_json
from firth.formats.word_vectors.static_model import vectors_of_model
from firth.formats.word_vectors.writing import VECTOR_FORMATS, write_word_vectors
from firth.model import MODEL_FILES, AnyModel, Model, load
from firth.models.encoder_decoder import separate_weights
from firth.models.ngram.model import NgramModel
from firth.models.transformer import Transformer
from firth.training.model_card import write_export_card
from firth.training.run_directory import find_run
from firth.utils.arguments import check_arguments
from firth.utils.errors import MismatchError, UsageError, storage_errors
from firth.utils.outputs import check_output, replacing_files

ARPA = "arpa"


@check_arguments
def export(
    source: AnyModel,
    out: str | Path,
    *,
    to: str = "hf",
    overwrite: bool = False,
    limit: int = 0,
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
    verify: bool = False,
) -> str:
    """Save a model as a Hugging Face checkpoint, adapters merged; return its model family.

    `source` is a model, or what `load` loads with the other options. `verify` compares weights that
    Firth wrote with their checksums. Other formats are files, and their name is returned: of an
    n-gram model "arpa", of word vectors "word2vec", …, with their first `limit` words.
    """
    if to not in ("hf", ARPA, *VECTOR_FORMATS):
        known = ", ".join(VECTOR_FORMATS)
        raise UsageError(
            f"The export format is hf; of an n-gram model, {ARPA}; of word vectors, {known}; "
            f"not {to!r}."
        )
    out = Path(out)
    _check_out(out, to, overwrite)
    if not isinstance(source, Model):
        model = load(
            source,
            dtype="auto",
            revision=revision,
            offline=offline,
            allow_legacy=allow_legacy,
            verify=verify,
        )
    elif revision or offline or allow_legacy or verify:
        raise UsageError("This model is loaded already: give these options to firth.load.")
    else:
        model = source
    if to in VECTOR_FORMATS:
        write_word_vectors(vectors_of_model(model, limit), out, format=to)
        return to
    if limit:
        raise UsageError("`limit` is a number of words, for the formats of word vectors.")
    if to == ARPA:
        return _export_arpa(model, out)
    return _export_checkpoint(model, out)


def _export_arpa(model: Model, out: Path) -> str:
    """Write an n-gram model as an ARPA file."""
    network = model.network
    if not isinstance(network, NgramModel):
        raise MismatchError(f"{model.source} is no n-gram model, which an ARPA file is for.")
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_arpa(network, model.require_tokenizer(), out)
    return ARPA


def _check_out(out: Path, to: str, overwrite: bool) -> None:
    """Raise UsageError if the output exists, or is a folder of something else."""
    is_folder = out.is_dir() and any(out.iterdir())
    if is_folder and (to != "hf" or not (out / "config.json").is_file()):
        raise UsageError(f"{out} contains other files than a model; choose an empty directory.")
    if to != "hf" or not out.is_file():  # `Model.write` refuses a file
        check_output(out, overwrite)


def _export_checkpoint(model: Model, out: Path) -> str:
    """Write a checkpoint of transformers; return its model family."""
    adapted = bool(get_adapters(model.network))
    if adapted:
        model = replace(model, network=deepcopy(model.network))  # merging changes it
        merge(model.network, keep=False)
    network = model.network
    separated = isinstance(network, Transformer) and network.config.share_encoder_decoder
    if separated and isinstance(network, Transformer):  # transformers cannot share weights
        model = replace(model, network=separate_weights(network))
    heads = saved_heads(model.config, model.network.heads)
    if family_of(model.config, heads) is None:
        layer = model.config.label_input_layer
        of_layer = f" of layer {layer}" if layer is not None else ""
        raise MismatchError(
            f"transformers has no model family with the architecture and heads of {model.source} "
            f"({model.config.architecture}; {', '.join(heads) or 'no head'}{of_layer}); only "
            "firth.load can load it. N-gram models and word vectors have formats of their own "
            "(`--to`)."
        )
    with replacing_files(out, MODEL_FILES):
        family = model.write(out)
        changes = ["The adapter is merged into the weights."] * adapted
        changes += ["Weights that encoder and decoder shared are stored for each."] * separated
        _write_card(model, out, changes)
    return family


def _write_card(model: Model, out: Path, changes: list[str]) -> None:
    """Write the model card of an exported model."""
    path = model.path or Path("unsaved")
    if find_run(path):
        changes.append("`run.json` and the checkpoints of the run are not part of it.")
    with storage_errors(out):
        write_export_card(out, path, str(model.source or path), exported_class(out), changes)


def exported_class(path: Path) -> str:
    """Return the Auto class of transformers that loads an exported model."""
    return auto_class(read_json(path / "config.json")["architectures"][0])
