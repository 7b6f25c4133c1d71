"""The config of `prompt`: its keyword arguments and the options of its verb.

Importing this module is fast: it imports neither torch nor numpy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from firth.data.memory import Data
from firth.inference.prompting.templates import FIELDS
from firth.jobs.job_configs import COLUMNS, DEVICE, FORMAT, LIMIT, OVERWRITE, STRICT
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

if TYPE_CHECKING:
    from firth.model import Model
    from firth.utils.devices import Device

LABELLED = ("classify", "pair")
SELECTION_METHODS = ("random", "balanced", "nearest")


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """The arguments of `prompt`; invalid combinations raise UsageError before anything is loaded.

    >>> PromptConfig(queries="fine", task="classify", labels=["good", "bad"]).words
    {'good': 'good', 'bad': 'bad'}
    """

    queries: Sequence[str] | str = ()  # input texts, if there is no `data`
    task: Annotated[
        str, Doc("seq2seq generates an answer; classify, pair and choice score labels.", "Data")
    ] = "seq2seq"
    data: Annotated[
        Data | None,
        Doc("Labelled examples to evaluate on; - for stdin. Default: the TEXTs.", "Data", str),
    ] = None
    limit: Annotated[int, LIMIT] = 0
    columns: Annotated[Mapping[str, str] | None, COLUMNS] = None
    format: Annotated[str | None, FORMAT] = None
    strict: Annotated[bool, STRICT] = False
    examples: Annotated[
        Data | None,
        Doc("File of labelled examples to draw demonstrations from. Default: none.", kind=Path),
    ] = None
    shots: Annotated[
        int | None,
        Doc("Number of demonstrations. Default: 4 with --examples, else all given.", min=0),
    ] = None
    pick: Annotated[
        str | None,
        Doc(
            "Selection: random, balanced (equally many per label) or nearest to the text. Default: "
            "balanced if there are labels, else random."
        ),
    ] = None
    near: Annotated[
        "str | Path | Model | None",
        Doc(
            "Embedding model for --pick nearest. Default: tf-idf of words.",
            kind=str,
            metavar="MODEL",
        ),
    ] = None
    draws: Annotated[
        int, Doc("Number of random demonstration sets; reports mean ± std.", min=1)
    ] = 1
    seed: Annotated[int, Doc("Random seed of the demonstrations.")] = 0
    labels: Annotated[
        Mapping[str, str] | Sequence[str] | str | None,
        Doc("Labels, or label words: 0=negative,1=positive. Default: those of the data.", kind=str),
    ] = None
    template: Annotated[
        str | None,
        Doc(
            "Template of an example: 'Review: {text}\\nSentiment: {label}'. Fields: {text}, "
            "{text_a} {text_b}, {source} {target}, {labels}; {label} or [MASK] is the answer. "
            "Default: the task's."
        ),
    ] = None
    instruction: Annotated[str, Doc("Instruction at the start of the prompt. Default: none.")] = ""
    chat: Annotated[
        bool,
        Doc(
            "Use the model's chat template: the instruction is the system message, demonstrations "
            "are earlier turns."
        ),
    ] = False
    calibrate: Annotated[
        bool | None,
        Doc(
            "Divide label probabilities by those of an empty text. Default: on for classify and "
            "pair, off with --pick nearest.",
            "Decoding",
        ),
    ] = None
    mean: Annotated[
        bool | None,
        Doc(
            "Score a label by the mean or the sum of its tokens' log-probabilities. Default: the "
            "mean if labels differ in length.",
            "Decoding",
            flags="--mean/--sum",
        ),
    ] = None
    max_new_tokens: Annotated[
        int, Doc("Maximum length of a generated answer in tokens.", "Decoding", min=1)
    ] = 32
    out: Annotated[
        str | Path | None,
        Doc(
            "JSON-lines file for the predictions; --data may then lack labels. Default: none.",
            "Output",
            Path,
        ),
    ] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    device: Annotated["Device", DEVICE] = None

    def __post_init__(self) -> None:
        for wrong, why in self._complaints():
            if wrong:
                raise UsageError(why)

    def _complaints(self) -> Iterator[tuple[bool, str]]:
        task, count, picking = self.task, len(self.texts), self.picking
        tasks, picks = ", ".join(FIELDS), ", ".join(SELECTION_METHODS)
        yield task not in FIELDS, f"Prompting supports the tasks {tasks}, not {task!r}."
        yield bool(count) == (self.data is not None), "Give either texts or a file with --data."
        yield task == "pair" and count not in (0, 2), "For pair, give two texts."
        choices = "For choice, give a text and at least two choices."
        yield task == "choice" and 0 < count < 3, choices
        yield self.draws > 1 and bool(count), "Several --draws are compared on a file: give --data."
        needed = f"--shots {self.shots} needs examples: give --examples FILE."
        yield bool(self.shots) and self.examples is None, needed
        unlabelled = task not in LABELLED
        labels = f"--labels is for classify and pair; {task} has no labels."
        yield bool(self.labels) and unlabelled, labels
        scored = "--calibrate is for scored answers, not for generated ones (seq2seq)."
        yield bool(self.calibrate) and task == "seq2seq", scored
        words = f"--mean and --sum are for label words; {task} has none."
        yield self.mean is not None and unlabelled, words
        yield picking not in SELECTION_METHODS, f"--pick is one of {picks}, not {self.pick!r}."
        balanced = f"--pick balanced needs labels, which {task} has not; use random or nearest."
        yield picking == "balanced" and unlabelled, balanced
        yield self.near is not None and picking != "nearest", "--near is for --pick nearest."

    @property
    def texts(self) -> tuple[str, ...]:
        """The queries; a single one may be given without a list."""
        return (self.queries,) if isinstance(self.queries, str) else tuple(self.queries)

    @property
    def lists_examples(self) -> bool:
        """Whether the demonstrations are a list of tuples, to be shown in its order."""
        given = self.examples if isinstance(self.examples, list | tuple) else [None]
        return all(isinstance(example, list | tuple) for example in given)

    @property
    def words(self) -> dict[str, str]:
        """The word of each given label: by default, the label itself."""
        given = {} if self.labels is None else self.labels
        if isinstance(given, str):
            return parse_labels(given)
        return dict(given) if isinstance(given, Mapping) else {label: label for label in given}

    @property
    def picking(self) -> str:
        """How demonstrations are selected: by default, balanced over labels."""
        usual = "balanced" if self.task in LABELLED else "random"
        return self.pick or ("nearest" if self.near is not None else usual)

    @property
    def calibrates(self) -> bool:
        """Whether to calibrate: by default, if one calibration serves all queries.

        With nearest demonstrations or choices, every query needs its own, four prompts for one.
        """
        usual = self.task in LABELLED and self.picking != "nearest"
        return usual if self.calibrate is None else self.calibrate


def parse_labels(text: str) -> dict[str, str]:
    """Parse the labels and the word of each.

    >>> parse_labels("0=negative, 1=positive"), parse_labels("yes,no")
    ({'0': 'negative', '1': 'positive'}, {'yes': 'yes', 'no': 'no'})
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        label, equals, word = (side.strip() for side in part.partition("="))
        if not label or (equals and not word) or label in found:
            raise UsageError(
                f"--labels takes words, or LABEL=WORD, separated by commas, not {text!r}."
            )
        found[label] = word or label
    return found
