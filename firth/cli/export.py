"""`firth export`: write a model in the format of another library."""

from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = (
    "firth export runs/encoder runs/encoder-hf",
    "firth export runs/lora runs/merged",
    "firth export glove.6B.50d.txt vectors.bin --to word2vec-binary --limit 50000",
)


def export(
    model: str = options.MODEL,
    out: Path = options.Argument(
        ..., metavar="OUT", help="Directory to write; of n-grams and word vectors, file."
    ),
    to: str = options.OutputOption(
        "hf",
        help="Format: hf is a Hugging Face checkpoint; n-grams: arpa; word vectors: word2vec, "
        "word2vec-binary, glove, fasttext or numpy (.npz).",
    ),
    limit: int = options.OutputOption(
        0, min=0, help="Word vectors: write the first words only, mostly the frequent ones; 0: all."
    ),
    overwrite: bool = options.OVERWRITE,
    verify: bool = options.ModelOption(
        False, "--verify", help="Compare the weights with their SHA-256 checksums first."
    ),
) -> Output:
    """Write a model as a Hugging Face checkpoint, or word vectors as a file of them."""
    from firth.jobs.exporting import export, exported_class

    family = export(model, out, to=to, limit=limit, overwrite=overwrite, verify=verify)
    if to != "hf":
        what = "n-gram model" if to == "arpa" else "word vectors"
        saved = f"Saved the {what} in {out} ({to})."
        return Output({"out": str(out), "format": family}, [saved])
    auto = exported_class(out)
    saved = f"Saved a {family} checkpoint in {out}; load it with transformers.{auto}."
    return Output({"out": str(out), "family": family, "auto_class": auto}, [saved])
