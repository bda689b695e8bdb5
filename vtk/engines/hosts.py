"""Which engines this machine can take, decided from the manifest alone: nothing is opened to find out."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vtk.bundle import Artifact
from vtk.engines.cuda_driver import gpu_target
from vtk.errors import BackendError
from vtk.exporters.to_tensorrt_api import KINDS, TITLES, installed_version

ANY_TARGET = "any"


@dataclass(frozen=True)
class Host:
    """system: `linux-x86_64`. gpu: `sm_90`, None without one. versions: of the installed engine libraries, by kind."""

    system: str
    gpu: str | None
    versions: Mapping[str, str]

    def describe(self, backend: str) -> str:
        """The side of this machine in a comparison with an engine of `backend`."""
        library = f"{TITLES[backend]} {self.versions.get(backend, 'not installed')}" if backend in KINDS else "vtk"
        return f"{self.gpu or 'without an NVIDIA GPU'}, {library}, {self.system}"


def this_host() -> Host:
    """Look at this machine; no library is imported for it."""
    found: dict[str, str] = {kind: version for kind in KINDS if (version := installed_version(kind)) is not None}
    return Host(f"{platform.system()}-{platform.machine()}".lower(), gpu_target(), found)


def fits(artifact: Artifact, host: Host) -> bool:
    """Whether the artifact was built for a machine like `host`: GPU, exact library version and system.

    Engines of TensorRT and TensorRT-RTX are tied to all three (NVIDIA: Engine Compatibility).
    """
    if artifact.target == ANY_TARGET:
        return True
    version = artifact.builder.get(artifact.backend)
    return (artifact.target, version, artifact.builder.get("system")) == (
        host.gpu,
        host.versions.get(artifact.backend),
        host.system,
    )


def check_artifact(artifact: Artifact, host: Host, *, targets: Sequence[str] = ()) -> None:
    """Raise BackendError, before anything is opened, for an artifact that was built for another machine (case V26).

    targets: all that the bundle has engines for, where it has several.
    """
    if not fits(artifact, host):
        title, builder = TITLES.get(artifact.backend, artifact.backend), artifact.builder
        gpus = ", ".join(targets) or artifact.target
        built = f"{gpus}, {title} {builder.get(artifact.backend, '?')}, {builder.get('system', '?')}"
        raise BackendError(
            f"{artifact.file} was built for {built}; this machine is {host.describe(artifact.backend)}.",
            hint=f"Build it again here: vtk build BUNDLE --target {host.gpu}"
            if host.gpu
            else "The graphs of the bundle run here: --backend auto.",
        )
