"""Matrices in eight bits, for a CPU, where to read the weights is what takes the time.

    M  rows of what is multiplied     K  inputs     N  outputs     V  vocabulary     E  its width

A row of a matrix becomes whole numbers up to 127 and one scale (absmax, one for each row: Dettmers
et al. 2022, section 2.1). What it is multiplied with is not rounded to eight bits as well: a row of
it becomes two rows of whole numbers, a coarse and a fine one, which read the matrix together.
Products of whole numbers are exact, so how rows are batched makes no difference to any of them; on
a machine where they are not (`is_exact`), rows of the matrix are widened instead, as `firth.native`
does it, which writes few texts on a CPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth.errors import MismatchError, Misuse
from firth.models.heads import LanguageHead
from firth.models.layers import Fused
from firth.models.transformer import Transformer

MOST = 127  # the largest whole number, and the smallest is -127
FINER = 2 * MOST  # steps of the fine row in one of the coarse row
WIDEST = (2**31 - 1) // MOST**2  # inputs whose products can be added up in 32 bits
AT_ONCE = 1 << 22  # numbers that are held in more than eight bits at a time
FEW = 32  # rows, up to which it is faster to have the matrix on the left


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers and the scale of each row, whose product is nearest to a matrix.

    >>> numbers, scale = quantise(torch.tensor([[1.0, -0.5, 0.1], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), round(scale[0].item() * 127, 6)
    ([[127, -64, 13], [0, 0, 0]], 1.0)
    """
    if matrix.shape[1] > WIDEST:
        raise MismatchError(
            f"A matrix with {matrix.shape[1]:,} inputs cannot be kept in int8, only up to "
            f"{WIDEST:,}: leave the weights as they are."
        )
    numbers = torch.empty(matrix.shape, dtype=torch.int8)
    scales = []
    for rows, whole in zip(_slices(matrix), _slices(numbers), strict=True):
        wide = rows.float()
        scales.append(_scale(wide))
        whole.copy_((wide / scales[-1]).round_())
    return numbers, torch.cat(scales).squeeze(1)  # (N, K), (N,)


def _scale(rows: Tensor) -> Tensor:
    """What one step of whole numbers stands for in each row."""  # (M, K) -> (M, 1)
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1, keepdim=True)
    return (largest / MOST).clamp_min(torch.finfo(torch.float32).tiny)


