"""What a template may make: no texts, numbers or nested lists that nobody needs and that fill the memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_CHARACTERS = 1 << 23  # of what is rendered and of any text on the way; also items of a list
MAX_BITS = 1 << 16  # of a whole number
MAX_WIDTH = 1 << 16  # that a text is padded to
ITEM_CHARACTERS = 8  # what an item of a list, written out, counts besides itself

# A width of six digits, or one that comes as a value: in the format of `%`, and in what follows a colon for `format`.
_WIDE_PRINTF = re.compile(r"%(?:\([^)%]*\))?[^a-zA-Z%]*?(?:[0-9]{6}|\*)")
_WIDE_SPEC = re.compile("[0-9]{6}")
PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
GROWING_METHODS = PADDING_METHODS | {"join", "replace"}


class EndlessError(Exception):
    """The template takes more than any conversation needs."""


def too_long() -> EndlessError:
    """Of a text or list."""
    return EndlessError(f"it makes texts of more than {MAX_CHARACTERS} characters")


def bounded(value: Any) -> Any:
    """The value itself. Raises EndlessError for a text or list that is too long."""
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_CHARACTERS:
        raise too_long()
    return value


def writable(value: Any) -> Any:
    """The value itself. Raises EndlessError for lists in lists that, written out or compared, never end.

    A list may hold another one many times, and that a third one: each costs nothing until somebody walks through them.
    """
    if isinstance(value, (list, tuple, dict)):
        _check_size(_written_size(value))
    return value


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise EndlessError if `left operator right`, of + * ** %, is huge."""
    if operator == "%":
        if isinstance(left, str):
            check_printf(left)
            writable(right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise EndlessError(f"it makes numbers of more than {MAX_BITS} bits")
    elif operator == "+":
        _check_size(_length(left) + _length(right))
    elif operator == "*":
        sequence, times = (left, right) if isinstance(right, int) else (right, left)
        _check_size(_length(sequence) * times if isinstance(times, int) else 0)


def check_method(name: str, text: str, arguments: tuple[Any, ...]) -> None:
    """Raise EndlessError if a method of a text, one of GROWING_METHODS, makes a huge one."""
    if name == "join":
        check_joined(text, arguments[0])
    elif name == "replace":
        check_replaced(text, *arguments[:2])
    else:
        check_widths(arguments)


def check_joined(separator: Any, items: Any) -> None:
    """Raise EndlessError if the items, with the separator between them, are a huge text."""
    if isinstance(items, (list, tuple)):
        _check_size(_written_size(items) + _length(separator) * len(items))


def check_replaced(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    """Raise EndlessError if the text with `new` for every `old` is huge."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        _check_size(text.count(old) * len(new))


def check_widths(values: Iterable[Any]) -> None:
    """Raise EndlessError for a whole number that no text is padded to."""
    if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
        raise _wide()


def check_printf(text: str) -> None:
    """Raise EndlessError for a format of `%` that pads far."""
    if _WIDE_PRINTF.search(text):
        raise _wide()


def check_spec(text: str) -> None:
    """Raise EndlessError for a format specification that pads far."""
    if _WIDE_SPEC.search(text):
        raise _wide()


def _wide() -> EndlessError:
    return EndlessError(f"it pads texts to more than {MAX_WIDTH} characters")


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise too_long()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _written_size(value: Any) -> int:
    """Characters, about, of everything in a list or dictionary; anything above the limit stands for more."""
    size, rest = 0, [value]
    while rest and size <= MAX_CHARACTERS:
        value = rest.pop()
        size += ITEM_CHARACTERS
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            rest += value.keys()
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            if len(value) * ITEM_CHARACTERS > MAX_CHARACTERS:
                raise too_long()
            rest += value
    return size
