"""Engines into a bundle: built, verified where this machine can run them, and entered in the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from vtk.bundle import Bundle, Manifest
from vtk.engine_builds import EngineBuild, build_engines
from vtk.engine_choice import EngineRequest
from vtk.engine_recipe import ENGINES_DIR
from vtk.engines.hosts import fits, this_host
from vtk.errors import VerifyError
from vtk.exporters.to_tensorrt_api import KINDS
from vtk.golden import read_golden
from vtk.predictor import open_predictor
from vtk.verification import make_report, verify_in_parts
from vtk.verify_report import Report
from vtk.verify_stages import verify_golden


class EngineListener(Protocol):
    """Told how it goes."""

    def stage(self, title: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def engines(self, built: EngineBuild) -> None: ...

    def verified(self, report: Report) -> None: ...


def add_engines(bundle: Bundle, request: EngineRequest, listener: EngineListener) -> tuple[Manifest, EngineBuild]:
    """The manifest with the engines in it, which the caller writes, and what was built.

    Engines that this machine can run must reproduce the golden data. Raises the errors of `build_engines`, and
    VerifyError.
    """
    listener.stage("build TensorRT engines" if request.build else "write the recipe of the TensorRT engines")
    built = build_engines(bundle, request, listener.detail)
    listener.engines(built)
    manifest = with_engines(bundle.manifest, built)
    try:
        _verify(Bundle(bundle.root, manifest), built, listener)
    except BaseException:
        remove_unnamed(bundle)
        raise
    return manifest, built


def remove_unnamed(bundle: Bundle) -> None:
    """Delete the engines that the manifest does not name: refused ones, and those that newer ones have replaced."""
    named = {bundle.path(item.file) for item in bundle.manifest.artifacts}
    for path in bundle.path(ENGINES_DIR).glob("*.plan"):
        if path not in named:
            path.unlink()


def with_engines(manifest: Manifest, built: EngineBuild) -> Manifest:
    """New engines take the place of those for the same part, batch size, library and GPU."""
    key = {(item.part, item.batch, item.backend, item.target) for item in built.artifacts}
    kept = [item for item in manifest.artifacts if (item.part, item.batch, item.backend, item.target) not in key]
    return replace(manifest, artifacts=(*kept, *built.artifacts), files={**manifest.files, **built.files})


def _verify(bundle: Bundle, built: EngineBuild, listener: EngineListener) -> None:
    host = this_host()
    for kind in KINDS:
        if any(item.backend == kind and fits(item, host) for item in built.artifacts):
            listener.stage(f"verify the {kind} engines")
            report = _report(bundle, kind, listener)
            listener.verified(report)
            if report.first_failure is not None:
                raise VerifyError(
                    f"The engines do not reproduce {bundle.manifest.source['name']}. First stage that differs: "
                    f"{report.first_failure}.",
                    hint="Another release of the library may build it right; --deform gather and --attn explicit help.",
                )


def _report(bundle: Bundle, backend: str, listener: EngineListener) -> Report:
    if bundle.manifest.task == "segment":
        return verify_in_parts(bundle, (), listener.detail, backend=backend)
    golden = read_golden(bundle.root)
    with open_predictor(bundle, backend=backend) as predictor:
        return make_report(list(verify_golden(bundle, predictor, golden, listener.detail)), predictor, golden)
