"""The step of an export that puts graphs into the precision that was asked for, and says what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from vtk.exporters.precision import BF16_OPSET, FP8_OPSET, PrecisionPlan
from vtk.exporters.precision_files import CastGraph, cast_graphs, plan_graphs
from vtk.exporters.precision_terms import Precision
from vtk.exporters.to_onnx import DEFAULT_OPSET, GraphFile

Item = TypeVar("Item")


class PrecisionListener(Protocol):
    """Told of the plan before and of the share after; part of an export's listener."""

    def stage(self, title: str) -> None:
        """A stage begins."""

    def detail(self, text: str) -> None:
        """A step inside the stage."""

    def planned(self, graph: GraphFile, plan: PrecisionPlan) -> None:
        """What will stay in float32 of one graph, before anything is cast."""

    def cast(self, graph: CastGraph) -> None:
        """What share of one graph is in half precision, as built."""

    def quantized(self, measured: str) -> None:
        """What 8 bits cost on the calibration pictures."""


@dataclass(frozen=True)
class PreciseGraphs:
    """Graphs as built. facts: what the manifest keeps of a graph, by file name. twins: files that only verify reads."""

    precision: str
    graphs: tuple[GraphFile, ...]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    twins: tuple[Path, ...] = ()


def default_opset(precision: Precision) -> int:
    """bfloat16 and float8 need operators of a newer opset."""
    return {"bf16": BF16_OPSET, "fp8": FP8_OPSET}.get(precision, DEFAULT_OPSET)


def put_precision(
    graphs: Sequence[GraphFile], precision: Precision, islands: Sequence[str], listener: PrecisionListener
) -> PreciseGraphs:
    """Cast the graphs in place, with the islands of the family; float32 graphs stay as they are.

    Raises the errors of `plan_graphs` and `cast_graphs`.
    """
    if precision == "fp32":
        return PreciseGraphs("fp32", tuple(graphs))
    listener.stage(f"cast to {precision}")
    plans = plan_graphs(graphs, precision, islands)
    for graph, plan in _one_per_part(graphs, plans):
        listener.planned(graph, plan)
    casts = cast_graphs(graphs, plans, listener.detail)
    for _, cast in _one_per_part(graphs, casts):
        listener.cast(cast)
    return PreciseGraphs(
        precision,
        tuple(cast.file for cast in casts),
        {cast.file.path.name: _facts(cast) for cast in casts},
        tuple(cast.rounded for cast in casts if cast.rounded is not None),
    )


def _one_per_part(graphs: Sequence[GraphFile], items: Sequence[Item]) -> list[tuple[GraphFile, Item]]:
    """Graphs of one part differ in their batch size only."""
    found: dict[str, tuple[GraphFile, Item]] = {}
    for graph, item in zip(graphs, items, strict=True):
        found.setdefault(graph.part, (graph, item))
    return list(found.values())


def _facts(cast: CastGraph) -> dict[str, str]:
    counts = Counter(cast.plan.kept.values())
    return {
        "half_parameters": f"{cast.share.parameters:.3f}",
        "half_nodes": f"{cast.share.nodes:.3f}",
        "fp32_nodes": ", ".join(f"{kind} {count}" for kind, count in counts.most_common()),
    }
