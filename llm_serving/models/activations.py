"""Where a step puts what it computes on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from vtk.kernels.arrays import A
from vtk.llm_serving.models.config import ModelConfig

KEPT_LOGITS_ROWS = 64  # 12 MB of a vocabulary of 49,152; prompts' log-probabilities take more and are rare


@dataclass(frozen=True, eq=False)
class Activations(Generic[A]):
    """Of T rows; every layer overwrites what the one before it left.

    stream: (T, hidden_size), what a block of the layer reads, normalized, and then what it adds. qkv: (T, all heads *
    head_dim); query, key, value: (T, heads, head_dim) of it. attended: (T, heads, head_dim); flat: the same as rows.
    gate_up: (T, 2F), where the logits of the step before were. gated: (T, F), where qkv and attended were.
    """

    stream: A
    qkv: A
    query: A
    key: A
    value: A
    attended: A
    flat: A
    gate_up: A
    gated: A


class ActivationMemory(Generic[A]):
    """Makes activations and logits of (rows, columns).

    lasting: makes memory that is handed out again, replaced where more is needed, so that it is warm and the
    system is not asked for pages in every layer: what was handed out before is overwritten. None: `empty` makes new
    memory each time.
    """

    def __init__(
        self, config: ModelConfig, empty: Callable[[int, int], A], lasting: Callable[[int, int], A] | None
    ) -> None:
        self._config = config
        self._empty: Callable[[int, int], A] = empty
        self._lasting: Callable[[int, int], A] | None = lasting
        self._kept: dict[str, A] = {}

    def activations(self, rows: int) -> Activations[A]:
        """For so many rows, uninitialized."""
        config = self._config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        projected, attended = (heads + 2 * kv_heads) * head_dim, heads * head_dim
        # Attention is over when the feed-forward block needs room.
        inner = self._take("inner", rows, max(projected + attended, config.intermediate_size)).reshape(-1)
        qkv = inner[: rows * projected].reshape(rows, projected)
        split = qkv.reshape(rows, heads + 2 * kv_heads, head_dim)
        flat = inner[rows * projected : rows * (projected + attended)].reshape(rows, attended)
        return Activations(
            stream=self._take("stream", rows, config.hidden_size),
            qkv=qkv,
            query=split[:, :heads],
            key=split[:, heads : heads + kv_heads],
            value=split[:, heads + kv_heads :],
            attended=flat.reshape(rows, heads, head_dim),
            flat=flat,
            gate_up=self._take("outer", rows, 2 * config.intermediate_size),
            gated=inner[: rows * config.intermediate_size].reshape(rows, config.intermediate_size),
        )

    def logits(self, rows: int) -> A:
        """(rows, vocab_size), uninitialized, where gate_up was: the last layer is over."""
        columns = self._config.vocab_size
        if rows > KEPT_LOGITS_ROWS:
            made: A = self._empty(rows, columns)
            return made
        return self._take("outer", rows, columns)

    def _take(self, name: str, rows: int, columns: int) -> A:
        count, memory = rows * columns, self._kept.get(name)
        if memory is None or len(memory) < count:
            memory = (self._lasting or self._empty)(1, count).reshape(-1)
        if self._lasting is not None:
            self._kept[name] = memory
        return memory[:count].reshape(rows, columns)
