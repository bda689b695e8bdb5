"""What the server says about itself and its models, as plain dictionaries in the protocol's field names."""

from __future__ import annotations

from importlib.metadata import version as distribution_version
from typing import Any

from vtk.engines.base import TensorSpec
from vtk.server.context import ServerContext
from vtk.server.kserve.request import DEFAULT_PRIORITY, PRIORITY_LEVELS
from vtk.server.kserve.tensors import BYTES, DATATYPES, TensorMeta
from vtk.serving.segment_model import SegmentModel
from vtk.serving.vision_model import VisionModel

# Encoded pictures instead of the model's own tensor: decoded and prepared as the bundle's recipe says.
PICTURES = TensorMeta("image", BYTES, (-1,))
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)

_STATES = {"ready": "READY", "loading": "LOADING", "draining": "UNLOADING"}


def server_metadata() -> dict[str, Any]:
    """Name, version, extensions."""
    return {"name": "vtk", "version": distribution_version("vtk-deploy"), "extensions": list(EXTENSIONS)}


def inputs_of(model: VisionModel) -> tuple[TensorMeta, ...]:
    """The model's own tensor (N, 3, H, W), or N encoded pictures; a request has one of them.

    Nothing for a promptable model: the protocol has no prompts, so it is asked at /v1/vision/segment only.
    """
    if isinstance(model, SegmentModel):
        return ()
    return _meta(next(iter(model.predictor.engines.values())).inputs[0]), PICTURES


def outputs_of(model: VisionModel) -> tuple[TensorMeta, ...]:
    """The raw outputs of N rows; nothing for a promptable model."""
    if isinstance(model, SegmentModel):
        return ()
    return tuple(_meta(spec) for spec in next(iter(model.predictor.engines.values())).outputs)


def model_metadata(context: ServerContext, name: str, version: str) -> dict[str, Any]:
    """Versions, inputs and outputs of a vision model. Raises NotFoundError, UnavailableError."""
    with context.runtime.vision(name, version or None) as model:
        return {
            "name": model.name,
            "versions": [version] if version else _ready_versions(context, name),
            "platform": model.predictor.backend,
            "inputs": [_fields(meta) for meta in inputs_of(model)],
            "outputs": [_fields(meta) for meta in outputs_of(model)],
        }


def model_config(context: ServerContext, name: str, version: str) -> dict[str, Any]:
    """Triton's model configuration, as far as it applies. Raises NotFoundError, UnavailableError."""
    delay = context.runtime.settings.max_queue_delay
    with context.runtime.vision(name, version or None) as model:
        inputs = [_config(meta) for meta in inputs_of(model)]
        return {
            "name": model.name,
            "platform": model.predictor.backend,
            "backend": model.predictor.backend,
            "max_batch_size": context.settings.limits.max_pictures,
            "input": [*inputs[:1], *({**item, "optional": True} for item in inputs[1:])],
            "output": [_config(meta) for meta in outputs_of(model)],
            "dynamic_batching": {
                "preferred_batch_size": list(model.predictor.batch_sizes),
                "max_queue_delay_microseconds": round(delay * 1e6),
                "priority_levels": PRIORITY_LEVELS,
                "default_priority_level": DEFAULT_PRIORITY,
            },
        }


def is_model_ready(context: ServerContext, name: str, version: str) -> bool | None:
    """Whether a model of either kind would answer; None if there is none of that name and version."""
    found = [item for item in context.runtime.statuses() if item.name == name and version in ("", item.version)]
    return any(item.state == "ready" for item in found) if found else None


def repository_index(context: ServerContext, *, ready: bool) -> list[dict[str, str]]:
    """Every version of every model, of both kinds, or the ready ones only."""
    found = [item for item in context.runtime.statuses() if item.state == "ready" or not ready]
    return [
        {
            "name": item.name,
            "version": item.version,
            "state": _STATES.get(item.state, "UNAVAILABLE"),
            "reason": item.reason,
        }
        for item in found
    ]


def _ready_versions(context: ServerContext, name: str) -> list[str]:
    return [item.version for item in context.runtime.statuses() if item.name == name and item.state == "ready"]


def _meta(spec: TensorSpec) -> TensorMeta:
    return TensorMeta(spec.name, DATATYPES[spec.dtype], (-1, *spec.shape[1:]))


def _fields(meta: TensorMeta) -> dict[str, Any]:
    return {"name": meta.name, "datatype": meta.datatype, "shape": list(meta.shape)}


def _config(meta: TensorMeta) -> dict[str, Any]:
    kind = "STRING" if meta.datatype == BYTES else meta.datatype
    return {"name": meta.name, "data_type": f"TYPE_{kind}", "dims": list(meta.shape[1:])}
