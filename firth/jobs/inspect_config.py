"""The config of `inspect`: its keyword arguments and the options of its verb.

Importing this module is fast: it imports neither torch nor numpy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firth.jobs.job_configs import COLUMNS, DEVICE, DTYPE, FORMAT, OVERWRITE
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError, suggest

if TYPE_CHECKING:
    from firth.data.memory import Data
    from firth.model import AnyModel
    from firth.utils.devices import Device, Dtype

TEXT_SECTIONS = (
    *("prediction", "tokens", "attention", "lens", "attribution", "generation"),
    *("alignment", "neighbours"),
)
MAX_NEW_TOKENS = 16
LIMIT = 500
NUMBERS = "numbers from 1 or, from the end, -1: 1,6,-1"


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """The arguments of `inspect`; invalid combinations raise UsageError before a model is loaded.

    >>> InspectConfig(texts="A dog.", show="lens").sections
    ('lens',)
    """

    texts: "Data" = ()
    show: Annotated[
        str | Sequence[str] | None,
        Doc(
            "Sections: prediction (of a fine-tuned model), tokens, attention, lens, attribution, "
            "generation, alignment (of a recurrent encoder-decoder with its source), neighbours "
            "(of word vectors or token embeddings), separated by commas. "
            "Default: all that fit the model; with --word none.",
            "Output",
            str,
        ),
    ] = None
    target: Annotated[
        str | None,
        Doc(
            "What is explained: a label, a word, or the output of an encoder-decoder. Default: the "
            "model's own prediction."
        ),
    ] = None
    text_b: Annotated[
        str | None, Doc("Second text of a model fine-tuned for pairs. Default: none.")
    ] = None
    question: Annotated[
        str | None,
        Doc("Question about the TEXT, for a model that extracts answers. Default: none."),
    ] = None
    layers: Annotated[
        Sequence[int] | int | None,
        Doc(f"Layers whose attention is shown: {NUMBERS}. Default: all.", "Model", str),
    ] = None
    heads: Annotated[
        Sequence[int] | int | None,
        Doc(f"Heads whose attention is shown: {NUMBERS}. Default: all.", "Model", str),
    ] = None
    max_new_tokens: Annotated[
        int, Doc("Number of tokens to generate; 0: none.", "Decoding", min=0)
    ] = MAX_NEW_TOKENS
    temperature: Annotated[
        float | None,
        Doc("Sample the generated tokens at this temperature. Default: greedy search.", "Decoding"),
    ] = None
    word: Annotated[
        str | None,
        Doc("Compare the vectors of this word in all TEXTs, layer by layer. Default: none."),
    ] = None
    neighbours: Annotated[
        "Data | None",
        Doc(
            "With --word: texts in which its nearest neighbours are found. Default: none.", "", str
        ),
    ] = None
    compare: Annotated[
        "AnyModel | None",
        Doc(
            "Another model, compared with MODEL on the texts of --data. Default: none.",
            "Model",
            str,
            "MODEL",
        ),
    ] = None
    data: Annotated[
        "Data | None",
        Doc(
            "With --compare: a file of texts, with labels if there are any. Default: none.", "", str
        ),
    ] = None
    columns: Annotated[Mapping[str, str] | None, COLUMNS] = None
    format: Annotated[str | None, FORMAT] = None
    limit: Annotated[int, Doc("With --compare: maximum number of texts, 10 to 2,000.", min=10)] = (
        LIMIT
    )
    seed: Annotated[int, Doc("Random seed.")] = 0
    out: Annotated[
        str | Path | None,
        Doc("HTML file for the interactive page. Default: print a summary.", "Output", Path),
    ] = None
    png: Annotated[
        str | Path | None, Doc("Folder for images of all figures. Default: none.", "Output", Path)
    ] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    dtype: Annotated["Dtype", DTYPE] = None
    device: Annotated["Device", DEVICE] = None

    def __post_init__(self) -> None:
        for wrong, why in self._misuses():
            if wrong:
                raise UsageError(why)
        for name in self.sections or ():
            if name not in TEXT_SECTIONS:
                raise UsageError(f"There is no section {name!r}; {suggest(name, TEXT_SECTIONS)}")

    @property
    def sections(self) -> tuple[str, ...] | None:
        """The sections of each text that were chosen; None: those that fit the model."""
        if self.show is None:
            return () if self.word is not None else None
        names = self.show.split(",") if isinstance(self.show, str) else self.show
        return tuple(name.strip() for name in names)

    def _misuses(self) -> Iterator[tuple[Any, str]]:
        """Yield what may be wrong, and why it is."""
        comparing = self.compare is not None
        some = not isinstance(self.texts, list | tuple) or len(self.texts) > 0
        yield (
            comparing != (self.data is not None),
            "--compare MODEL and --data FILE belong together.",
        )
        yield comparing and some, "--compare reads the texts of --data: omit the TEXT."
        yield not comparing and not some, "Give a TEXT, or --compare MODEL with --data FILE."
        yield (
            comparing and (self.word is not None or self.show is not None),
            "--compare has its own page: omit --word and --show.",
        )
        yield (
            self.neighbours is not None and self.word is None,
            "--neighbours are those of a word: add --word WORD.",
        )
        yield (
            self.text_b is not None and self.question is not None,
            "Give --text-b or --question, not both.",
        )
        yield (
            not comparing and (self.columns or self.format),
            "--column and --format are for --data.",
        )