def _slices(matrix: Tensor) -> tuple[Tensor, ...]:
    return matrix.split(max(1, AT_ONCE // matrix.shape[1]))


def product(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """`x @ (numbers * scale).T` in 32 bits, while the matrix stays in eight.

    (M, K), (N, K), (N,) -> (M, N).

    >>> numbers = torch.tensor([[127, -64], [1, 127]], dtype=torch.int8)
    >>> product(torch.tensor([[3.0, 1.0]]), numbers, torch.tensor([1.0, 0.5])).round(decimals=2)
    tensor([[317.,  65.]])
    """
    size = _scale(x)  # (M, 1)
    steps = x / size
    coarse = steps.round()
    both = torch.cat([coarse, steps.sub_(coarse).mul_(FINER).round_()]).to(torch.int8)  # (2M, K)
    first, second = _sums(both, numbers).float().chunk(2)
    return first.add_(second, alpha=1 / FINER).mul_(scale).mul_(size)


def _sums(both: Tensor, numbers: Tensor) -> Tensor:
    """A product of whole numbers."""  # (2M, K), (N, K) -> (2M, N)
    if len(both) <= FEW:
        return torch._int_mm(numbers, both.t()).t().contiguous()
    return torch._int_mm(both, numbers.t())


def _unpacked(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """The same on a machine that cannot: some rows of the matrix are widened at a time."""
    parts = [linear(x, rows.float()) for rows in _slices(numbers)]
    return torch.cat(parts, dim=1).mul_(scale)


@cache
def is_exact() -> bool:
    """Whether this machine adds up products of eight bits without an overflow on the way."""
    ends = torch.full((2 * FEW, 64), MOST, dtype=torch.int8)
    found = [_sums(rows * sign, ends) for rows in (ends[:2], ends) for sign in (1, -1)]
    return all(bool((sums.abs() == 64 * MOST**2).all()) for sums in found)


class Int8(nn.Module):
    """A matrix of whole numbers with a scale for each row: used, but neither taught nor saved."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise Misuse("A network with int8 weights is not saved: open the model without them.")


class Int8Linear(Int8):
    """A projection; `splits` are the rows of each part, if it is made of several."""

    def __init__(
        self, numbers: Tensor, scale: Tensor, bias: Tensor | None, splits: tuple[int, ...] = ()
    ) -> None:
        super().__init__(numbers, scale)
        if isinstance(bias, nn.Parameter):
            self.bias: Tensor | None = bias
        else:
            self.register_buffer("bias", bias)
        self.splits = splits
        self.product = product if is_exact() else _unpacked

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()  # (M, K)
        at_once = max(1, AT_ONCE // max(self.numbers.shape))
        if not len(rows):
            return x.new_empty(*x.shape[:-1], len(self.numbers))
        parts = rows.split(at_once) if len(rows) > at_once else (rows,)
        found = [self.product(part, self.numbers, self.scale) for part in parts]
        out = found[0] if len(found) == 1 else torch.cat(found)
        if self.bias is not None:
            out += self.bias
        return out.to(x.dtype).view(*x.shape[:-1], len(self.numbers))

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self(x).split(self.splits, dim=-1)


class Int8Table(Int8):
    """The vectors of tokens, each made anew when it is looked up."""

    weight: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super().__init__(numbers, scale)
        # There is no such matrix: without rows, it tells the type of numbers that go through.
        empty = torch.empty(0, numbers.shape[1], dtype=dtype)
        self.register_buffer("weight", empty, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.numbers[ids] * self.scale[ids].unsqueeze(-1)).to(self.weight.dtype)


def to_int8(network: Transformer) -> Transformer:
    """Keep all matrices of a network in eight bits, in its place; from then on it is only used.

    Tables of positions, norms and biases stay as they are. It takes memory for one more matrix.

    >>> from firth.models.presets import preset
    >>> network = to_int8(Transformer(preset("bert-tiny").config, ["language"]))
    >>> network.encoder.blocks[0].attention.qkv.numbers.dtype
    torch.int8
    """
    _check(network)
    network.requires_grad_(False)
    network.only_used = True
    for path in _projections(network):
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, _projection(network.get_submodule(path)))
    _replace_tables(network)
    return network.eval()


def _check(network: Transformer) -> None:
    if network.tokens.weight.device.type != "cpu":
        raise Misuse(
            "Int8 weights are for the CPU (--device cpu): a GPU reads 16 bits fast enough "
            "(--dtype bfloat16)."
        )
    modules = list(network.modules())
    if any(isinstance(module, Int8) for module in modules):
        raise Misuse("The weights of this network are int8 already.")
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        raise Misuse(
            "This network carries an adapter: merge it into the weights first "
            "(firth.adapt.adapted.merge), or remove it."
        )


def _projections(network: Transformer) -> list[str]:
    return [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]


def _projection(old: nn.Module) -> Int8Linear:
    assert isinstance(old, nn.Linear)
    splits = old.splits if isinstance(old, Fused) else ()
    return Int8Linear(*quantise(old.weight), old.bias, splits)


def _replace_tables(network: Transformer) -> None:
    """Those of the tokens, one of which may be what the language head multiplies with."""
    heads = [head for head in network.heads.values() if isinstance(head, LanguageHead)]
    own = {head: _own_matrix(head, network.tokens.weight) for head in heads}
    for name in ("tokens", "reader_tokens"):
        if (table := getattr(network, name)) is not None:
            setattr(network, name, Int8Table(*quantise(table.weight), table.weight.dtype))
    shared: Any = network.tokens
    for head, matrix in own.items():
        numbers, scale = matrix or (shared.numbers, shared.scale)
        head.output = Int8Linear(numbers, scale, head.bias)
        head.bias = None


def _own_matrix(head: LanguageHead, table: Tensor) -> tuple[Tensor, Tensor] | None:
    """What a language head multiplies with, if that is not just the table."""
    if head.weight is None and head.extension is None:
        return None
    matrix = quantise(head.matrix(table))
    head.weight = head.extension = None
    return matrix


def count_numbers(network: nn.Module) -> int:
    """How many weights of a network are int8; shared ones count once.

    >>> count_numbers(nn.Linear(2, 2))
    0
    """
    kept = {module.numbers for module in network.modules() if isinstance(module, Int8)}
    return sum(numbers.numel() for numbers in kept)
