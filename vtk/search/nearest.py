"""The rows of a table that are nearest to a vector, exactly: one pass over the table, whose cost is reading it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vtk.search.table import EmbeddingTable, Entry, Vectors


@dataclass(frozen=True)
class Hit:
    """A picture and how like it is: the cosine of the angle between the two vectors, -1..1."""

    entry: Entry
    score: float


def nearest(table: EmbeddingTable, queries: Vectors, k: int) -> list[list[Hit]]:
    """For each of the queries (Q, D), of length 1, its `k` best hits by falling score; equal scores by rising row."""
    assert queries.shape[1] == table.dim
    best: list[list[Hit]] = [[] for _ in queries]
    for block in table.blocks():
        for place, scores in enumerate(queries @ block.vectors.T):
            order = np.argsort(-scores, kind="stable")[:k]
            found = [Hit(block.entries[row], float(scores[row])) for row in order]
            best[place] = sorted([*best[place], *found], key=lambda hit: (-hit.score, hit.entry.row))[:k]
    return best
