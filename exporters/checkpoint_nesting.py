"""A guard before torch's own reader: pickles whose tuples no program can hash, or not before the end of days.

torch stores dictionary keys as the file gives them, and CPython hashes a tuple by recursion in C: a small file with one
deep key would end the process without a word, and one whose key is a pair of a pair with itself, and so on, would keep
it for ever. No honest file nests tuples more than a few levels, nor needs millions of operations for its names.
"""

from __future__ import annotations

import pickletools
from typing import BinaryIO, NamedTuple

MAX_DEPTH = 1_000
MAX_SIZE = 1_000_000
MAX_OPERATIONS = 5_000_000


class _Weight(NamedTuple):
    """size: of values that are met on the way through a tuple, one that is in it twice counting twice."""

    depth: int
    size: int


_LEAF = _Weight(0, 1)
_MARK = _Weight(-1, 0)


def unreadable(stream: BinaryIO, num_pickles: int) -> str | None:
    """Why one of the next pickles shall not be read: a tuple deeper than MAX_DEPTH or beyond MAX_SIZE, or its length.

    Damaged ones are left to torch's reader.
    """
    try:
        return next(filter(None, (_unreadable(stream) for _ in range(num_pickles))), None)
    except (ValueError, IndexError):
        return None


def _unreadable(stream: BinaryIO) -> str | None:
    stack: list[_Weight] = []
    memo: dict[object, _Weight] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count >= MAX_OPERATIONS:
            return f"its pickle has more than {MAX_OPERATIONS:,} operations"
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo.get(argument, _LEAF))
        else:
            popped = _pop(stack, opcode)
            if "TUPLE" in name:
                depth = 1 + max((item.depth for item in popped), default=0)
                stack.append(_Weight(depth, 1 + sum(item.size for item in popped)))
            elif opcode.stack_after:
                stack.append(_MARK if opcode.stack_after[0] is pickletools.markobject else _LEAF)
        if stack and stack[-1].depth > MAX_DEPTH:
            return "its values are nested too deeply"
        if stack and stack[-1].size > MAX_SIZE:
            return f"a tuple of it unfolds to more than {MAX_SIZE:,} values"
    return None


def _pop(stack: list[_Weight], opcode: pickletools.OpcodeInfo) -> list[_Weight]:
    """Take what the opcode takes: a fixed number of values, or all down to the last mark."""
    before = opcode.stack_before
    if pickletools.markobject not in before:
        first = start = len(stack) - len(before)
    else:
        mark = next((index for index in reversed(range(len(stack))) if stack[index] is _MARK), -1)
        # what comes before the mark, the list or dictionary that is filled, is taken and pushed again
        first, start = mark - before.index(pickletools.markobject), mark + 1
    if first < 0:
        raise ValueError("stack underflow")
    popped = stack[start:]
    del stack[first:]
    return popped
