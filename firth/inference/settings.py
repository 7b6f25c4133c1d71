"""How a model writes: what decides the next token, and when it is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from firth.errors import Misuse

METHODS = ("greedy", "sample", "beam")
BEAMS = 4  # where a beam search is asked for and nothing says how wide
# Settings that only one method looks at.
ONLY = {
    "sample": ("temperature", "top_k", "top_p", "min_p"),
    "beam": ("beams", "length_penalty", "early_stopping"),
}
MOST_NEW, MOST_WAYS = 1 << 20, 1 << 12


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How texts are continued; what is not named is off.

    >>> Generation(method="sample", temperature=-1.0)
    Traceback (most recent call last):
    firth.errors.Misuse: `temperature` is at least 0 (0: always the likeliest token), not -1.0.
    """

    method: str = "greedy"  # the likeliest token, a drawn one, or the likeliest of several texts
    max_new_tokens: int = 40  # tokens that are written, at most
    temperature: float = 1.0  # below 1 likely tokens become likelier, above 1 less so
    top_k: int = 0  # draw from so many of the likeliest tokens; 0: from all
    top_p: float = 1.0  # draw from the likeliest tokens that together have this probability
    min_p: float = 0.0  # draw from tokens at least this likely, compared with the likeliest
    repetition_penalty: float = 1.0  # above 1, what was read or written becomes less likely
    no_repeat_ngram: int = 0  # no run of so many tokens comes twice; 0: it may
    beams: int = 1  # texts that a beam search follows at a time
    length_penalty: float = 1.0  # a beam's log-probability is divided by length ** this
    early_stopping: bool | str = False  # True: when enough beams have ended; "never": when sure
    n: int = 1  # completions of each prompt
    stop: tuple[str, ...] = ()  # writing ends before any of these
    seed: int = 0  # another seed, other samples

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        if self.method == "sample" and self.temperature == 0:
            object.__setattr__(self, "method", "greedy")
        if self.method not in METHODS:
            raise Misuse(f"There is no method {self.method!r}; known are {', '.join(METHODS)}.")
        for name, (fits, what) in RULES.items():
            value = getattr(self, name)
            if value != value or not fits(value):
                raise Misuse(f"`{name}` is {what}, not {value!r}.")
        if self.method == "beam" and self.beams < 2:
            raise Misuse("A beam search needs `beams` of at least 2; one beam is greedy.")
        if self.method == "greedy" and self.n > 1:
            raise Misuse(
                f"There is one likeliest continuation, not {self.n}: draw them (`temperature=1.0`) "
                f"or search for them (`beams={self.n}`)."
            )
        if self.method == "beam" and self.n > self.beams:
            raise Misuse(
                f"{self.beams} beams give no more than {self.beams} completions, not {self.n}; "
                "take more beams."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Generation:
        """From options, of which None means not given; what is given says which method it is.

        >>> Generation.of({"temperature": 0.7, "top_k": None}).method
        'sample'
        >>> Generation.of({"beams": 3}).method, Generation.of({"temperature": 0}).method
        ('beam', 'greedy')
        >>> Generation.of({"beams": 3, "top_k": 5})
        Traceback (most recent call last):
        firth.errors.Misuse: Beams are searched, not drawn: leave out `top_k`, or `beams`.
        """
        values = {name: value for name, value in given.items() if value is not None}
        own = {field.name for field in fields(cls)}
        if strange := sorted(values.keys() - own):
            raise Misuse(
                f"Generation has no setting {strange[0]}; it has {', '.join(sorted(own))}."
            )
        drawn = [name for name in ONLY["sample"] if name in values]
        searched = [name for name in ONLY["beam"] if name in values]
        if values.get("beams") == 1:
            searched.remove("beams")
        method = values.get("method") or ("sample" if drawn else "beam" if searched else "greedy")
        if method not in METHODS:
            return cls(method=method)
        if drawn and (searched or method == "beam"):
            other = searched[0] if searched else "method"
            raise Misuse(f"Beams are searched, not drawn: leave out `{drawn[0]}`, or `{other}`.")
        if searched and method != "beam":
            raise Misuse(f"`{searched[0]}` is for beams: leave it out, or leave out the method.")
        if drawn and method == "greedy" and values.get("temperature") != 0:
            raise Misuse(f"`{drawn[0]}` is for sampling: leave it out, or leave out the method.")
        if method == "beam" and "beams" not in values:
            if {"length_penalty", "early_stopping"} & values.keys() and "method" not in values:
                raise Misuse(f"`{searched[0]}` is for a beam search: say how many `beams`.")
            values["beams"] = max(BEAMS, int(values.get("n", 1)))
        return cls(**{**values, "method": method})

    @property
    def ways(self) -> int:
        """So many continuations of each prompt are followed at a time."""
        return self.beams if self.method == "beam" else self.n

    @property
    def remembers(self) -> bool:
        """Whether a choice depends on more of the text than the network sees of it."""
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram > 0


RULES: dict[str, tuple[Any, str]] = {
    "max_new_tokens": (lambda x: 1 <= x <= MOST_NEW, f"a number from 1 to {MOST_NEW:,}"),
    "temperature": (
        lambda x: 0 <= x < float("inf"),
        "at least 0 (0: always the likeliest token)",
    ),
    "top_k": (lambda x: x >= 0, "a number of tokens (0: all of them)"),
    "top_p": (lambda x: 0 < x <= 1, "a probability above 0 and up to 1"),
    "min_p": (lambda x: 0 <= x <= 1, "a share from 0 to 1"),
    "repetition_penalty": (lambda x: 0 < x < float("inf"), "above 0 (1: none)"),
    "no_repeat_ngram": (lambda x: x >= 0, "a number of tokens (0: they may)"),
    "beams": (lambda x: 1 <= x <= MOST_WAYS, f"a number from 1 to {MOST_WAYS:,}"),
    "length_penalty": (lambda x: abs(x) < float("inf"), "a finite number"),
    "early_stopping": (lambda x: x in (True, False, "never"), 'True, False or "never"'),
    "n": (lambda x: 1 <= x <= MOST_WAYS, f"a number from 1 to {MOST_WAYS:,}"),
    "stop": (lambda x: all(isinstance(s, str) and s for s in x), "texts, none of them empty"),
    "seed": (lambda x: 0 <= x < 1 << 64, "a number from 0 to 2 ** 64 - 1"),
}
