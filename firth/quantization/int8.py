"""Int8 weights for inference on a CPU, where reading the weights takes most of the time.

    M  input rows     K  inputs     N  outputs

Each row of a matrix is stored as integers from -127 to 127 and one scale (absmax quantization per
row: Dettmers et al. 2022, section 2.1). Inputs are not rounded to eight bits only: each input row
becomes two int8 rows, a coarse and a fine one, multiplied together. Integer products are exact, so
results do not depend on the batch. On machines where they overflow or are slow
(`has_fast_int8_matmul`), some rows of the matrix at a time are converted to float32 instead.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth.models.heads import LanguageHead
from firth.models.hooks import has_hooks
from firth.models.layers import FusedLinear
from firth.models.transformer import Transformer
from firth.utils.errors import MismatchError, UsageError

MAX_INT8 = 127  # integers from -127 to 127
FINE_STEPS = 2 * MAX_INT8  # fine steps in one coarse step
MAX_INPUTS = (2**31 - 1) // MAX_INT8**2  # more products could overflow a 32-bit sum
MAX_ELEMENTS = 1 << 22  # converted to more than eight bits at a time
MAX_SMALL_BATCH = 32  # input rows up to which matrix @ rows.T is faster than rows @ matrix.T


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a matrix: return int8 values and the scale of each row.

    >>> numbers, scale = quantise(torch.tensor([[1.0, -0.5, 0.1], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), round(scale[0].item() * 127, 6)
    ([[127, -64, 13], [0, 0, 0]], 1.0)
    """
    if matrix.shape[1] > MAX_INPUTS:
        raise MismatchError(
            f"A matrix with {matrix.shape[1]:,} inputs cannot be quantized to int8, only up to "
            f"{MAX_INPUTS:,} inputs: load the model without int8."
        )
    numbers = torch.empty(matrix.shape, dtype=torch.int8)
    scales = []
    for rows, integers in zip(_slices(matrix), _slices(numbers), strict=True):
        scales.append(_scale(rows.float()))
        integers.copy_((rows.float() / scales[-1]).round_())
    return numbers, torch.cat(scales).squeeze(1)  # (N, K), (N,)


def _scale(rows: Tensor) -> Tensor:
    """Return the value of one integer step in each row."""  # (M, K) -> (M, 1)
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True)
    return (largest / MAX_INT8).clamp_min(torch.finfo(torch.float32).tiny)


