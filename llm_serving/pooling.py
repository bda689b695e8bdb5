"""The mean of a prompt's last hidden states, gathered over the chunks that compute it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class MeanPool:
    """Adds each of the first `length` positions once, whatever is computed again after a preemption."""

    def __init__(self, hidden_size: int, length: int) -> None:
        self._sum = np.zeros(hidden_size, np.float64)
        self._length = length
        self._count = 0

    def add(self, position: int, hidden: npt.NDArray[np.float32]) -> None:
        """Rows (T, hidden_size) of the positions from `position` on."""
        fresh = hidden[self._count - position : self._length - position]
        self._sum += fresh.sum(axis=0, dtype=np.float64)
        self._count += len(fresh)

    def mean(self) -> npt.NDArray[np.float32]:
        """(hidden_size,) over all positions; each must have been added."""
        assert self._count == self._length, "the prompt was not computed to its end"
        return (self._sum / self._length).astype(np.float32)
