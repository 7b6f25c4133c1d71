"""A sandbox for chat templates that bounds their steps and memory.

Every value that a template computes, every piece it outputs and every step of a loop is subtracted
from the budget of one rendering; what could multiply sizes (such as `replace`, a width of a format)
is checked before it is computed. Not bounded: the size of the template itself, whose literal lists
are made anew in each step, and the seconds that a rendering takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from math import prod
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

BUDGET = 1 << 24  # characters and items that one rendering may compute
STEP = 64  # characters that a step of a loop counts as
MAX_BITS = 4096  # of a number

FORMATS = {"format", "format_map", "%"}
WIDE = re.compile(r"\{[^{}]*:[^{}]*(\d{4}|\{)|%(\(.*?\))?[^a-zA-Z%]*(\d{4}|\*)")
# Methods and filters whose results are at most as long as the text or list they are applied to.
METHODS = frozenset(
    "split rsplit strip lstrip rstrip startswith endswith find rfind index count partition "
    "rpartition removeprefix removesuffix splitlines".split()
)
FILTERS = frozenset(
    "length count first last list items select reject selectattr rejectattr map default d sort "
    "unique reverse dictsort groupby min max attr".split()
)
_left: ContextVar[list[int]] = ContextVar("left")  # what is left of the budget


def start_rendering() -> None:
    """Give the next rendering a full budget."""
    _left.set([BUDGET])


def _spend(size: int) -> None:
    left = _left.get()
    left[0] -= size
    if left[0] < 0:
        raise SecurityError("its loops or texts are too long")


def _count(value: Any) -> Any:
    """Subtract a computed value from the budget, without the values in it."""
    _spend(1 + (len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0))
    return value


def _count_steps(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend(STEP)
        yield item


def _text_size(value: Any) -> int:
    """Return about how many characters a value has as text; more than the budget is an error."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        size += 1
        if isinstance(one, Namespace):
            one = one._Namespace__attrs
        if isinstance(one, (str, bytes)):
            size += len(one)
        elif isinstance(one, dict):
            size += STEP
            waiting += [*one, *one.values()]
        elif isinstance(one, (list, tuple, range, set, MappingView)):
            size += STEP
            waiting += one  # type: ignore[arg-type]
        if size + len(waiting) > BUDGET:
            raise SecurityError("a text is too long")
    return size


def _check_product(name: str, first: Any, *values: Any) -> None:
    """Refuse a call whose result may be too long: the product of all sizes and widths."""
    widths = name not in FORMATS
    sizes = [
        abs(value) + 1 if widths and isinstance(value, int) else _text_size(value)
        for value in values
    ]
    is_wide = not widths and WIDE.search(str(first))
    if is_wide or prod(sizes, start=_text_size(first)) > BUDGET:
        raise SecurityError(f"the result of {name} may be too long")


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter."""
    skipped = int(hasattr(function, "jinja_pass_arg"))  # the context or environment

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        values = [list(_count_steps(v)) if isinstance(v, Iterator) else v for v in given]
        if name not in FILTERS:
            _check_product(name, *values[skipped:], *options.values())
        return _count(function(*values, **options))

    return call


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox without attributes of Python's internals, changes of values, and huge results."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])
    count, count_steps = staticmethod(_count), staticmethod(_count_steps)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, optimized=False, finalize=_output)
        del self.globals["lipsum"]

    def check_filters(self) -> None:
        """Bound the results of all filters."""
        self.filters |= {name: _checked(name, filter) for name, filter in self.filters.items()}

    def _generate(self, source: nodes.Template, *options: Any, **more: Any) -> str:
        return super()._generate(_Counted().visit(source), *options, **more)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        pieces = list(pieces)
        _spend(sum(map(len, pieces)))
        return "".join(pieces)

    @staticmethod
    def join_texts(*values: Any) -> str:
        """Compute `a ~ b`."""
        _spend(sum(map(_text_size, values)))
        return "".join(map(str, values))

    def call(self, context: Context, function: Any, /, *values: Any, **options: Any) -> Any:
        """Call a method, macro or function."""
        method = getattr(function, "__wrapped__", function)
        owner, run = getattr(method, "__self__", None), partial(super().call, context, function)
        if not isinstance(owner, str | bytes | int):
            return _count(run(*values, **options))
        if method.__name__ not in METHODS:
            values = tuple(list(v) if isinstance(v, Iterator) else v for v in values)
            _check_product(method.__name__, owner, *values, *options.values())
        result = run(*values, **options)
        _spend(_text_size(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a sum, product, power or formatted text of bounded size."""
        pair = [abs(v).bit_length() if isinstance(v, int) else 0 for v in (left, right)]
        if operator == "%" and isinstance(left, str | bytes):
            _check_product("%", left, right)
        elif operator == "*" and not all(isinstance(v, int | float) for v in (left, right)):
            number, other = (left, right) if isinstance(left, int) else (right, left)
            size = len(other) if isinstance(other, str | bytes | Sequence) else 0
            if isinstance(number, int) and abs(number) * size > BUDGET:
                raise SecurityError("the result of * is too long")
        elif (operator == "*" and sum(pair) > MAX_BITS) or (
            operator == "**" and pair[0] * abs(right) > MAX_BITS
        ):
            raise SecurityError(f"the result of {operator} is too large")
        return _count(super().call_binop(context, operator, left, right))


@pass_context  # with it, no constant is computed when a template is compiled
def _output(context: Context, value: Any) -> Any:
    """Subtract a piece of output from the budget."""
    _spend(_text_size(value))
    return value


class _Counted(NodeTransformer):
    """Make a template's loops, slices and `~` call the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _call("count_steps", [node.iter])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("join_texts", node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("count", [node]) if isinstance(node.arg, nodes.Slice) else node


def _call(name: str, values: list[Any]) -> nodes.Expr:
    return nodes.Call(nodes.EnvironmentAttribute(name), values, [], None, None)
