"""Jinja that ends: a template comes with a model, and may loop, recurse and grow for ever unless that is bounded.

Time is the processor's, of the thread that renders, so that a busy machine refuses nothing. It is looked at in the
rounds of loops and the calls of macros. What would not come back from a single operation, on huge numbers, widths or
repetitions, is refused before it begins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 5.0  # of the processor; templates of the field take milliseconds
MAX_CHARACTERS = 1 << 23  # of what is rendered and of any text on the way; also items of a list
MAX_BITS = 1 << 16  # of a whole number
MAX_WIDTH = 1 << 16  # that a text is padded to

METER = "vtk meter"  # as all names here, none that a template can write
_STEP, _CONCAT = "vtk step", "vtk concat"
# A width of six digits, or one that comes as a value: in the format of `%`, and in what follows a colon for `format`.
_WIDE_PRINTF = re.compile(r"%(?:\([^)%]*\))?[^a-zA-Z%]*?(?:[0-9]{6}|\*)")
_WIDE_SPEC = re.compile("[0-9]{6}")
_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_PADDING_FILTERS = ("batch", "center", "indent", "round", "slice", "tojson")


class EndlessError(Exception):
    """The template takes more than any conversation needs."""


class Meter:
    """The time of one rendering, which has it among its variables as `METER`."""

    def __init__(self) -> None:
        self._end = time.thread_time() + MAX_SECONDS
        self._look = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Look at the time: the clock's, which costs less and runs ahead, before the processor's.

        Raises EndlessError when it is over.
        """
        if time.monotonic() < self._look:
            return
        left = self._end - time.thread_time()
        if left <= 0:
            raise EndlessError(f"it takes more than {MAX_SECONDS:g} seconds of the processor")
        self._look = time.monotonic() + left


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates raise EndlessError instead of going on for ever. `bound` it before the first one."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def bound(self) -> None:
        """Bound the filters that are there now, and forget the one function that makes any number of words."""
        for name in _PADDING_FILTERS:
            self.filters[name] = _bounded_width(self.filters[name])
        self.filters["format"] = _printf
        self.filters = {name: _bounded_result(function) for name, function in self.filters.items()}
        self.filters |= {_STEP: _step, _CONCAT: lambda values: self.concat(map(str, values))}
        self.globals.pop("lipsum", None)

    def compiled(self, source: str) -> Template:
        """The template, which needs a `Meter` whenever it is rendered. Raises what Jinja does."""
        tree = _Bounding().visit(self.parse(source))
        return self.from_string(tree.set_environment(self))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """One text of all; Jinja makes one of what a macro writes, and of the whole."""
        kept, size = list[str](), 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise _too_long()
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, unless that is huge."""
        if operator == "+" and isinstance(left, str):  # the one that templates are full of
            made = left + right
            if len(made) > MAX_CHARACTERS:
                raise _too_long()
            return made
        _check_operation(operator, left, right)
        return self.binop_table[operator](left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a function or a method, unless it pads a text far."""
        if args and _is_wide(args) and getattr(obj, "__name__", "") in _PADDING_METHODS:
            raise _wide()
        return _checked(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map` in the sandbox."""
        if getattr(value, "__name__", "") not in ("format", "format_map") or super().wrap_str_format(value) is None:
            return None
        text, formatter = str(value.__self__), _BoundedFormatter(self)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(text, (), mapping)
        return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)


class _BoundedFormatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if _WIDE_SPEC.search(format_spec):
            raise _wide()
        made: str = super().format_field(value, format_spec)
        return made


class _Bounding(NodeTransformer):
    """Puts a step into every body that may run again, and concatenates where its size is looked at."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_step_node(node), node.test, lineno=node.lineno)
        return _with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return _with_step(self.generic_visit(node))

    visit_CallBlock = visit_Block = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter_node(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _CONCAT)


def _with_step(node: Any) -> nodes.Node:
    node.body.insert(0, nodes.ExprStmt(_step_node(node), lineno=node.lineno))
    made: nodes.Node = node
    return made


def _step_node(at: nodes.Node) -> nodes.Filter:
    return _filter_node(nodes.Const(True, lineno=at.lineno), _STEP)


def _filter_node(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


@pass_context
def _step(context: Context, value: bool) -> bool:
    context.parent[METER].step()
    return value


def _printf(text: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's own filter `format`."""
    if args and kwargs:
        raise TypeError("format takes values by place or by name, not both")
    _check_printf(str(text))
    return str(text) % (kwargs or args)


def _bounded_result(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        return _checked(function(*args, **kwargs))

    return bounded


def _bounded_width(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a filter that takes widths after its value."""

    @wraps(function)
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_wide((*args, *kwargs.values())):
            raise _wide()
        return function(value, *args, **kwargs)

    return bounded


def _check_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "%":
        if isinstance(left, str):
            _check_printf(left)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise EndlessError(f"it makes numbers of more than {MAX_BITS} bits")
    elif operator == "+":
        _check_size(_size(left) + _size(right))
    elif operator == "*":
        sequence, times = (left, right) if isinstance(right, int) else (right, left)
        _check_size(_size(sequence) * times if isinstance(times, int) else 0)


def _check_printf(text: str) -> None:
    if _WIDE_PRINTF.search(text):
        raise _wide()


def _is_wide(arguments: Iterable[Any]) -> bool:
    for value in arguments:  # noqa: SIM110 - a generator costs more than all of this
        if isinstance(value, int) and value > MAX_WIDTH:
            return True
    return False


def _wide() -> EndlessError:
    return EndlessError(f"it pads texts to more than {MAX_WIDTH} characters")


def _checked(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_CHARACTERS:
        raise _too_long()
    return value


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise _too_long()


def _too_long() -> EndlessError:
    return EndlessError(f"it makes texts of more than {MAX_CHARACTERS} characters")
