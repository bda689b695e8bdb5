"""Written graphs and their weights in another precision, one tensor in memory at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from vtk.errors import ExportError
from vtk.exporters.onnx_weights import WEIGHTS_NAME, WeightsFile
from vtk.exporters.precision import MIN_HALF, HalfShare, PrecisionPlan, measure, plan_precision
from vtk.exporters.precision_cast import cast_model
from vtk.exporters.precision_round import round_model
from vtk.exporters.precision_terms import ROUNDED_SUFFIX, Precision
from vtk.exporters.to_onnx import GraphFile, Progress, write_graph

_WORKPLACE = ".rewritten"

# The part of a model that refines boxes layer by layer; mixed leaves it as it is.
DECODER = "decoder"

Result = TypeVar("Result")


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
    return tuple(
        plan_precision(ir.load(graph.path), precision, kinds, is_decoder=graph.part == DECODER) for graph in graphs
    )


def cast_graphs(
    graphs: Sequence[GraphFile], plans: Sequence[PrecisionPlan], progress: Progress
) -> tuple[CastGraph, ...]:
    """Put the half-precision form of each graph, and of the weights that graphs share, in the place of the float32 one.

    The smallest batch of each weights file gets a rounded twin, in bfloat16 all of them do. Raises ExportError where
    less than half of the parameters would be half although fp16 or bf16 was asked for, and the errors of `write_graph`;
    the folder then holds what it held before.
    """
    planned = {graph.path: plan for graph, plan in zip(graphs, plans, strict=True)}
    smallest = {part: min(graph.batch for graph in graphs if graph.part == part) for part in {g.part for g in graphs}}

    def cast(graph: GraphFile, weights: WeightsFile) -> CastGraph:
        plan = planned[graph.path]
        twin = plan.precision == "bf16" or graph.batch == smallest[graph.part]
        return _cast_one(graph, plan, weights, progress, twin=twin)

    folder = graphs[0].path.parent
    return tuple(_moved(done, folder) for done in rewrite_graphs(graphs, cast))


def rewrite_graphs(graphs: Sequence[GraphFile], rewrite: Callable[[GraphFile, WeightsFile], Result]) -> list[Result]:
    """Replace written graphs by what `rewrite` writes beside the weights file that it is given; one per shared file.

    Nothing is replaced before all are written. What `rewrite` returns still names the place that it wrote to.
    """
    folder = graphs[0].path.parent
    workplace = folder / _WORKPLACE
    workplace.mkdir()
    try:
        done: dict[Path, Result] = {}
        for source in dict.fromkeys(graph.weights for graph in graphs):
            with WeightsFile(workplace / (WEIGHTS_NAME if source is None else source.name)) as weights:
                done |= {graph.path: rewrite(graph, weights) for graph in graphs if graph.weights == source}
        for path in list(workplace.iterdir()):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(workplace)
    return [done[graph.path] for graph in graphs]


def write_like(model: ir.Model, path: Path, graph: GraphFile, weights: WeightsFile) -> GraphFile:
    """Write a model that was made from `graph`, its large tensors already moved to `weights`."""
    return write_graph(
        ir.to_proto(model), path, batch=graph.batch, opset=graph.opset, weights=weights.path, part=graph.part
    )


def moved(file: GraphFile, folder: Path) -> GraphFile:
    """The same graph after its files were moved to `folder`."""
    weights = None if file.weights is None else folder / file.weights.name
    return replace(file, path=folder / file.path.name, weights=weights)


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
    file = write_like(model, path, graph, weights)
    rounded = path.with_suffix(ROUNDED_SUFFIX) if twin else None
    if rounded is not None:
        round_model(model)
        write_like(model, rounded, graph, weights)
    return CastGraph(file, plan, share, rounded)


def _check_share(graph: GraphFile, plan: PrecisionPlan, share: HalfShare) -> None:
    wanted = MIN_HALF if plan.precision != "mixed" else 0.0
    may_be_none = plan.precision == "mixed" and graph.part == DECODER
    if share.parameters < wanted or (share.nodes == 0 and not may_be_none):
        kept = ", ".join(f"{kind} {count}" for kind, count, _ in plan.groups())
        raise ExportError(
            f"{graph.path.name} would hold only {share} in half precision: it cannot be called {plan.precision} "
            f"(nodes that stay float32: {kept}).",
            hint="Use --precision fp32; bfloat16 convolutions need --opset 22 or newer.",
        )


def _moved(cast: CastGraph, folder: Path) -> CastGraph:
    rounded = None if cast.rounded is None else folder / cast.rounded.name
    return replace(cast, file=moved(cast.file, folder), rounded=rounded)
