"""Jinja that ends: a template comes with a model, and may loop, recurse and grow for ever unless that is bounded.

Time is the processor's, of the thread that renders, so that a busy machine refuses nothing. It is looked at in the
rounds of loops and the calls of macros. What would not come back from a single operation is refused before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context, pass_eval_context
from jinja2.filters import do_join
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from vtk.llm_serving.tokenizer.bounded_values import (
    GROWING_METHODS,
    MAX_CHARACTERS,
    EndlessError,
    bounded,
    check_joined,
    check_method,
    check_operation,
    check_printf,
    check_replaced,
    check_spec,
    check_widths,
    too_long,
    writable,
)

MAX_SECONDS = 5.0  # of the processor; templates of the field take milliseconds

METER = "vtk meter"  # as all names here, none that a template can write
_STEP, _CONCAT, _WRITABLE = "vtk step", "vtk concat", "vtk writable"
_PADDING_FILTERS = ("batch", "center", "indent", "round", "slice", "tojson")
# Filters that take the items of a list as they are; every other one may walk through whatever they hold.
_SHALLOW_FILTERS = frozenset({
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
})  # fmt: skip
_COMPARING_TESTS = (
    "eq", "equalto", "==", "ne", "!=", "in", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=",
)  # fmt: skip


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
        """Bound the filters and tests that are there now; the one function that makes any number of words goes."""
        for name in _PADDING_FILTERS:
            self.filters[name] = _before(self.filters[name], lambda value, *widths: check_widths(widths))
        self.filters |= {"format": _printf, "join": _join}
        self.filters["replace"] = _before(self.filters["replace"], lambda context, *texts: check_replaced(*texts))
        for name, function in self.filters.items():
            deep = name not in _SHALLOW_FILTERS
            self.filters[name] = _bounded(_before(function, _check_writable) if deep else function)
        self.filters |= {_STEP: _step, _CONCAT: self._concatenated, _WRITABLE: writable}
        for name in _COMPARING_TESTS:
            test: Any = self.tests[name]
            self.tests[name] = _before(test, _check_writable)
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
                raise too_long()
            kept.append(piece)
        return "".join(kept)

    def _concatenated(self, values: Iterable[Any]) -> str:
        return self.concat(str(writable(value)) for value in values)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, unless that is huge."""
        if operator == "+" and isinstance(left, str):  # the one that templates are full of
            made = left + right
            if len(made) > MAX_CHARACTERS:
                raise too_long()
            return made
        check_operation(operator, left, right)
        return bounded(self.binop_table[operator](left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a function or a method, unless that makes a huge text."""
        name = getattr(obj, "__name__", "")
        if name in GROWING_METHODS and isinstance(text := getattr(obj, "__self__", None), str):
            check_method(name, text, (*args, *kwargs.values()))
        elif name in ("count", "index"):
            writable(getattr(obj, "__self__", None))
        return bounded(super().call(context, obj, *args, **kwargs))

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
        check_spec(format_spec)
        made: str = super().format_field(writable(value), format_spec)
        return made


class _Bounding(NodeTransformer):
    """Puts a step into every body that may run again, and a look at what is written, concatenated or compared."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_step_node(node), node.test, lineno=node.lineno)
        return _with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return _with_step(self.generic_visit(node))

    visit_CallBlock = visit_Block = visit_Macro

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(part, _WRITABLE) if _may_be_list(part) else part for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _CONCAT)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if all(map(_may_be_list, sides)):
            node.expr = _filtered(node.expr, _WRITABLE)
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, _WRITABLE)
        return node


def _may_be_list(node: nodes.Node) -> bool:
    """False for what is known to be a text or number, which is most of what templates write and compare with."""
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return not all(isinstance(item, nodes.Const) for item in node.items)
    if isinstance(node, nodes.Add):
        return _may_be_list(node.left) and _may_be_list(node.right)
    if isinstance(node, nodes.Filter):
        return node.name not in ("tojson", "trim", "length", "string", "upper", "lower", _CONCAT)
    return not isinstance(node, (nodes.Const, nodes.TemplateData))


def _with_step(node: Any) -> nodes.Node:
    node.body.insert(0, nodes.ExprStmt(_step_node(node), lineno=node.lineno))
    made: nodes.Node = node
    return made


def _step_node(at: nodes.Node) -> nodes.Filter:
    return _filtered(nodes.Const(True, lineno=at.lineno), _STEP)


def _filtered(value: Any, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


@pass_context
def _step(context: Context, value: bool) -> bool:
    context.parent[METER].step()
    return value


def _printf(text: Any, *args: Any, **kwargs: Any) -> str:
    """Jinja's own filter `format`."""
    if args and kwargs:
        raise TypeError("format takes values by place or by name, not both")
    check_printf(str(text))
    return str(text) % (kwargs or args)


@pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's own filter `join`, over items that are there."""
    items = list(value)
    check_joined(d, items)
    made: str = do_join(context, items, d, attribute)
    return made


def _check_writable(*values: Any) -> None:
    for value in values:
        writable(value)


def _before(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """The function, with a look at its arguments first."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, *kwargs.values())
        return function(*args, **kwargs)

    return checked


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return bounded(function(*args, **kwargs))

    return checked
