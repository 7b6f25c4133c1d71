"""`firth export`: write a model in the format of another library."""

from pathlib import Path
from typing import Annotated

from firth.cli.options import Argument, ModelArgument, OutputOption
from firth.cli.verbs import Output

EXAMPLES = ("firth export runs/encoder runs/encoder-hf", "firth export runs/lora runs/merged")


def export(
    model: ModelArgument,
    out: Annotated[Path, Argument(metavar="OUT", help="Directory to write.")],
    to: Annotated[str, OutputOption(help="Format: hf is a Hugging Face checkpoint.")] = "hf",
) -> Output:
    """Write a model as a Hugging Face checkpoint; adapters are merged into the weights."""
    from firth.model import export

    family = export(model, out, to=to)
    saved = f"Saved a {family} checkpoint in {out}; load it with transformers.AutoModel."
    return Output({"out": str(out), "family": family}, [saved])
