"""A bundle as a served model: files are compared with the manifest, golden data is reproduced, then it serves."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from vtk.bundle import Bundle, read_bundle
from vtk.errors import VerifyError
from vtk.golden import read_golden
from vtk.parts_golden import read_parts_golden
from vtk.parts_verify import verify_parts
from vtk.predictor import Predictor, open_predictor
from vtk.segmenting.predictor import SegmentPredictor, open_segment_predictor
from vtk.serving.arbiter import Arbiter
from vtk.serving.memory import Footprint, MemoryBudget, resident_memory
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import ModelStatus, OpenedModel
from vtk.serving.segment_model import SegmentModel
from vtk.serving.settings import RuntimeSettings
from vtk.serving.traffic import TrafficProfile
from vtk.serving.vision_model import VisionModel
from vtk.serving.warm_vision import PoliteEngine, polite, warm_up_prompts, warm_up_vision
from vtk.verify_report import Check
from vtk.verify_stages import verify_golden


def open_vision(
    found: FoundModel, settings: RuntimeSettings, arbiter: Arbiter, budget: MemoryBudget, traffic: TrafficProfile
) -> OpenedModel:
    """See `ModelOpener`. The SHA-256 of every file is compared before one of them is given to an engine."""
    bundle = read_bundle(found.path)
    if bundle.manifest.task == "segment":
        return open_segment(found, bundle, settings, arbiter, budget, traffic)
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


def open_segment(
    found: FoundModel,
    bundle: Bundle,
    settings: RuntimeSettings,
    arbiter: Arbiter,
    budget: MemoryBudget,
    traffic: TrafficProfile,
) -> OpenedModel:
    """The same for a promptable model; what it may remember of pictures is part of its memory from the start."""
    digest = str(bundle.manifest.source["tensor_digest"])
    before = resident_memory()
    with ExitStack() as undo:
        expected = Footprint(weights=weight_bytes(bundle), cache=settings.embedding_cache_bytes)
        reservation = budget.reserve(f"{found.name} {found.version}", expected)
        undo.callback(reservation.release)
        parts = open_segment_predictor(
            bundle,
            backend=settings.backend,
            device=settings.device,
            threads=settings.threads,
            cache_bytes=settings.embedding_cache_bytes,
            wrap=lambda engine: PoliteEngine(engine, arbiter),
        )
        undo.callback(parts.close)
        careful = parts.with_images(polite(parts.images, arbiter))
        if settings.verify_on_load:
            golden = read_parts_golden(bundle.root)
            check_all(bundle, verify_parts(bundle, careful, golden, lambda text: None))
        warm_up_prompts(careful, traffic.sizes(digest))
        model = SegmentModel(
            parts,
            arbiter,
            name=found.name,
            version=found.version,
            max_queue_delay=settings.max_queue_delay,
            max_queued=settings.max_queued_pictures,
            on_picture=partial(traffic.record_picture, digest),
        )
        undo.callback(model.close)
        reservation.measure(resident_memory() - before)
        return OpenedModel(model, _facts(found, parts, reservation.footprint.total), undo.pop_all().close)


def prove(bundle: Bundle, predictor: Predictor) -> None:
    """Reproduce the golden data. Raises VerifyError naming the first stage that differs."""
    check_all(bundle, verify_golden(bundle, predictor, read_golden(bundle.root), lambda text: None))


def check_all(bundle: Bundle, checks: Iterable[Check]) -> None:
    """Raise VerifyError for the first one that did not pass."""
    for check in checks:
        if not check.passed:
            raise VerifyError(
                f"{bundle.root} does not reproduce its golden data: {check}.", hint=f"See: vtk verify {bundle.root}"
            )


def weight_bytes(bundle: Bundle) -> int:
    """What the engines load: every graph, and for each of them the weights file that its part shares on disk."""
    artifacts, files = bundle.manifest.artifacts, bundle.manifest.files
    weights = [f"{artifact.part}.weights" for artifact in artifacts]
    loaded = [*(artifact.file for artifact in artifacts), *(file for file in weights if file in files)]
    return sum(bundle.path(file).stat().st_size for file in loaded)


def _facts(found: FoundModel, predictor: Predictor | SegmentPredictor, num_bytes: int) -> ModelStatus:
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
