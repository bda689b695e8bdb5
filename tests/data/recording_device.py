"""A device without a device: work runs at once on the CPU, and every access that nothing orders is a race."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOST, DEFAULT = "host", "default stream"
Clock = dict[str, int]


@dataclass
class Accesses:
    """To one storage: the last write and the reads since, each as who did it and his time."""

    storage: torch.UntypedStorage  # kept, so that no other one gets its address
    write: tuple[str, int] | None = None
    reads: dict[str, int] = field(default_factory=dict)


class RecordingDevice(TorchDispatchMode):
    """`Device`, and a record of which operation touched which storage, by vector clocks (Fidge 1988, Mattern 1988).

    An operation inside of `Stream.run` belongs to the stream, inside of `loading` to the default stream, and else to
    the host. A stream's operations follow each other and what the host did before it queued them. `ignored` is the
    number of one wait, in order of time, that this device leaves out.
    """

    torch_device = torch.device("cpu")

    def __init__(self, ignored: int | None = None) -> None:
        super().__init__()
        self.races: list[str] = []
        self.num_waits = 0
        self.captures = 0
        self._ignored = ignored
        self._clocks: dict[str, Clock] = {HOST: {}, DEFAULT: {}}
        self._current: str | None = None
        self._storages: dict[int, Accesses] = {}

    def new_stream(self) -> "RecordingStream":
        name = f"stream {len(self._clocks)}"
        self._clocks[name] = {}
        return RecordingStream(self, name)

    def record(self) -> "RecordedEvent":
        return self.event(DEFAULT)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def loading(self) -> AbstractContextManager[None]:
        return self.running(DEFAULT)

    def event(self, actor: str) -> "RecordedEvent":
        self._join(actor, self._clocks[HOST])
        return RecordedEvent(self, dict(self._clocks[actor]))

    def wait(self, actor: str, clock: Clock) -> None:
        if self.num_waits != self._ignored:
            self._join(actor, clock)
        self.num_waits += 1

    @contextmanager
    def running(self, actor: str) -> Iterator[None]:
        before, self._current = self._current, actor
        try:
            yield
        finally:
            self._current = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        arguments = list(zip(function._schema.arguments, args, strict=False))
        arguments += [(a, kwargs[a.name]) for a in function._schema.arguments if kwargs and a.name in kwargs]
        is_view = any(a.alias_info and not a.alias_info.is_write for a in function._schema.arguments)
        if not is_view and "empty" not in function.name():
            self._note(function.name(), arguments, result)
        return result

    def _note(self, name: str, arguments: list[tuple[Any, Any]], result: Any) -> None:
        read: list[torch.Tensor] = []
        written = _tensors(result)
        for argument, value in arguments:
            is_write = argument.alias_info is not None and argument.alias_info.is_write
            (written if is_write else read).extend(_tensors(value))
        actor = self._current or HOST
        if actor != HOST:
            self._join(actor, self._clocks[HOST])
        clock = self._clocks[actor]
        clock[actor] = clock.get(actor, 0) + 1
        for tensor in read:
            self._touch(name, actor, tensor, is_write=False)
        for tensor in written:
            self._touch(name, actor, tensor, is_write=True)

    def _touch(self, name: str, actor: str, tensor: torch.Tensor, *, is_write: bool) -> None:
        accesses, clock = self._accesses(tensor), self._clocks[actor]
        others = list(accesses.reads.items()) if is_write else []
        for other, time in (*others, *([accesses.write] if accesses.write else [])):
            if clock.get(other, 0) < time:
                self.races.append(f"{name} of the {actor} does not wait for the {other}")
        if is_write:
            accesses.write, accesses.reads = (actor, clock[actor]), {}
        else:
            accesses.reads[actor] = clock[actor]

    def _accesses(self, tensor: torch.Tensor) -> Accesses:
        storage = tensor.untyped_storage()
        return self._storages.setdefault(storage.data_ptr(), Accesses(storage))

    def _join(self, actor: str, clock: Clock) -> None:
        own = self._clocks[actor]
        for other, time in clock.items():
            own[other] = max(own.get(other, 0), time)


@dataclass
class RecordedEvent:
    device: RecordingDevice
    clock: Clock

    def synchronize(self) -> None:
        self.device.wait(HOST, self.clock)


@dataclass
class RecordingStream:
    device: RecordingDevice
    name: str

    def run(self, work: Callable[[], Any]) -> Any:
        with self.device.running(self.name):
            return work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.device.captures += 1
        return lambda: self.run(work)

    def record(self) -> RecordedEvent:
        return self.device.event(self.name)

    def wait(self, event: RecordedEvent) -> None:
        self.device.wait(self.name, event.clock)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []
