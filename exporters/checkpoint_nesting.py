"""A guard before torch's own reader: pickles whose tuples are nested so deeply that hashing one overflows the stack.

torch stores dictionary keys as the file gives them, and CPython hashes a tuple by recursion in C: a small file with one
deep key would end the process without a word. No honest file nests tuples more than a few levels.
"""

from __future__ import annotations

import pickletools
from typing import BinaryIO

MAX_DEPTH = 1_000

_MARK = -1


def is_nested_too_deeply(stream: BinaryIO, num_pickles: int) -> bool:
    """Whether one of the next pickles builds a tuple deeper than MAX_DEPTH. Damaged ones are left to torch's reader."""
    try:
        return any(_is_deep(stream) for _ in range(num_pickles))
    except (ValueError, IndexError):
        return False


def _is_deep(stream: BinaryIO) -> bool:
    depths: list[int] = []
    memo: dict[object, int] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = depths[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            depths.append(memo.get(argument, 0))
        else:
            popped = _pop(depths, opcode)
            if "TUPLE" in name:
                depths.append(1 + max(popped, default=0))
            elif opcode.stack_after:
                depths.append(_MARK if opcode.stack_after[0] is pickletools.markobject else 0)
        if depths and depths[-1] > MAX_DEPTH:
            return True
    return False


def _pop(depths: list[int], opcode: pickletools.OpcodeInfo) -> list[int]:
    """Take what the opcode takes: a fixed number of values, or all down to the last mark."""
    before = opcode.stack_before
    if pickletools.markobject not in before:
        first = start = len(depths) - len(before)
    else:
        mark = next((index for index in reversed(range(len(depths))) if depths[index] == _MARK), -1)
        # what comes before the mark, the list or dictionary that is filled, is taken and pushed again
        first, start = mark - before.index(pickletools.markobject), mark + 1
    if first < 0:
        raise ValueError("stack underflow")
    popped = depths[start:]
    del depths[first:]
    return popped
