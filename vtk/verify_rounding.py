"""Verification of half-precision bundles where the processor does not compute in half precision.

ONNX Runtime on a CPU keeps float32 between float16 operators, so that overflows and rounding do not show, and it has no
kernels for bfloat16. Such bundles hold float32 twins of their graphs that round as the graphs do: they are what tells
on a CPU how an engine on a GPU will answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from vtk.bundle import Artifact, Bundle
from vtk.engines.base import Engine
from vtk.engines.open import open_engine
from vtk.exporters.precision_terms import ROUNDED_SUFFIX
from vtk.predictor import Predictor, open_predictor
from vtk.segmenting.predictor import SegmentPredictor, open_segment_predictor
from vtk.verify_limits import precision_of

_RUNTIME = "ort"


def open_verified(
    bundle: Bundle,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
) -> Predictor:
    """The predictor to verify with: over the bundle's graphs, or over their twins where nothing here runs bfloat16.

    `backend` of the result says which. Raises the errors of `open_predictor`.
    """
    if precision_of(bundle.manifest) == "bf16" and _is_cpu(backend, device):
        return _open(bundle, _twins(bundle, batches), threads)
    return open_predictor(bundle, backend=backend, device=device, threads=threads, batches=batches)


def open_rounded(bundle: Bundle, predictor: Predictor) -> Predictor | None:
    """Over the twins, for a predictor whose processor does not round; None where it does or nothing is rounded."""
    if precision_of(bundle.manifest) == "fp32" or predictor.device != "cpu" or predictor.backend != _RUNTIME:
        return None
    twins = _twins(bundle, None)
    return _open(bundle, twins, None) if twins else None


def open_verified_parts(
    bundle: Bundle,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
) -> SegmentPredictor:
    """`open_verified` for a bundle in parts."""
    if precision_of(bundle.manifest) == "bf16" and _is_cpu(backend, device):
        return _open_parts(bundle, _twins(bundle, batches), threads)
    return open_segment_predictor(bundle, backend=backend, device=device, threads=threads, batches=batches)


def open_rounded_parts(bundle: Bundle, predictor: SegmentPredictor) -> SegmentPredictor | None:
    """`open_rounded` for a bundle in parts."""
    if precision_of(bundle.manifest) == "fp32" or predictor.device != "cpu" or predictor.backend != _RUNTIME:
        return None
    twins = _twins(bundle, None)
    return _open_parts(bundle, twins, None) if twins else None


def _is_cpu(backend: str, device: str) -> bool:
    if backend not in ("auto", _RUNTIME) or device not in ("auto", "cpu") or find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return device == "cpu" or "CUDAExecutionProvider" not in onnxruntime.get_available_providers()


def _twins(bundle: Bundle, batches: Sequence[int] | None) -> list[tuple[Artifact, str]]:
    """Artifacts with their twin's file name."""
    pairs = [(item, item.file.removesuffix(".onnx") + ROUNDED_SUFFIX) for item in bundle.manifest.artifacts]
    wanted = [pair for pair in pairs if batches is None or pair[0].batch in batches]
    return [pair for pair in wanted if pair[1] in bundle.manifest.files]


def _open_parts(bundle: Bundle, twins: Sequence[tuple[Artifact, str]], threads: int | None) -> SegmentPredictor:
    artifacts = tuple(replace(artifact, file=file) for artifact, file in twins)
    rounded = Bundle(bundle.root, replace(bundle.manifest, artifacts=artifacts))
    predictor = open_segment_predictor(rounded, backend=_RUNTIME, device="cpu", threads=threads)
    predictor.backend = f"{_RUNTIME}, float32 rounded as {precision_of(bundle.manifest)}"
    return predictor


def _open(bundle: Bundle, twins: Sequence[tuple[Artifact, str]], threads: int | None) -> Predictor:
    engines: dict[int, Engine] = {}
    try:
        for artifact, file in twins:
            engines[artifact.batch] = open_engine(bundle.path(file), backend=_RUNTIME, device="cpu", threads=threads)
        predictor = Predictor(bundle, engines)
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise
    predictor.backend = f"{_RUNTIME}, float32 rounded as {precision_of(bundle.manifest)}"
    return predictor
