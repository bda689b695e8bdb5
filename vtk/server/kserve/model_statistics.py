"""What a model has done so far, in the fields of Triton's statistics extension that vtk counts."""

from __future__ import annotations

from typing import Any

from vtk.server.context import ServerContext
from vtk.serving.vision_model import VisionModel, VisionStats

# Triton's names of the stages; each is a sum over all rows.
_STAGES = {
    "queue": ("queue",),
    "compute_input": ("decode", "preprocess"),
    "compute_infer": ("infer",),
    "compute_output": ("postprocess",),
}


def model_statistics(context: ServerContext, name: str, version: str) -> dict[str, Any]:
    """Of one vision model, or of every version of each that is ready if `name` is empty.

    Raises NotFoundError, UnavailableError.
    """
    wanted = [(name, version)] if name else [
        (item.name, item.version)
        for item in context.runtime.statuses()
        if item.kind == "vision" and item.state == "ready"
    ]  # fmt: skip
    found = []
    for item, number in wanted:
        with context.runtime.vision(item, number or None) as model:
            found.append(_statistics(model))
    return {"model_stats": found}


def _statistics(model: VisionModel) -> dict[str, Any]:
    stats = model.stats
    return {
        "name": model.name,
        "version": model.version,
        "inference_count": stats.pictures,
        "execution_count": sum(stats.batches.values()),
        "inference_stats": {
            name: {"count": stats.pictures, "ns": _nanoseconds(stats, stages)} for name, stages in _STAGES.items()
        },
    }


def _nanoseconds(stats: VisionStats, stages: tuple[str, ...]) -> int:
    return round(sum(stats.seconds[stage] for stage in stages) * 1e9)
