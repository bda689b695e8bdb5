"""How to build the engines of a bundle where the library and the GPU are, by vtk or by NVIDIA's own tool."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from vtk.bundle import Artifact, Bundle, file_sha256, write_json_atomic
from vtk.engine_choice import Choice, EngineRequest, parse_targets
from vtk.engines.cuda_driver import gpu_target
from vtk.exporters.to_tensorrt import FLAGS
from vtk.exporters.to_tensorrt_api import TITLES

ENGINES_DIR = "engines"
RECIPE_NAME = f"{ENGINES_DIR}/recipe.json"
_SHOWN_DIGITS = 8


def graphs_of(bundle: Bundle) -> list[Artifact]:
    """What engines are built from."""
    return [artifact for artifact in bundle.manifest.artifacts if artifact.backend == "onnx"]


def engine_file(graph: Artifact, choice: Choice, sha256: str) -> str:
    """Where an engine lies in the bundle. TensorRT-RTX puts several GPUs into one file.

    The name follows from the content, so that a new engine never takes the place of one that a manifest names.
    """
    return f"{_stem(graph, choice)}.{sha256[:_SHOWN_DIGITS]}.plan"


def write_recipe(bundle: Bundle, choice: Choice) -> dict[str, str]:
    """Write `engines/recipe.json` into a bundle that has none; returns the files of the manifest that it becomes."""
    if RECIPE_NAME in bundle.manifest.files:
        return {}
    path = bundle.path(RECIPE_NAME)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, recipe(bundle, choice))
    return {RECIPE_NAME: file_sha256(path)}


def asked_or_recorded(request: EngineRequest, bundle: Bundle) -> EngineRequest:
    """The request, for the GPUs of the bundle's recipe if it names none and this machine has none.

    Raises UsageError for a target in the recipe that is none.
    """
    if request.targets or gpu_target() is not None or RECIPE_NAME not in bundle.manifest.files:
        return request
    recorded = json.loads(bundle.path(RECIPE_NAME).read_bytes())["targets"]
    return replace(request, targets=parse_targets(",".join(recorded)))


def recipe(bundle: Bundle, choice: Choice) -> dict[str, Any]:
    """JSON data: library, targets, flags, vtk's command, and for each graph its precision and NVIDIA's command."""
    return {
        "library": TITLES[choice.kind],
        "version": choice.version or None,
        "targets": list(choice.targets),
        "builder_flags": dict(FLAGS),
        "command": f"vtk build BUNDLE --target {','.join(choice.targets)}",
        "engines": [
            {
                "part": graph.part,
                "batch": graph.batch,
                "precision": graph.precision,
                "graph": graph.file,
                "graph_sha256": graph.sha256,
                "trtexec": _trtexec(graph, choice) if choice.kind == "tensorrt" else None,
            }
            for graph in graphs_of(bundle)
        ],
    }


def _stem(graph: Artifact, choice: Choice) -> str:
    return f"{ENGINES_DIR}/{graph.part}.b{graph.batch}.{choice.kind}.{'+'.join(choice.targets)}"


def _trtexec(graph: Artifact, choice: Choice) -> str:
    """The tool of classic TensorRT; it takes the precision from the graph, as vtk does."""
    return f"trtexec --onnx={graph.file} --saveEngine={_stem(graph, choice)}.plan --stronglyTyped --noTF32"
