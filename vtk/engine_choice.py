"""Which library builds engines here, and for which GPUs; or what is missing for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vtk.engine_cache import default_root
from vtk.engines.cuda_driver import gpu_target
from vtk.errors import MissingDependencyError, UsageError, VtkError
from vtk.exporters.graph_forms import DeformForm
from vtk.exporters.to_tensorrt_api import (
    KINDS,
    NEWEST_RELEASE,
    RTX_DEFAULT_TARGETS,
    RTX_TARGETS,
    Kind,
    check_target,
    installed_version,
)
from vtk.exporters.to_tensorrt_known_bad import known_bad

DATA_CENTER = "the GPUs that TensorRT-RTX compiles for are " + ", ".join(RTX_TARGETS)


@dataclass(frozen=True)
class EngineRequest:
    """What `--trt` asks for. targets: GPUs (`sm_89`), empty for this machine's. build: False writes the recipe alone.

    cache: where built engines are kept for the next time; None keeps nothing.
    """

    targets: tuple[str, ...] = ()
    build: bool = True
    cache: Path | None = field(default_factory=default_root)


@dataclass(frozen=True)
class Choice:
    """kind and version of the library, empty where none can be used. missing: why nothing is built, None if it is."""

    kind: Kind
    version: str
    targets: tuple[str, ...]
    missing: VtkError | None = None


def parse_targets(text: str | None) -> tuple[str, ...]:
    """`sm_89,sm_120` as a tuple, each once. Raises UsageError."""
    return () if text is None else tuple(dict.fromkeys(check_target(item) for item in text.split(",")))


def check_request(request: EngineRequest) -> None:
    """Raise, before any work, the UsageError that `choose` would raise after it."""
    choose_here(request)


def deform_form(request: EngineRequest | None, family: str) -> DeformForm:
    """How the graphs must sample for the engines that are asked for.

    A library that is not here will be a new one: what is known of the newest counts then.
    """
    if request is None:
        return "grid_sample"
    choice = choose_here(request)
    rows = known_bad(choice.kind, choice.version or NEWEST_RELEASE, family)
    return "gather" if any(row.remedy == "deform=gather" for row in rows) else "grid_sample"


def choose_here(request: EngineRequest) -> Choice:
    """`choose` for this machine."""
    installed: dict[str, str] = {kind: version for kind in KINDS if (version := installed_version(kind)) is not None}
    return choose(request.targets, installed, gpu_target(), build=request.build)


def choose(targets: tuple[str, ...], installed: Mapping[str, str], gpu: str | None, *, build: bool) -> Choice:
    """Classic TensorRT where it runs on the GPU that is asked for, else TensorRT-RTX, which needs no GPU.

    targets: empty means the GPU of this machine, and without one the default targets of TensorRT-RTX. build: False
    asks for the recipe alone. Raises UsageError for targets that nothing here can ever build for.
    """
    wanted = targets or ((gpu,) if gpu else RTX_DEFAULT_TARGETS)
    if "tensorrt" in installed and wanted == (gpu,):
        return Choice("tensorrt", installed["tensorrt"], wanted)
    foreign = [target for target in wanted if target not in RTX_TARGETS]
    if foreign:
        kind: Kind = "tensorrt"
        problem: VtkError = _classic_only(foreign, gpu)
        if build and wanted != (gpu,):
            raise problem
        if wanted == (gpu,):
            problem = MissingDependencyError("tensorrt", needed_for=f"Building for {gpu}", extra="gpu")
        return Choice(kind, "", wanted, problem)
    if "tensorrt_rtx" in installed:
        return Choice("tensorrt_rtx", installed["tensorrt_rtx"], wanted)
    missing = MissingDependencyError("tensorrt-rtx", needed_for=f"Building for {', '.join(wanted)}", extra="rtx")
    return Choice("tensorrt_rtx", "", wanted, missing)


def _classic_only(foreign: list[str], gpu: str | None) -> UsageError:
    here = f"this machine has {gpu}" if gpu else "this machine has none"
    return UsageError(
        f"Engines for {', '.join(foreign)} need classic TensorRT, which builds only on such a GPU; {here}, and "
        f"{DATA_CENTER}.",
        hint="Pass --no-build to get the bundle with its build recipe, and run 'vtk build BUNDLE' on that GPU.",
    )
