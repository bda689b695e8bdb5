"""Engines for the graphs of a bundle: built here where that is possible, else described exactly enough to be built."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vtk.bundle import Artifact, Bundle, file_sha256
from vtk.engine_cache import EngineCache, digest
from vtk.engine_choice import Choice, EngineRequest, choose_here
from vtk.engine_recipe import ENGINES_DIR, engine_file, graphs_of, write_recipe
from vtk.engines.hosts import this_host
from vtk.errors import VtkError
from vtk.exporters.graph_forms import AttentionForm, DeformForm, GraphForms
from vtk.exporters.to_tensorrt import FLAGS, BuiltEngine, build_engine
from vtk.exporters.to_tensorrt_api import TensorRT, load
from vtk.exporters.to_tensorrt_known_bad import check_known_bad

Progress = Callable[[str], None]
_WHOLE = ("fp32", "int8", "fp8")  # half precision is no part of what they promise


@dataclass(frozen=True)
class EngineBuild:
    """artifacts: one per engine and GPU. files: SHA-256 of what else was written. lines: a sentence per engine.

    missing: why nothing was built although it was asked for.
    """

    artifacts: tuple[Artifact, ...]
    files: Mapping[str, str]
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    missing: VtkError | None


def build_engines(bundle: Bundle, request: EngineRequest, progress: Progress) -> EngineBuild:
    """Build an engine for every ONNX graph of the bundle, into its folder, and write a recipe if there is none yet.

    Nothing that the manifest names is written over; the manifest itself is the caller's to write. Raises BackendError
    for a release that is known to be wrong for this family and for a library that does not start, UsageError for
    targets that cannot be built for, ExportError for a graph that the library does not take.
    """
    choice = choose_here(request)
    warnings: list[str] = []
    if choice.version:
        names = (bundle.manifest.family, bundle.manifest.variant)
        warnings = check_known_bad(choice.kind, choice.version, names, forms_of(bundle).names)
    files = write_recipe(bundle, choice)
    if not request.build or choice.missing is not None:
        missing = choice.missing if request.build else None
        return EngineBuild((), files, (), tuple(warnings), missing)
    api = load(choice.kind)
    cache = None if request.cache is None else EngineCache(request.cache)
    artifacts: list[Artifact] = []
    lines: list[str] = []
    for graph in graphs_of(bundle):
        progress(f"{api.title}: {graph.file} for {', '.join(choice.targets)}")
        made, line = _build_one(bundle, api, graph, choice, cache)
        artifacts += made
        lines.append(line)
    return EngineBuild(tuple(artifacts), files, tuple(lines), tuple(warnings), None)


def forms_of(bundle: Bundle) -> GraphForms:
    """How the graphs of a bundle are written, from what their artifacts say of themselves."""
    builder = graphs_of(bundle)[0].builder
    attn: AttentionForm = "fused" if builder.get("attn") == "fused" else "explicit"
    deform: DeformForm = "gather" if builder.get("deform") == "gather" else "grid_sample"
    return GraphForms(attn, deform)


def _build_one(
    bundle: Bundle, api: TensorRT, graph: Artifact, choice: Choice, cache: EngineCache | None
) -> tuple[list[Artifact], str]:
    path = bundle.path(f"{ENGINES_DIR}/.{os.getpid()}.tmp")
    system = this_host().system
    key = digest(
        {
            "graph": graph.sha256,
            "weights": _weights(bundle),
            "builder": [api.kind, choice.version, system],
            "targets": choice.targets,
            "precision": graph.precision,
            "flags": dict(FLAGS),
        }
    )
    facts = None if cache is None else cache.take(key, path)
    origin = "from the cache"
    if facts is None:
        built = _build(bundle, api, graph, choice, cache, path)
        origin = f"built in {built.seconds:.1f} s"
        facts = {"half_share": f"{built.layers.half_share:.3f}", "layers": str(built.num_layers)}
        if cache is not None:
            cache.put(key, path, facts)
    builder = {
        api.kind: choice.version,  # as `this_host` tells it
        "system": system,
        "graph": graph.sha256,
        **{name: str(facts[name]) for name in ("half_share", "layers")},
        **FLAGS,
    }
    sha256 = file_sha256(path)
    file = engine_file(graph, choice, sha256)
    path = path.replace(bundle.path(file))
    artifacts = [
        Artifact(api.kind, graph.precision, graph.batch, file, sha256, builder, target, graph.part)
        for target in choice.targets
    ]
    what = graph.precision if graph.precision in _WHOLE else f"{graph.precision}, {float(facts['half_share']):.0%} half"
    line = f"{file}: {what}, {path.stat().st_size / 1e6:.1f} MB, {origin}"
    return artifacts, line


def _build(
    bundle: Bundle, api: TensorRT, graph: Artifact, choice: Choice, cache: EngineCache | None, path: Path
) -> BuiltEngine:
    timing_key = digest({"builder": [api.kind, choice.version], "targets": choice.targets})
    built = build_engine(
        api,
        bundle.path(graph.file),
        path,
        targets=choice.targets,
        precision=graph.precision,
        timing_cache=b"" if cache is None else cache.timings(timing_key),
    )
    if cache is not None and built.timing_cache:
        cache.put_timings(timing_key, built.timing_cache)
    return built


def _weights(bundle: Bundle) -> dict[str, str]:
    """SHA-256 of the files beside the graphs that hold their tensors."""
    return {name: digest for name, digest in sorted(bundle.manifest.files.items()) if "/" not in name}
