"""Embedded models: small models of the stories that are part of the package, by name.

Each is an ordinary model directory in this folder, made by `make embedded`. Nothing is written
there: a model that is trained further is saved in the directory that the user names.
"""

from __future__ import annotations

import os
from pathlib import Path

from firth.utils.errors import InputError

HOME = Path(__file__).parent
EMBEDDED_MODELS = {  # name: what it does
    "stories-encoder": "encoder (masked language model): fill, embed, search, finetune",
    "stories-decoder": "decoder (causal language model): generate, prompt, finetune",
    "stories-seq2seq": "encoder-decoder (span corruption): fill, finetune",
}
PRETRAINING_TOKENS = {
    "stories-encoder": 400_000_000,
    "stories-decoder": 180_000_000,
    "stories-seq2seq": 120_000_000,
}


def local_path(source: str | Path) -> Path | None:
    """Return an existing path, or the directory of an embedded model; None if it is neither.

    A `Path` is never the name of an embedded model.

    >>> local_path("gpt2") is None
    True
    """
    if os.path.exists(source):
        return Path(source)
    if not isinstance(source, str) or source not in EMBEDDED_MODELS:
        return None
    folder = HOME / source
    if not (folder / "config.json").is_file():
        raise InputError(
            f"The files of the embedded model {source} are missing: {folder} holds no config.json; "
            "install Firth again, or run `make embedded` in a source checkout."
        )
    return folder
