"""Similarities of representations, against their definitions and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from firth.inspection.similarity import (
    anisotropy,
    cka_table,
    cosines,
    linear_cka,
    neighbour_agreement,
    project_pca,
    project_tsne,
)

Array = NDArray[np.float64]


def points(rows: int, columns: int, seed: int = 0) -> Array:
    """Points around a centre, with a different variance of each column."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) * np.linspace(1, 3, columns) + 2


def hsic(a: Array, b: Array) -> float:
    """The Hilbert-Schmidt independence criterion with linear kernels (Gretton et al. 2005)."""
    n = len(a)
    centring = np.eye(n) - np.ones((n, n)) / n
    return float(np.trace(a @ a.T @ centring @ b @ b.T @ centring)) / (n - 1) ** 2


@pytest.mark.parametrize("rows", [8, 60])  # fewer and more than columns
def test_cka_is_normalised_hsic(rows: int) -> None:
    a, b = points(rows, 12), points(rows, 20, seed=1)
    expected = hsic(a, b) / np.sqrt(hsic(a, a) * hsic(b, b))
    assert linear_cka(a, b) == pytest.approx(expected)
    assert cka_table([a], [b, a])[0].tolist() == pytest.approx([expected, 1], abs=1e-5)


def test_cka_ignores_rotation_scale_and_centre() -> None:
    a, b = points(40, 6), points(40, 9, seed=1)
    rotation = np.linalg.qr(points(9, 9, seed=2))[0]
    assert linear_cka(a, 7 * b @ rotation + 3) == pytest.approx(linear_cka(a, b))
    assert linear_cka(b, b @ rotation) == pytest.approx(1)
    assert linear_cka(a, np.ones((40, 3))) == 0  # all texts have one vector
    assert linear_cka(1e30 * a, 1e-30 * a) == pytest.approx(1)


def test_shuffled_rows_are_the_chance_level() -> None:
    a = points(50, 4)
    order = np.random.default_rng(0).permutation(50)
    expected = linear_cka(a, a[order])
    assert cka_table([a], [a], order)[0, 0] == pytest.approx(expected, abs=1e-5)
    assert expected < 0.2


def test_anisotropy_is_the_mean_cosine() -> None:
    a = points(30, 5)
    off_diagonal = cosine_similarity(a)[np.triu_indices(30, 1)]
    assert anisotropy(a) == pytest.approx(off_diagonal.mean())
    sampled = anisotropy(a, pairs=300)
    assert sampled == anisotropy(a, pairs=300) != anisotropy(a, pairs=300, seed=1)
    assert sampled == pytest.approx(off_diagonal.mean(), abs=0.05)


def test_neighbour_agreement_counts_shared_neighbours() -> None:
    a, b = points(40, 5), points(40, 8, seed=1)

    def neighbours(x: Array) -> list[set[int]]:
        search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(x)
        return [set(row) for row in search.kneighbors(return_distance=False)]

    shared = [len(x & y) / 10 for x, y in zip(neighbours(a), neighbours(b), strict=True)]
    assert neighbour_agreement(a, b) == pytest.approx(np.mean(shared))
    assert neighbour_agreement(a, 3 * a) == 1
    assert neighbour_agreement(a[:4], b[:4]) == 1  # all others are neighbours


def test_pca_is_that_of_scikit_learn() -> None:
    a = points(30, 6)
    assert np.allclose(np.abs(project_pca(a)), np.abs(PCA(2).fit_transform(a)))
    assert project_pca(np.ones((3, 4))).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("rows", [3, 60])
def test_tsne_depends_on_its_seed_only(rows: int) -> None:
    a = points(rows, 60)
    first = project_tsne(a)
    assert first.shape == (rows, 2)
    assert np.isfinite(first).all()
    assert np.array_equal(first, project_tsne(a))


def test_cosines_of_zero_vectors_are_zero() -> None:
    assert cosines(np.zeros((1, 3)), np.ones((2, 3))).tolist() == [[0, 0]]
