"""Order-free comparison of DETR outputs: the same queries may come in another order and still be right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

# Boxes live in 0..1 and logits in about -10..10: the factor makes both count.
_BOX_WEIGHT = 5.0
_IMPOSSIBLE = 1e9


@dataclass(frozen=True, eq=False)
class QueryMatch:
    """One-to-one assignment: row i of the first outputs corresponds to row `order[i]` of the second.

    box_errors, logit_errors: (Q,) float64, largest absolute difference within each pair; inf where a value is NaN.
    """

    order: npt.NDArray[np.int64]
    box_errors: npt.NDArray[np.float64]
    logit_errors: npt.NDArray[np.float64]

    def unmatched(self, *, box_atol: float, logit_atol: float) -> int:
        """How many pairs differ by more than the limits, that is, queries that one side has and the other has not."""
        return int(np.count_nonzero((self.box_errors > box_atol) | (self.logit_errors > logit_atol)))


def match_queries(
    logits: npt.NDArray[np.floating],
    boxes: npt.NDArray[np.floating],
    other_logits: npt.NDArray[np.floating],
    other_boxes: npt.NDArray[np.floating],
) -> QueryMatch:
    """Pair the queries of one picture, logits (Q, C) and boxes (Q, 4) in 0..1, with the least total difference.

    The encoder's top-k orders its picks by scores that may differ by less than rounding noise, so two right results can
    list the same queries in different orders. Raises ValueError when the shapes differ.
    """
    if logits.shape != other_logits.shape or boxes.shape != other_boxes.shape or len(logits) != len(boxes):
        raise ValueError(
            f"cannot match logits {logits.shape}, boxes {boxes.shape} "
            f"with logits {other_logits.shape}, boxes {other_boxes.shape}"
        )
    box_distance = _max_distance(boxes, other_boxes)
    logit_distance = _max_distance(logits, other_logits)
    cost = np.maximum(_BOX_WEIGHT * box_distance, logit_distance)
    rows, order = linear_sum_assignment(np.minimum(cost, _IMPOSSIBLE))
    return QueryMatch(order.astype(np.int64), box_distance[rows, order], logit_distance[rows, order])


def _max_distance(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """(Q, Q) largest absolute difference of every pair of rows; inf where it is not a number."""
    distance = np.asarray(cdist(a, b, metric="chebyshev"), dtype=np.float64)
    bad = np.isnan(a).any(axis=1)[:, None] | np.isnan(b).any(axis=1)[None, :]
    return np.where(bad | np.isnan(distance), np.inf, distance)
