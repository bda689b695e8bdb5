"""A pickle read as inert records: what it asks for is written down, and nothing of it is imported or called.

An ordinary unpickler looks up every name that the file gives and calls it. This one is a stack machine over the opcodes
of protocol 2 (the one of torch.save) in which a name stays a name, and a call becomes a `Record` of the name and the
arguments. What a record means is decided afterwards, by code that knows a few of them (see `checkpoint_yolo`).
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

from vtk.errors import CheckpointError

MAX_RECORD_BYTES = 16 << 20
MAX_OPCODES = 2_000_000

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS_AND_TEXT = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE"))
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class Name:
    """A global, `module.name`, that the file mentions."""

    path: str


@dataclass(frozen=True)
class Storage:
    """A block of numbers beside the pickle: the entry `data/<key>` of the archive, `numel` elements of type `kind`."""

    kind: str
    key: str
    numel: int


@dataclass(eq=False)
class Record:
    """One object as described, not made: a call of `path` with `args`, its attributes `state`, and its items."""

    path: str
    args: tuple[Any, ...]
    state: Any = None
    entries: dict[str | int, Any] = field(default_factory=dict)


def read_records(data: bytes, source: str) -> Any:
    """The tree of plain values, records and storages that a pickle describes.

    Raises CheckpointError for damaged streams, for opcodes that torch.save does not write, and beyond the limits.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise CheckpointError(f"{source}: its pickle has {len(data)} bytes; vtk reads up to {MAX_RECORD_BYTES}.")
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= MAX_OPCODES:
                raise ValueError(f"more than {MAX_OPCODES} operations")
            machine.step(opcode.name, argument)
        (tree,) = machine.stack
    except (ValueError, IndexError, KeyError, TypeError, StopIteration) as error:
        raise CheckpointError(f"{source}: its pickle is damaged or of an unknown kind ({error}).") from error
    return tree


class _Machine:
    """The stack and the memo of a pickle; `step` applies one opcode."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _NUMBERS_AND_TEXT:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self.stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif opcode in _TUPLES:
            self.stack.append(self._pop(_TUPLES[opcode]))
        else:
            self._step_object(opcode, argument)

    def _step_object(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "GLOBAL":
                self.stack.append(Name(argument.replace(" ", ".")))
            case "MARK":
                self.stack.append(_MARK)
            case "TUPLE":
                self.stack.append(self._pop_mark())
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_DICT":
                self.stack.append({})
            case "APPEND":
                self._extend(self._pop(1))
            case "APPENDS":
                self._extend(self._pop_mark())
            case "SETITEM":
                self._set_items(self._pop(2))
            case "SETITEMS":
                self._set_items(self._pop_mark())
            case "REDUCE" | "NEWOBJ":
                self._call(*self._pop(2))
            case "BUILD":
                self._build(*self._pop(1))
            case "BINPERSID":
                self.stack.append(_storage(*self._pop(1)))
            case "PROTO" | "STOP":
                pass
            case "POP":
                self._pop(1)
            case "POP_MARK":
                self._pop_mark()
            case _:
                raise ValueError(f"operation {opcode}")

    def _pop(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise ValueError("stack underflow")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return items

    def _pop_mark(self) -> tuple[Any, ...]:
        start = next(index for index in reversed(range(len(self.stack))) if self.stack[index] is _MARK)
        items = tuple(self.stack[start + 1 :])
        del self.stack[start:]
        return items

    def _extend(self, items: tuple[Any, ...]) -> None:
        # Records of list-like classes get appended to as well; nothing here needs their elements.
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def _set_items(self, items: tuple[Any, ...]) -> None:
        target = self.stack[-1].entries if isinstance(self.stack[-1], Record) else self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("items set on something that has none")
        # Hashing a tuple that is nested a million times would overflow the stack; other keys are of no use here.
        pairs = zip(items[::2], items[1::2], strict=True)
        target.update((key, value) for key, value in pairs if isinstance(key, (str, int)))

    def _call(self, callee: Any, args: Any) -> None:
        if not isinstance(callee, Name) or not isinstance(args, tuple):
            raise ValueError("a call of something that is no name")
        self.stack.append(Record(callee.path, args))

    def _build(self, state: Any) -> None:
        if not isinstance(self.stack[-1], Record):
            raise ValueError("attributes for something that is no object")
        self.stack[-1].state = state


def _storage(pid: Any) -> Storage:
    match pid:
        case ("storage", Name(path=kind), str() as key, str(), int() as numel):
            return Storage(kind, key, numel)
    raise ValueError("a persistent id that is no storage")
