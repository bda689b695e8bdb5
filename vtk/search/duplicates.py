"""Groups of pictures that are nearly the same: linked by pairs whose cosine reaches a threshold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vtk.requirements import require
from vtk.search.table import EmbeddingTable, Entry, Vectors

_TILE = 2048
_NEIGHBORS = 32


@dataclass(frozen=True)
class Group:
    """Two or more pictures by rising row, and the lowest cosine among the pairs that link them."""

    entries: tuple[Entry, ...]
    score: float


def duplicates(table: EmbeddingTable, threshold: float, *, approximate: bool = False) -> list[Group]:
    """Groups by their first row. All vectors are held in memory: 4 bytes times rows times dim.

    Every pair is compared, rows squared times dim operations. approximate: only each row's 32 nearest neighbors in a
    usearch graph are, of which it may miss a few. Raises MissingDependencyError without usearch.
    """
    blocks = list(table.blocks())
    vectors = np.concatenate([block.vectors for block in blocks])
    entries = [entry for block in blocks for entry in block.entries]
    pairs = _graph_pairs(vectors, threshold) if approximate else _all_pairs(vectors, threshold)
    return [Group(tuple(entries[row] for row in rows), score) for rows, score in _groups(len(entries), pairs)]


def _all_pairs(vectors: Vectors, threshold: float) -> Iterator[tuple[int, int, float]]:
    """(first row, second row, cosine) of each pair, first < second."""
    for top in range(0, len(vectors), _TILE):
        for left in range(top, len(vectors), _TILE):
            scores = vectors[top : top + _TILE] @ vectors[left : left + _TILE].T
            for row, column in np.argwhere(scores >= threshold).tolist():
                if top + row < left + column:
                    yield top + row, left + column, float(scores[row, column])


def _graph_pairs(vectors: Vectors, threshold: float) -> Iterator[tuple[int, int, float]]:
    require("usearch", needed_for="--approximate", extra="search")
    from usearch.index import Index

    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
    index.add(np.arange(len(vectors)), vectors)
    for start in range(0, len(vectors), _TILE):
        found = index.search(vectors[start : start + _TILE], min(_NEIGHBORS, len(vectors)))
        keys = np.atleast_2d(found.keys).astype(np.int64)
        for offset, neighbors in enumerate(keys):
            row = start + offset
            others = neighbors[neighbors > row]
            scores = vectors[others] @ vectors[row]
            for other, score in zip(others.tolist(), scores.tolist(), strict=True):
                if score >= threshold:
                    yield row, other, score


def _groups(count: int, pairs: Iterable[tuple[int, int, float]]) -> list[tuple[list[int], float]]:
    """Connected rows, each set rising, and the lowest score of its links; by first row."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    lowest: dict[int, float] = {}
    for first, second, score in pairs:
        a, b = sorted((root(first), root(second)))
        parent[b] = a
        lowest[a] = min(score, lowest.pop(b, 1.0), lowest.get(a, 1.0))
    members: dict[int, list[int]] = defaultdict(list)
    for row in range(count):
        members[root(row)].append(row)
    return [(rows, lowest[first]) for first, rows in members.items() if len(rows) > 1]
