"""The centre of gravity of a task: the layer that a probe of all layers reads, on average.

One linear probe reads a weighted sum of the layers, whose weights s, a softmax, are learned with it
(Tenney et al. 2019, section 3.2). The centre of gravity is the sum of l times s_l over the layers.

Tenney et al. scale the sum by a free gamma. Here each feature of each layer is standardized, and
the sum is divided by its root mean square instead, so that its scale is free although the probe's
weights are penalized: without that, a sum of layers would cost more than one layer alone.

L  layers     n  examples     W  hidden size     K  labels
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from torch.nn.functional import cross_entropy

from firth.inspection.layer_vectors import Vectors
from firth.utils.rng import Floats, Longs

STEPS = 1000  # of L-BFGS at most; it mostly converges after 100 to 300


def layer_weights(layers: Vectors, targets: Longs, strength: float) -> Floats:
    """Learn how much a linear probe reads each layer; the weights sum to 1.

    `strength` is the inverse L2 penalty, as of `solve`.
    """  # (L + 1, n, W) -> (L + 1,)
    standardized = [(layer - layer.mean(0)) / np.maximum(layer.std(0), 1e-6) for layer in layers]
    seen, right = torch.from_numpy(np.stack(standardized)), torch.from_numpy(targets)
    labels, width = int(targets.max()) + 1, seen.shape[2]
    sizes = (len(seen), labels * width, labels)  # scores of layers; weight and bias of the probe

    def loss_and_gradient(values: Floats) -> tuple[float, Floats]:
        flat = torch.from_numpy(values).float().requires_grad_()
        scores, weight, bias = flat.split(sizes)
        mixed = torch.einsum("l,lnw->nw", scores.softmax(0), seen)
        mixed = mixed / mixed.square().mean().sqrt().clamp_min(1e-6)
        penalty = weight.square().sum() / (2 * strength * len(right))
        loss = cross_entropy(mixed @ weight.view(labels, width).T + bias, right) + penalty
        (gradient,) = torch.autograd.grad(loss, flat)
        return loss.item(), gradient.double().numpy()

    # SciPy's L-BFGS: an optimizer of torch would import its compiler, which takes seconds.
    found = minimize(
        loss_and_gradient, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B",
        options={"maxiter": STEPS},
    )  # fmt: skip
    return np.asarray(softmax(found.x[: len(seen)]))


def centre_of_gravity(weights: Floats) -> float:
    """Compute the mean layer, 0 for the embeddings.

    >>> round(centre_of_gravity(np.array([0.2, 0.3, 0.5])), 6)
    1.3
    """
    return float(weights @ np.arange(len(weights)))