def _slices(matrix: Tensor) -> tuple[Tensor, ...]:
    return matrix.split(max(1, MAX_ELEMENTS // matrix.shape[1]))


def int8_matmul(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """Compute `x @ (numbers * scale).T` in float32 while the matrix stays int8.

    (M, K), (N, K), (N,) -> (M, N).

    >>> numbers = torch.tensor([[127, -64], [1, 127]], dtype=torch.int8)
    >>> int8_matmul(torch.tensor([[3.0, 1.0]]), numbers, torch.tensor([1.0, 0.5])).round(decimals=2)
    tensor([[317.,  65.]])
    """
    size = _scale(x)  # (M, 1)
    steps = x / size
    coarse = steps.round()
    both = torch.cat([coarse, steps.sub_(coarse).mul_(FINE_STEPS).round_()]).to(
        torch.int8
    )  # (2M, K)
    first, second = _sums(both, numbers).float().chunk(2)
    return first.add_(second, alpha=1 / FINE_STEPS).mul_(scale).mul_(size)


def _sums(both: Tensor, numbers: Tensor) -> Tensor:
    """Multiply int8 matrices with torch's private function."""  # (2M, K), (N, K) -> (2M, N)
    if len(both) <= MAX_SMALL_BATCH:
        return torch._int_mm(numbers, both.t()).t().contiguous()
    return torch._int_mm(both, numbers.t())


def _float_matmul(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """Compute the same without int8 products: convert some rows of the matrix at a time."""
    parts = [linear(x, rows.float()) for rows in _slices(numbers)]
    return torch.cat(parts, dim=1).mul_(scale)


@cache
def has_exact_int8_matmul() -> bool:
    """Tell whether torch's private int8 product exists and does not overflow on this machine."""
    if not hasattr(torch, "_int_mm"):
        return False
    largest = torch.full((2 * MAX_SMALL_BATCH, 64), MAX_INT8, dtype=torch.int8)
    found = [_sums(rows * sign, largest) for rows in (largest[:2], largest) for sign in (1, -1)]
    return all(bool((sums.abs() == 64 * MAX_INT8**2).all()) for sums in found)


def has_fast_int8_matmul(machine: str) -> bool:
    """Tell whether a processor, by its name in `platform.machine()`, has a fast int8 product.

    On x86-64 oneDNN computes it: 1.3 to 1.5 times as fast as in float32 for 1 to 64 rows of 768
    values. On ARM torch has a plain loop: on a Neoverse N1, converting the matrix to float32 was 10
    to 20 times as fast.
    """
    return machine.lower() in ("x86_64", "amd64") and has_exact_int8_matmul()


class Int8Matrix(nn.Module):
    """An int8 matrix with a scale for each row; it can be neither trained nor saved."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError("A model with int8 weights cannot be saved: load it without int8.")


class Int8Linear(Int8Matrix):
    """A linear layer; `splits` are the rows of each part of a fused projection."""

    def __init__(
        self, numbers: Tensor, scale: Tensor, bias: Tensor | None, splits: tuple[int, ...] = ()
    ) -> None:
        super().__init__(numbers, scale)
        if isinstance(bias, nn.Parameter):
            self.bias: Tensor | None = bias
        else:
            self.register_buffer("bias", bias)
        self.splits = splits
        fast = has_fast_int8_matmul(platform.machine())
        self.matmul = int8_matmul if fast else _float_matmul

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()  # (M, K)
        at_once = max(1, MAX_ELEMENTS // max(self.numbers.shape))
        if not len(rows):
            return x.new_empty(*x.shape[:-1], len(self.numbers))
        parts = rows.split(at_once) if len(rows) > at_once else (rows,)
        outputs = [self.matmul(part, self.numbers, self.scale) for part in parts]
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if self.bias is not None:
            out += self.bias
        return out.to(x.dtype).view(*x.shape[:-1], len(self.numbers))

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self(x).split(self.splits, dim=-1)


class Int8Embedding(Int8Matrix):
    """Token embeddings, converted when they are looked up."""

    weight: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super().__init__(numbers, scale)
        # An empty matrix that only carries the dtype of the hidden states.
        empty = torch.empty(0, numbers.shape[1], dtype=dtype)
        self.register_buffer("weight", empty, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.numbers[ids] * self.scale[ids].unsqueeze(-1)).to(self.weight.dtype)


def to_int8(network: Transformer) -> Transformer:
    """Quantize all matrices of a model to int8, in place; afterwards it is for inference only.

    Position embeddings, norms and biases stay as they are. It takes memory for one more matrix.

    >>> from firth.models.presets import preset
    >>> network = to_int8(Transformer(preset("bert-tiny").config, ["language"]))
    >>> network.encoder.blocks[0].attention.qkv.numbers.dtype
    torch.int8
    """
    _check(network)
    network.requires_grad_(False)
    network.inference_only = True
    for path in _projections(network):
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, _projection(network.get_submodule(path)))
    _replace_embeddings(network)
    return network.eval()


def _check(network: Transformer) -> None:
    if network.tokens.weight.device.type != "cpu":
        raise UsageError("Int8 weights are only for the CPU (--device cpu).")
    modules = list(network.modules())
    if any(isinstance(module, Int8Matrix) for module in modules):
        raise UsageError("The weights of this model are int8 already.")
    if any(map(has_hooks, modules)):
        raise UsageError(
            "This model has an adapter: merge it into the weights first "
            "(firth.adapt.apply.merge), or remove it."
        )


def _projections(network: Transformer) -> list[str]:
    return [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]


def _projection(old: nn.Module) -> Int8Linear:
    assert isinstance(old, nn.Linear)
    splits = old.splits if isinstance(old, FusedLinear) else ()
    return Int8Linear(*quantise(old.weight), old.bias, splits)


def _replace_embeddings(network: Transformer) -> None:
    """Quantize token embeddings and the output matrix, which may be the same."""
    heads = [head for head in network.heads.values() if isinstance(head, LanguageHead)]
    own = {head: _own_matrix(head, network.tokens.weight) for head in heads}
    for name in ("tokens", "encoder_tokens"):
        if (table := getattr(network, name)) is not None:
            setattr(network, name, Int8Embedding(*quantise(table.weight), table.weight.dtype))
    shared: Any = network.tokens
    for head, matrix in own.items():
        numbers, scale = matrix or (shared.numbers, shared.scale)
        head.output = Int8Linear(numbers, scale, head.bias)
        head.bias = None


def _own_matrix(head: LanguageHead, table: Tensor) -> tuple[Tensor, Tensor] | None:
    """Quantize the output matrix of a language head unless it is the embedding matrix."""
    if head.weight is None and head.extension is None:
        return None
    matrix = quantise(head.matrix(table))
    head.weight = head.extension = None
    return matrix


def count_int8_weights(network: nn.Module) -> int:
    """Count the int8 weights of a model; shared ones count once.

    >>> count_int8_weights(nn.Linear(2, 2))
    0
    """
    kept = {module.numbers for module in network.modules() if isinstance(module, Int8Matrix)}
    return sum(numbers.numel() for numbers in kept)
