"""One sequence on its way through the engine: known tokens, computed tokens, and the blocks that hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Status(Enum):
    """Where a request stands. A preempted request is WAITING again, with its output kept."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended; the values are OpenAI's words where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class ExtraKey:
    """What besides the tokens decides the KV of a prefix: a cache salt, an adapter, an image.

    `kind` separates the domains (a salt "X" never equals an adapter "X"); `start` is the first token position that the
    key changes, 0 for the whole sequence.
    """

    kind: str
    value: str
    start: int = 0


@dataclass(eq=False)
class Request:
    """A sequence with `prompt` and the `output` sampled so far; owned by the scheduler.

    max_tokens bounds the output, `stop_ids` end it (after `min_tokens`). priority: lower is served earlier.
    sequence is the place in the order of all requests ever added, given by the scheduler: it breaks every tie.
    num_computed counts the known tokens whose KV is in `block_table`. num_cached is what the prefix cache gave at the
    first admission, which began at first_scheduled and had its blocks at first_allocated. fork_of is a request with the
    same prompt and priority whose blocks may be shared (n > 1).
    reuse_prefix False computes every prompt token, for a caller that wants all their logits.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    arrival: float
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    priority: int = 0
    queue_timeout: float | None = None
    extra_keys: tuple[ExtraKey, ...] = ()
    fork_of: Request | None = None
    reuse_prefix: bool = True
    sequence: int = -1
    status: Status = Status.WAITING
    output: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    first_scheduled: float | None = None
    first_allocated: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled."""
        return len(self.prompt) + len(self.output)

    @property
    def num_pending(self) -> int:
        """Known tokens not computed yet; 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the token sampled last is left to compute."""
        return self.status is Status.RUNNING and bool(self.output) and self.num_pending == 1

    def tokens(self, start: int, stop: int) -> list[int]:
        """Known tokens `start:stop` across prompt and output."""
        split = len(self.prompt)
        if stop <= split:
            return self.prompt[start:stop]
        if start >= split:
            return self.output[start - split : stop - split]
        return self.prompt[start:] + self.output[: stop - split]
