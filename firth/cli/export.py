"""`firth export`: write a model in the format of another library."""

from pathlib import Path

from firth.cli import options
from firth.cli.verbs import Output

EXAMPLES = ("firth export runs/encoder runs/encoder-hf", "firth export runs/lora runs/merged")


def export(
    model: str = options.MODEL,
    out: Path = options.Argument(..., metavar="OUT", help="Directory to write."),
    to: str = options.OutputOption("hf", help="Format: hf is a Hugging Face checkpoint."),
    overwrite: bool = options.OVERWRITE,
    verify: bool = options.ModelOption(
        False, "--verify", help="Compare the weights with their SHA-256 checksums first."
    ),
) -> Output:
    """Write a model as a Hugging Face checkpoint; adapters are merged into the weights."""
    from firth.model import export, exported_class

    family = export(model, out, to=to, overwrite=overwrite, verify=verify)
    auto = exported_class(out)
    saved = f"Saved a {family} checkpoint in {out}; load it with transformers.{auto}."
    return Output({"out": str(out), "family": family, "auto_class": auto}, [saved])
