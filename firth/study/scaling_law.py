"""Scaling laws: fit loss = E + A / N^α + B / D^β to runs (Hoffmann et al. 2022, section 3.3).

For given exponents the law is linear in E, A and B, so non-negative least squares finds these
three, and only the exponents are searched (variable projection, Golub and Pereyra 1973): on a
grid, then by the Nelder-Mead method.

K  runs, each a size and a number of tokens     S  seeds of a run     R  resamples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls

from firth.metrics.bootstrap import Metric
from firth.study.engine.statistics import interval
from firth.utils.errors import InputError
from firth.utils.rng import Floats

GRID = np.geomspace(0.02, 2.0, 12)  # exponents that the search begins with, and their bounds
RESAMPLES = 300
FLOPS = 6.0  # per weight and token (Kaplan et al. 2020, section 2.1)
MIN_VALUES = 3  # of N and of D: two values cannot tell an exponent from a constant


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """A law: loss = E + A / N^α + B / D^β of N parameters and D tokens."""

    irreducible_loss: float  # E
    size_factor: float  # A
    size_exponent: float  # α
    token_factor: float  # B
    token_exponent: float  # β

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Compute the loss of models of these sizes after these numbers of tokens."""
        by_size = self.size_factor * np.power(parameters, -self.size_exponent)
        by_tokens = self.token_factor * np.power(tokens, -self.token_exponent)
        return self.irreducible_loss + by_size + by_tokens

    @property
    def has_optimum(self) -> bool:
        """Whether both a larger model and more tokens reduce the loss."""
        return self.size_factor > 0 and self.token_factor > 0

    @property
    def optimal_exponents(self) -> tuple[float, float]:
        """The exponents a and b of the best size N ∝ C^a and tokens D ∝ C^b for a compute C.

        >>> CHINCHILLA = ScalingLaw(
        ...     irreducible_loss=1.69, size_factor=406.4, size_exponent=0.34,
        ...     token_factor=410.7, token_exponent=0.28,
        ... )
        >>> [round(exponent, 2) for exponent in CHINCHILLA.optimal_exponents]
        [0.45, 0.55]
        """
        total = self.size_exponent + self.token_exponent
        return self.token_exponent / total, self.size_exponent / total

    def optimal(self, compute: float) -> tuple[float, float]:
        """Return the size and the tokens with the lowest loss for a compute of 6 N D FLOPs."""
        for_size, for_tokens = self.optimal_exponents
        ratio = (self.size_exponent * self.size_factor) / (self.token_exponent * self.token_factor)
        scale = ratio ** (1 / (self.size_exponent + self.token_exponent))
        product = compute / FLOPS
        return scale * product**for_size, product**for_tokens / scale

    def values(self) -> dict[str, float]:
        """Convert to plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """A fitted law, the laws of resampled seeds, and what the law does not explain."""

    law: ScalingLaw
    resampled: Sequence[ScalingLaw]  # (R,); empty: one seed cannot be resampled
    residuals: Floats  # (K,) measured minus fitted

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "law": self.law.values(),
            "resampled": [law.values() for law in self.resampled],
            "residuals": self.residuals.tolist(),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LawFit:
        """Build a fit from its JSON values."""
        return cls(
            law=ScalingLaw(**values["law"]),
            resampled=[ScalingLaw(**law) for law in values["resampled"]],
            residuals=np.array(values["residuals"]),
        )

    def metric(self, compute: Callable[[ScalingLaw], float]) -> Metric:
        """Compute a number of the law with its 95 % interval."""
        value = compute(self.law)
        if not self.resampled:
            return Metric(value=value, low=None, high=None, reason="one seed")
        return interval(value, np.array([compute(law) for law in self.resampled]))

    def predict(self, parameters: float, tokens: float) -> Metric:
        """Predict the loss of another run, with a 95 % interval for its measured value.

        The interval has the uncertainty of the law and that of one run around it: residuals,
        scaled for the five fitted numbers (Davison and Hinkley 1997, section 6.3.3).
        """
        laws = self.resampled or [self.law] * RESAMPLES
        runs = len(self.residuals)
        spread = self.residuals * math.sqrt(runs / (runs - 5))
        drawn = np.random.default_rng(0).choice(spread, (len(laws), runs))  # (R, K)
        means = np.array([law.loss(parameters, tokens) for law in laws])
        samples = (means[:, None] + drawn).ravel()
        return interval(float(self.law.loss(parameters, tokens)), samples)

    def undetermined(self) -> list[str]:
        """Return the exponents that the runs do not determine: at a bound of the search."""
        law = self.law
        pairs = {
            "α": (law.size_factor, law.size_exponent),
            "β": (law.token_factor, law.token_exponent),
        }
        low, high = 1.01 * GRID[0], 0.99 * GRID[-1]
        return [
            name
            for name, (factor, exponent) in pairs.items()
            if factor == 0 or not low < exponent < high
        ]


def fit_law(parameters: Floats, tokens: Floats, losses: Sequence[Floats]) -> LawFit:
    """Fit the law to the mean losses of runs, and to those of resampled seeds of every run.

    `losses` has the losses of all seeds of each run.
    """
    _check_grid(parameters, tokens)
    means = np.array([np.mean(one) for one in losses])
    law = _search(parameters, tokens, means)
    resampled = []
    if max(map(len, losses)) > 1:
        rng = np.random.default_rng(0)
        for _ in range(RESAMPLES):
            drawn = np.array([np.mean(rng.choice(one, len(one))) for one in losses])
            resampled.append(_search(parameters, tokens, drawn, begin=law))
    residuals = means - law.loss(parameters, tokens)
    return LawFit(law=law, resampled=resampled, residuals=residuals)


def _check_grid(parameters: Floats, tokens: Floats) -> None:
    for name, values in {"sizes": parameters, "numbers of tokens": tokens}.items():
        if len(set(values)) < MIN_VALUES:
            raise InputError(
                f"A scaling law needs finished runs with at least {MIN_VALUES} {name}, not "
                f"{len(set(values))}."
            )
    if len(parameters) < 6:
        raise InputError(f"A scaling law has 5 numbers: {len(parameters)} runs are too few.")


def _search(
    parameters: Floats, tokens: Floats, losses: Floats, begin: ScalingLaw | None = None
) -> ScalingLaw:
    """Search the exponents: on a grid unless they begin at those of a law, then Nelder-Mead."""
    # Sizes and tokens relative to their geometric means keep the columns comparable.
    centers = [float(np.exp(np.mean(np.log(values)))) for values in (parameters, tokens)]
    columns = np.stack([parameters / centers[0], tokens / centers[1]])  # (2, K)
    bounds = np.log(GRID[0]), np.log(GRID[-1])

    def error(logs: Floats) -> float:
        inside = np.clip(logs, *bounds)
        outside = float(np.abs(logs - inside).sum())  # so that the search returns
        return _project(columns, losses, np.exp(inside))[1] * (1 + outside) + 1e-12 * outside

    if begin is None:
        grid = [np.log([a, b]) for a in GRID for b in GRID]
        start = min(grid, key=error)
    else:
        start = np.log([begin.size_exponent, begin.token_exponent])
    found = minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-9})
    exponents = np.exp(np.clip(found.x, *bounds))
    (constant, by_size, by_tokens), _ = _project(columns, losses, exponents)
    return ScalingLaw(
        irreducible_loss=float(constant),
        size_factor=float(by_size * centers[0] ** exponents[0]),
        size_exponent=float(exponents[0]),
        token_factor=float(by_tokens * centers[1] ** exponents[1]),
        token_exponent=float(exponents[1]),
    )


def _project(columns: Floats, losses: Floats, exponents: Floats) -> tuple[Floats, float]:
    """Return the best E, A and B for given exponents, none negative, and the error's norm."""
    powers = columns ** -exponents[:, None]  # (2, K)
    matrix = np.stack([np.ones(len(losses)), *powers], axis=1)  # (K, 3)
    solution, norm = nnls(matrix, losses)
    return solution, float(norm)
