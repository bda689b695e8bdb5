"""A bundle as a served model: files are compared with the manifest, golden data is reproduced, then it serves."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from vtk.bundle import Bundle, read_bundle
from vtk.errors import VerifyError
from vtk.golden import read_golden
from vtk.predictor import Predictor, open_predictor
from vtk.serving.arbiter import Arbiter
from vtk.serving.memory import Footprint, MemoryBudget, resident_memory
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import ModelStatus, OpenedModel
from vtk.serving.settings import RuntimeSettings
from vtk.serving.traffic import TrafficProfile
from vtk.serving.vision_model import VisionModel
from vtk.serving.warm_vision import polite, warm_up_vision
from vtk.verify_stages import verify_golden


def open_vision(
    found: FoundModel, settings: RuntimeSettings, arbiter: Arbiter, budget: MemoryBudget, traffic: TrafficProfile
) -> OpenedModel:
    """See `ModelOpener`. The SHA-256 of every file is compared before one of them is given to an engine."""
    bundle = read_bundle(found.path)
    digest = str(bundle.manifest.source["tensor_digest"])
    before = resident_memory()
    with ExitStack() as undo:
        reservation = budget.reserve(f"{found.name} {found.version}", Footprint(weights=weight_bytes(bundle)))
        undo.callback(reservation.release)
        predictor = open_predictor(bundle, backend=settings.backend, device=settings.device, threads=settings.threads)
        undo.callback(predictor.close)
        careful = polite(predictor, arbiter)
        if settings.verify_on_load:
            prove(bundle, careful)
        warm_up_vision(careful, traffic.sizes(digest))
        model = VisionModel(
            predictor,
            arbiter,
            name=found.name,
            version=found.version,
            max_queue_delay=settings.max_queue_delay,
            max_queued=settings.max_queued_pictures,
            on_picture=partial(traffic.record_picture, digest),
        )
        undo.callback(model.close)
        reservation.measure(resident_memory() - before)
        return OpenedModel(model, _facts(found, predictor, reservation.footprint.total), undo.pop_all().close)


def prove(bundle: Bundle, predictor: Predictor) -> None:
    """Reproduce the golden data. Raises VerifyError naming the first stage that differs."""
    for check in verify_golden(bundle, predictor, read_golden(bundle.root), lambda text: None):
        if not check.passed:
            raise VerifyError(
                f"{bundle.root} does not reproduce its golden data: {check}.", hint=f"See: vtk verify {bundle.root}"
            )


def weight_bytes(bundle: Bundle) -> int:
    """What the engines load: every graph, and for each of them the weights file that they share on disk."""
    graphs = [bundle.path(artifact.file) for artifact in bundle.manifest.artifacts]
    shared = [bundle.path(file) for file in bundle.manifest.files if Path(file).parent == Path()]
    return sum(path.stat().st_size for path in graphs) + len(graphs) * sum(path.stat().st_size for path in shared)


def _facts(found: FoundModel, predictor: Predictor, num_bytes: int) -> ModelStatus:
    manifest = predictor.bundle.manifest
    precisions = sorted({artifact.precision for artifact in manifest.artifacts if artifact.backend == "onnx"})
    return ModelStatus(
        found.name,
        found.version,
        found.kind,
        task=manifest.task,
        state="ready",
        bytes=num_bytes,
        backend=predictor.backend,
        device=predictor.device,
        precision="+".join(precisions),
        source_sha256=str(manifest.source.get("sha256", "")),
        tensor_digest=str(manifest.source["tensor_digest"]),
        created=time.time(),
    )
