"""Decoding options: the method that selects the next token, and when generation stops."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import Annotated, Any, Self, TypedDict

from firth.utils.arguments import shown
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

METHODS = ("greedy", "sample", "beam")
DEFAULT_BEAMS = 4
METHOD_OPTIONS = {  # options that only one method uses
    "sample": ("temperature", "top_k", "top_p", "min_p"),
    "beam": ("beams", "length_penalty", "early_stopping"),
}
MAX_NEW_TOKENS, MAX_SEQUENCES = 1 << 20, 1 << 12


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Decoding options; the default is greedy decoding.

    >>> GenerationConfig(method="sample", top_p=1.5)
    Traceback (most recent call last):
    firth.utils.errors.UsageError: `top_p` must be a probability above 0 and at most 1, not 1.5.
    """

    method: Annotated[str, Doc("greedy, sample or beam; other options may imply it.")] = "greedy"
    max_new_tokens: Annotated[int, Doc("Maximum length of a completion in tokens.")] = 40
    temperature: Annotated[float, Doc("Sampling temperature; lower is more deterministic.")] = 1.0
    top_k: Annotated[int, Doc("Sample from the k most probable tokens; 0: all.")] = 0
    top_p: Annotated[
        float, Doc("Sample from the most probable tokens with total probability p.")
    ] = 1.0
    min_p: Annotated[
        float, Doc("Sample from tokens at least min-p times as probable as the best.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, Doc("Penalty on the logits of tokens in prompt and completion; 1: none.")
    ] = 1.0
    no_repeat_ngram: Annotated[
        int, Doc("Forbid n-grams of this many tokens to occur twice; 0: allow.")
    ] = 0
    beams: Annotated[int, Doc("Beam search with this many beams.")] = 1
    length_penalty: Annotated[
        float, Doc("Beam search: exponent of the length; above 1 favours long texts.")
    ] = 1.0
    early_stopping: Annotated[
        bool | str,
        Doc(
            "Beam search: yes (once all beams have ended), no, or never (until no beam can "
            "improve). Default: no.",
            kind=str,
        ),
    ] = False
    n: Annotated[int, Doc("Completions per prompt.")] = 1
    stop: Annotated[
        tuple[str, ...],
        Doc(
            r"Stop before this text (\n: a line break); repeatable. Default: none.",
            kind=list[str],
            metavar="TEXT",
        ),
    ] = ()
    seed: Annotated[int, Doc("Random seed of sampling.")] = 0

    def __post_init__(self) -> None:
        several = isinstance(self.stop, Iterable) and not isinstance(self.stop, str)
        stops = tuple(self.stop) if several else (self.stop,)
        object.__setattr__(self, "stop", stops)
        if self.method == "sample" and self.temperature == 0:
            object.__setattr__(self, "method", "greedy")
        if self.method not in METHODS:
            raise UsageError(f"Unknown method {self.method!r}; choose from {', '.join(METHODS)}.")
        for name, (is_valid, requirement) in RULES.items():
            value = getattr(self, name)
            given = repr(value)
            try:
                valid = value == value and is_valid(value)
            except TypeError:  # not a number, or not an integer
                valid, given = False, shown(value)
            if not valid:
                raise UsageError(f"`{name}` must be {requirement}, not {given}.")
        if self.method == "beam" and self.beams < 2:
            raise UsageError("Beam search needs `beams` of at least 2; one beam is greedy search.")
        if self.method == "greedy" and self.n > 1:
            raise UsageError(
                f"Greedy search gives one completion, not {self.n}: sample (`temperature=1.0`) or "
                f"use beam search (`beams={self.n}`)."
            )
        if self.method == "beam" and self.n > self.beams:
            raise UsageError(
                f"{self.beams} beams give at most {self.beams} completions, not {self.n}; "
                "increase `beams`."
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build a config from options (None: not given); they determine the method.

        >>> GenerationConfig.of({"temperature": 0.7, "top_k": None}).method
        'sample'
        >>> GenerationConfig.of({"beams": 3}).method, GenerationConfig.of({"temperature": 0}).method
        ('beam', 'greedy')
        >>> GenerationConfig.of({"beams": 3, "top_k": 5})
        Traceback (most recent call last):
        firth.utils.errors.UsageError: Beam search does not sample: remove `top_k` or `beams`.
        """
        values = {name: value for name, value in options.items() if value is not None}
        known = {field.name for field in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise UsageError(
                f"Unknown generation option {unknown[0]}; known are {', '.join(sorted(known))}."
            )
        for_sampling = [name for name in METHOD_OPTIONS["sample"] if name in values]
        for_beams = [name for name in METHOD_OPTIONS["beam"] if name in values]
        if values.get("beams") == 1:
            for_beams.remove("beams")
        default = "sample" if for_sampling else "beam" if for_beams else "greedy"
        method = values.get("method") or default
        if method not in METHODS:
            return cls(method=method)
        if for_sampling and (for_beams or method == "beam"):
            other = for_beams[0] if for_beams else "method"
            raise UsageError(
                f"Beam search does not sample: remove `{for_sampling[0]}` or `{other}`."
            )
        if for_beams and method != "beam":
            raise UsageError(
                f"`{for_beams[0]}` is an option of beam search: remove it, or `method`."
            )
        if for_sampling and method == "greedy" and values.get("temperature") != 0:
            raise UsageError(
                f"`{for_sampling[0]}` is an option of sampling: remove it, or `method`."
            )
        if method == "beam" and "beams" not in values:
            if {"length_penalty", "early_stopping"} & values.keys() and "method" not in values:
                raise UsageError(f"`{for_beams[0]}` is an option of beam search: add `beams`.")
            n = values.get("n")
            values["beams"] = max(DEFAULT_BEAMS, n if isinstance(n, int) else 1)
        return cls(**{**values, "method": method})

    @property
    def num_sequences(self) -> int:
        """Sequences that are decoded in parallel for each prompt."""
        return self.beams if self.method == "beam" else self.n

    @property
    def needs_history(self) -> bool:
        """Whether a logits processor needs all previous tokens."""
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram > 0


RULES: dict[str, tuple[Any, str]] = {
    "max_new_tokens": (
        lambda x: 1 <= index(x) <= MAX_NEW_TOKENS,
        f"an integer from 1 to {MAX_NEW_TOKENS:,}",
    ),
    "temperature": (lambda x: 0 <= x < float("inf"), "a number of at least 0 (0: greedy)"),
    "top_k": (lambda x: index(x) >= 0, "an integer of at least 0 (0: all tokens)"),
    "top_p": (lambda x: 0 < x <= 1, "a probability above 0 and at most 1"),
    "min_p": (lambda x: 0 <= x <= 1, "a fraction from 0 to 1"),
    "repetition_penalty": (lambda x: 0 < x < float("inf"), "a number above 0 (1: none)"),
    "no_repeat_ngram": (lambda x: index(x) >= 0, "an integer of at least 0 (0: off)"),
    "beams": (lambda x: 1 <= index(x) <= MAX_SEQUENCES, f"an integer from 1 to {MAX_SEQUENCES:,}"),
    "length_penalty": (lambda x: abs(x) < float("inf"), "a finite number"),
    "early_stopping": (lambda x: x in (True, False, "never"), 'True, False or "never"'),
    "n": (lambda x: 1 <= index(x) <= MAX_SEQUENCES, f"an integer from 1 to {MAX_SEQUENCES:,}"),
    "stop": (lambda x: all(isinstance(s, str) and s for s in x), "a list of non-empty strings"),
    "seed": (lambda x: 0 <= index(x) < 1 << 64, "an integer from 0 to 2 ** 64 - 1"),
}


class GenerationOptions(TypedDict, total=False):
    """The fields of `GenerationConfig` as keyword arguments; None: the default."""

    method: str | None
    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram: int | None
    beams: int | None
    length_penalty: float | None
    early_stopping: bool | str | None
    n: int | None
    stop: Sequence[str] | str | None
    seed: int | None


def one_completion(settings: GenerationOptions) -> None:
    """Raise a usage error if several completions are requested."""
    n = settings.get("n") or 1
    if n > 1:
        raise UsageError(f"This method returns one text, not n={n}: use `Model.completions`.")
