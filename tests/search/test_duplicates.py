"""Groups are the connected parts of the pairs that a float64 product finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from vtk.search import duplicates as duplicates_module
from vtk.search.duplicates import duplicates
from vtk.search.table import open_table

MakeTable = Callable[..., Path]


def some_vectors(count: int, around: int) -> Any:
    """Vectors in tight bunches around a few centers, in random order."""
    rng = np.random.default_rng()
    centers = rng.normal(size=(around, 16))
    return (centers[rng.integers(around, size=count)] + rng.normal(size=(count, 16)) * 0.05).astype(np.float32)


def by_definition(vectors: Any, threshold: float) -> list[list[int]]:
    wide = vectors.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    _, labels = connected_components(wide @ wide.T >= threshold, directed=False)
    groups = [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]
    return [group for group in groups if len(group) > 1]


@pytest.mark.parametrize("count", [2, 3, 17, 40])
def test_groups_are_the_connected_parts(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(duplicates_module, "_TILE", 5)
    vectors = some_vectors(count, around=6)
    found = duplicates(open_table(make_table(vectors)), 0.95)
    assert [[entry.row for entry in group.entries] for group in found] == by_definition(vectors, 0.95)
    assert all(0.95 <= group.score <= 1.0001 for group in found)


def test_pictures_are_linked_through_one_between_them(make_table: MakeTable) -> None:
    angles = np.deg2rad([0, 15, 30, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    (group,) = duplicates(open_table(make_table(vectors)), np.cos(np.deg2rad(16)))
    assert [entry.row for entry in group.entries] == [0, 1, 2]
    assert group.score == pytest.approx(np.cos(np.deg2rad(15)), abs=1e-6)


def test_nothing_alike_gives_no_group(make_table: MakeTable) -> None:
    assert duplicates(open_table(make_table(np.eye(6, dtype=np.float32))), 0.5) == []


def test_the_graph_finds_what_all_pairs_find_but_for_a_few(make_table: MakeTable) -> None:
    pytest.importorskip("usearch")
    table = open_table(make_table(some_vectors(60, around=20)))
    exact = [set(group.entries) for group in duplicates(table, 0.95)]
    graph = [set(group.entries) for group in duplicates(table, 0.95, approximate=True)]
    assert all(any(found <= whole for whole in exact) for found in graph)
    # Threads build the graph together, and rarely a vector is out of its reach.
    assert sum(map(len, graph)) >= 0.9 * sum(map(len, exact))
