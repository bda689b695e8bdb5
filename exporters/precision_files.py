"""Written graphs and their weights in another precision, one tensor in memory at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from vtk.errors import ExportError
from vtk.exporters.onnx_weights import WEIGHTS_NAME, WeightsFile
from vtk.exporters.precision import MIN_HALF, HalfShare, PrecisionPlan, measure, plan_precision
from vtk.exporters.precision_cast import cast_model
from vtk.exporters.precision_round import round_model
from vtk.exporters.precision_terms import ROUNDED_SUFFIX, Precision
from vtk.exporters.to_onnx import GraphFile, Progress, write_graph

_WORKPLACE = ".half"


@dataclass(frozen=True)
class CastGraph:
    """A graph as built. rounded: its float32 twin (see `precision_round`), None where the graph runs everywhere."""

    file: GraphFile
    plan: PrecisionPlan
    share: HalfShare
    rounded: Path | None


def plan_graphs(graphs: Sequence[GraphFile], precision: Precision, islands: Iterable[str]) -> tuple[PrecisionPlan, ...]:
    """What will stay in float32 of each written graph; the weights are read, for their range."""
    kinds = tuple(islands)
    return tuple(plan_precision(ir.load(graph.path), precision, kinds) for graph in graphs)


def cast_graphs(
    graphs: Sequence[GraphFile], plans: Sequence[PrecisionPlan], progress: Progress
) -> tuple[CastGraph, ...]:
    """Put the half-precision form of each graph, and of the weights that graphs share, in the place of the float32 one.

    The smallest batch of each weights file gets a rounded twin, in bfloat16 all of them do. Raises ExportError where
    less than half of the parameters would be half although fp16 or bf16 was asked for, and the errors of `write_graph`;
    the folder then holds what it held before.
    """
    folder = graphs[0].path.parent
    workplace = folder / _WORKPLACE
    workplace.mkdir()
    try:
        done: dict[Path, CastGraph] = {}
        for source in dict.fromkeys(graph.weights for graph in graphs):
            group = [pair for pair in zip(graphs, plans, strict=True) if pair[0].weights == source]
            name = WEIGHTS_NAME if source is None else source.name
            done |= {graph.path: cast for graph, cast in _cast_group(group, workplace / name, progress)}
        for path in list(workplace.iterdir()):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(workplace)
    return tuple(_moved(done[graph.path], folder) for graph in graphs)


def _cast_group(
    group: Sequence[tuple[GraphFile, PrecisionPlan]], weights_path: Path, progress: Progress
) -> list[tuple[GraphFile, CastGraph]]:
    """The graphs of one weights file."""
    smallest = min(graph.batch for graph, _ in group)
    with WeightsFile(weights_path) as weights:
        return [
            (graph, _cast_one(graph, plan, weights, progress, twin=graph.batch == smallest or plan.precision == "bf16"))
            for graph, plan in group
        ]


def _cast_one(
    graph: GraphFile, plan: PrecisionPlan, weights: WeightsFile, progress: Progress, *, twin: bool
) -> CastGraph:
    progress(f"casting {graph.path.name} to {plan.precision}")
    model = ir.load(graph.path)
    cast_model(model, plan)
    share = measure(model)
    _check_share(graph, plan, share)
    weights.move_out(model)
    path = weights.path.with_name(graph.path.name)
    file = _write(model, path, graph, weights)
    rounded = path.with_suffix(ROUNDED_SUFFIX) if twin else None
    if rounded is not None:
        round_model(model)
        _write(model, rounded, graph, weights)
    return CastGraph(file, plan, share, rounded)


def _write(model: ir.Model, path: Path, graph: GraphFile, weights: WeightsFile) -> GraphFile:
    proto = ir.to_proto(model)
    return write_graph(proto, path, batch=graph.batch, opset=graph.opset, weights=weights.path, part=graph.part)


def _check_share(graph: GraphFile, plan: PrecisionPlan, share: HalfShare) -> None:
    wanted = MIN_HALF if plan.precision != "mixed" else 0.0
    if share.parameters < wanted or share.nodes == 0:
        kept = ", ".join(f"{kind} {count}" for kind, count, _ in plan.groups())
        raise ExportError(
            f"{graph.path.name} would hold only {share} in half precision: it cannot be called {plan.precision} "
            f"(nodes that stay float32: {kept}).",
            hint="Use --precision mixed or fp32; for bf16, an opset of 22 or more has convolutions.",
        )


def _moved(cast: CastGraph, folder: Path) -> CastGraph:
    file = cast.file
    weights = None if file.weights is None else folder / file.weights.name
    rounded = None if cast.rounded is None else folder / cast.rounded.name
    return replace(cast, file=replace(file, path=folder / file.path.name, weights=weights), rounded=rounded)
