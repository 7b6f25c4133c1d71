"""Compare representations: matrices with one row per text or word, the same rows in both.

n  rows     W  vector size
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from firth.utils.rng import Floats, Longs, derive_keys
from firth.utils.threads import single_threaded

Matrix = NDArray[np.floating]
Layers = Sequence[Matrix] | Matrix  # matrices, or an array of three dimensions
NEIGHBOURS = 10
PAIRS = 1000  # random pairs of the anisotropy
RANDOM_PAIRS = 0xA215  # random stream
PERPLEXITY = 30.0  # of t-SNE: about the number of neighbours of a point


def unit_rows(vectors: Matrix) -> Floats:
    """Scale each row to length 1; rows of zeros stay as they are.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """  # (n, W)
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def cosines(a: Matrix, b: Matrix) -> Floats:
    """Compute the cosine similarity of each row of `a` with each row of `b`.

    >>> cosines(np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.0]]
    """  # (n, W), (m, W) -> (n, m)
    return np.clip(unit_rows(a) @ unit_rows(b).T, -1, 1)


def linear_cka(a: Matrix, b: Matrix) -> float:
    """Compute linear centered kernel alignment (Kornblith et al. 2019, section 3).

    With centred columns it is ||bᵀa||² / (||aᵀa|| ||bᵀb||), with Frobenius norms: 1 for
    representations that differ by a rotation and a scale. With fewer rows than dimensions it is far
    above 0 for unrelated ones too: compare it with its value for shuffled rows.

    >>> points = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> round(linear_cka(points, 3 * points[:, ::-1] + 5), 6)
    1.0
    """  # (n, W), (n, V)
    a, b = _centred(a), _centred(b)
    norms = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.linalg.norm(b.T @ a) ** 2 / norms) if norms > 0 else 0.0


def cka_table(a: Layers, b: Layers, order: Longs | None = None) -> Floats:
    """Compute the linear CKA of each of several representations with each of others.

    It computes with Gram matrices, ⟨aaᵀ, bbᵀ⟩ / (||aaᵀ|| ||bbᵀ||), each of which is made once.
    `order` permutes the rows of `b`: the chance level.

    >>> points = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> cka_table([points], [points, -points]).round(6).tolist()
    [[1.0, 1.0]]
    """  # (len(a), len(b))
    rows = [_gram(one) for one in a]
    columns = rows if b is a else [_gram(one) for one in b]
    if order is not None:
        columns = [gram[np.ix_(order, order)] for gram in columns]
    return np.array([[float(np.vdot(x, y)) for y in columns] for x in rows])


def _gram(vectors: Matrix) -> NDArray[np.float32]:
    """Compute the Gram matrix of centred rows, scaled to norm 1."""  # (n, n)
    rows = _centred(vectors)
    gram = rows @ rows.T
    return (gram / (np.linalg.norm(gram) or 1.0)).astype(np.float32)


def _centred(vectors: Matrix) -> Floats:
    rows = np.asarray(vectors, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    return rows / (np.abs(rows).max() or 1.0)  # squares of squares stay finite


def anisotropy(vectors: Matrix, *, pairs: int = PAIRS, seed: int = 0) -> float:
    """Compute the mean cosine of random pairs of rows (Ethayarajh 2019, section 3.4).

    It is near 0 if vectors point in all directions, and near 1 if all point in the same one. Small
    matrices use all pairs.

    >>> anisotropy(np.eye(3)), anisotropy(np.ones((3, 4)))
    (0.0, 1.0)
    """  # (n, W)
    n, rows = len(vectors), unit_rows(vectors)
    if n * (n - 1) // 2 <= pairs:
        first, second = np.triu_indices(n, 1)
    else:
        keys = derive_keys(derive_keys(seed, RANDOM_PAIRS), np.arange(2 * pairs))
        first = (keys[:pairs] % np.uint64(n)).astype(np.int64)
        second = (first + 1 + (keys[pairs:] % np.uint64(n - 1)).astype(np.int64)) % n
    return float((rows[first] * rows[second]).sum(axis=1).mean()) if n > 1 else 1.0


def neighbour_agreement(a: Matrix, b: Matrix, k: int = NEIGHBOURS) -> float:
    """Compute the mean fraction of the k nearest rows (cosine) that a row has in both matrices.

    Unrelated representations have about k / (n - 1).

    >>> line = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> neighbour_agreement(line, 2 * line, k=1)
    1.0
    """  # (n, W), (n, V)
    k = min(k, len(a) - 1)
    shared = _is_neighbour(a, k) & _is_neighbour(b, k)
    return float(shared.sum() / (len(a) * k))


def _is_neighbour(vectors: Matrix, k: int) -> NDArray[np.bool_]:
    """Mark the k nearest other rows of each row."""  # (n, n)
    near = cosines(vectors, vectors)
    np.fill_diagonal(near, -np.inf)
    marked = np.zeros(near.shape, dtype=np.bool_)
    np.put_along_axis(marked, np.argsort(-near, axis=1, kind="stable")[:, :k], True, axis=1)
    return marked


def project_pca(vectors: Matrix) -> Floats:
    """Project rows on the two directions of largest variance (principal component analysis).

    The entry of each direction that is largest in absolute value is positive.

    >>> project_pca(np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """  # (n, W) -> (n, 2)
    rows = np.asarray(vectors, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    directions = np.linalg.svd(rows, full_matrices=False)[2][:2]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    projected = rows @ (directions * signs[:, None]).T
    return np.pad(projected, ((0, 0), (0, 2 - projected.shape[1]))) + 0.0


@single_threaded()
def project_tsne(vectors: Matrix, *, seed: int = 0) -> Floats:
    """Project rows to two dimensions so that neighbours stay neighbours (van der Maaten 2008).

    Distances between groups mean nothing. The perplexity is 30, less for few rows. Vectors of more
    than 50 dimensions are first projected on their 50 principal components.

    >>> project_tsne(np.eye(12)).shape
    (12, 2)
    """  # (n, W) -> (n, 2)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    rows = np.asarray(vectors, dtype=np.float64)
    if min(rows.shape) > 50:
        rows = PCA(50, random_state=seed).fit_transform(rows)
    perplexity = min(PERPLEXITY, max(1.0, (len(rows) - 1) / 3))
    method = TSNE(2, perplexity=perplexity, init="random", random_state=seed)
    return np.asarray(method.fit_transform(rows), dtype=np.float64)
