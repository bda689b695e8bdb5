"""Which files of a bundle are opened, and by what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vtk.bundle import Artifact, Bundle
from vtk.engines.hosts import Host, check_artifact, fits, this_host
from vtk.errors import UsageError
from vtk.exporters.to_tensorrt_api import KINDS, TITLES

Selection = list[tuple[str, Artifact]]


def select_artifacts(
    bundle: Bundle,
    *,
    backend: str = "auto",
    device: str = "auto",
    batches: Sequence[int] | None = None,
    part: str = "model",
    host: Host | None = None,
) -> Selection:
    """The backend and artifact of each batch size of one part, ascending; `batches` None means all that there are.

    `auto` takes engines that were built for exactly this machine where there is one for every batch size, else the
    ONNX graphs. A named engine backend takes its engines, and only those. Raises UsageError where the bundle lacks
    what was asked for, BackendError, before anything is opened, where its engines are for other machines.
    """
    artifacts = [artifact for artifact in bundle.manifest.artifacts if artifact.part == part]
    graphs = {artifact.batch: artifact for artifact in artifacts if artifact.backend == "onnx"}
    machine = host or this_host()
    if backend in KINDS:
        return _engines(artifacts, backend, batches, machine)
    wanted = _wanted(graphs.keys(), batches)
    if backend == "auto" and device != "cpu":
        for kind in KINDS:
            usable = {item.batch: item for item in artifacts if item.backend == kind and fits(item, machine)}
            if wanted and all(batch in usable for batch in wanted):
                return [(kind, usable[batch]) for batch in wanted]
    for batch in wanted:
        check_artifact(graphs[batch], machine)
    return [(backend, graphs[batch]) for batch in wanted]


def _engines(artifacts: Sequence[Artifact], backend: str, batches: Sequence[int] | None, host: Host) -> Selection:
    engines = [item for item in artifacts if item.backend == backend]
    if not engines:
        raise UsageError(
            f"The bundle holds no {TITLES[backend]} engine.",
            hint=f"Build one on this machine: vtk build BUNDLE{f' --target {host.gpu}' if host.gpu else ''}",
        )
    usable = {item.batch: item for item in engines if fits(item, host)}
    if not usable:
        check_artifact(engines[0], host, targets=sorted({item.target for item in engines}))
    return [(backend, usable[batch]) for batch in _wanted(usable.keys(), batches)]


def _wanted(held: Iterable[int], batches: Sequence[int] | None) -> list[int]:
    sizes = sorted(held)
    wanted = sizes if batches is None else sorted(set(batches))
    if missing := [batch for batch in wanted if batch not in sizes]:
        raise UsageError(
            f"The bundle has no graph for batch {', '.join(map(str, missing))}.",
            hint=f"It holds {', '.join(map(str, sizes))}; export again with --batch to change that.",
        )
    return wanted
