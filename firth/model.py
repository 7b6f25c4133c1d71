"""The handle people hold: a network with its tokenizer, loaded, used and saved as one thing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from firth.errors import InputError, MismatchError, Misuse, storage_errors
from firth.files import write_json
from firth.inference.fill import Guess, fill
from firth.inference.generate import continue_text
from firth.models.config import ModelConfig
from firth.models.formats.directory import family_of, read_network, write_network
from firth.models.transformer import Transformer, count_parameters
from firth.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Model:
    """A network and the tokenizer that goes with it."""

    network: Transformer
    tokenizer: Tokenizer | None
    path: Path | None = None

    @property
    def config(self) -> ModelConfig:
        """What the network is made of."""
        return self.network.config

    @property
    def parameters(self) -> int:
        """How many numbers the network has learned."""
        return count_parameters(self.network)

    def fill(self, text: str, *, top: int = 5) -> list[list[Guess]]:
        """The likeliest tokens for each mask of a text, best first."""
        return fill(self.network, self._tokenizer(), text, top=top)

    def generate(self, prompt: str, *, max_new_tokens: int = 40) -> str:
        """The likeliest continuation of a prompt, without the prompt."""
        return continue_text(self.network, self._tokenizer(), prompt, most=max_new_tokens)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise MismatchError(f"{self.path} has no tokenizer, so it understands no text.")
        return self.tokenizer

    def save(self, path: str | Path, *, dtype: torch.dtype | None = None) -> str:
        """Write a directory that `firth.load` opens, and `transformers` wherever it has the family.

        Returns the name of the family: "firth" where no other has this shape.
        """
        folder = Path(path)
        if folder.is_file():
            raise Misuse(f"{folder} is a file; a model needs a directory.")
        with storage_errors(folder, "Free some space or name another place."):
            family = write_network(self.network, folder, dtype=dtype)
            if self.config.has_decoder:
                write_json(folder / "generation_config.json", _generation(self.config))
            if self.tokenizer is not None:
                self.tokenizer.save(folder)
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


def load(source: str | Path, *, dtype: str | None = None, device: str = "cpu") -> Model:
    """Open a model: a run directory or a Hugging Face directory.

    `dtype` is that of the file unless one is named: float32, bfloat16 or float16.

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
    path = Path(source)
    if not path.exists():
        raise InputError(f"There is no model at {path}: no such directory.")
    network = read_network(path, dtype=DTYPES[dtype] if dtype else None)
    has_tokenizer = (path / "tokenizer.json").is_file()
    tokenizer = Tokenizer.load(path) if has_tokenizer else None
    if tokenizer is not None and len(tokenizer) > network.config.vocabulary:
        raise MismatchError(
            f"The tokenizer in {path} has {len(tokenizer):,} tokens, the model only "
            f"{network.config.vocabulary:,}: they do not belong together."
        )
    return Model(network.to(device).eval(), tokenizer, path)


def export(source: str | Path, out: str | Path, *, to: str = "hf") -> str:
    """Write a model for the rest of the world; the name of the family it is written in."""
    if to != "hf":
        raise Misuse(f"A model can be exported to hf, not to {to!r}.")
    model = load(source)
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
