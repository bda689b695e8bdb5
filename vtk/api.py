"""The Python API for pictures: what the command line does, as functions and one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.exporters.family import FamilyOptions
from vtk.exporters.precision_terms import Precision
from vtk.image_like import ImageLike, PathLike
from vtk.inspection import BundleInspection, inspect_path
from vtk.model import Model, load
from vtk.requirements import require_export
from vtk.verification import verify as _verify_bundle

if TYPE_CHECKING:
    from vtk.exporters.inspection import Inspection
    from vtk.verify_report import Report

__all__ = ["ImageLike", "Model", "PathLike", "export", "inspect", "load", "verify"]


def export(
    checkpoint: PathLike,
    output: PathLike | None = None,
    *,
    batches: Sequence[int] | None = None,
    size: tuple[int, int] | None = None,
    opset: int | None = None,
    precision: Precision = "fp32",
    options: FamilyOptions | None = None,
    weights: str | None = None,
    images: PathLike | None = None,
    force: bool = False,
) -> Path:
    """Turn a checkpoint into a verified bundle and return its folder; nothing is left behind on failure.

    output: None means `<stem>-<family>-<variant>` in the current folder; an existing bundle is replaced with `force`
    only. batches: None means 1 and 8, or 1 alone for a model in parts (SAM3). size: (height, width) in pixels, None for
    the checkpoint's own. precision: of the graphs; below fp32 the islands of the family stay float32. options: what a
    checkpoint cannot say about itself. weights: which part of a training checkpoint, None for the EMA where there is
    one. images: a folder of pictures to verify on, None for four sample pictures. Raises MissingDependencyError without
    torch and onnx, and the errors of `vtk.exporting.export_bundle`.
    """
    require_export()
    from vtk.exporting import ExportListener, ExportSettings, export_bundle

    chosen = options or FamilyOptions()
    if size is not None:
        chosen = replace(chosen, size_hw=size)
    settings = ExportSettings(
        batches=None if batches is None else tuple(batches),
        opset=opset,
        precision=precision,
        weights=weights,
        images=None if images is None else Path(images),
        force=force,
    )
    destination = None if output is None else Path(output)
    return export_bundle(Path(checkpoint), destination, chosen, settings, ExportListener()).root


def inspect(
    path: PathLike, *, options: FamilyOptions | None = None, weights: str | None = None
) -> Inspection | BundleInspection:
    """What a checkpoint or a bundle is; `.to_json()` gives all of it. A checkpoint needs torch, a bundle does not.

    options, weights: as for `export`, for a checkpoint only. Raises UnknownFamilyError, CheckpointError, BundleError.
    """
    return inspect_path(Path(path), options or FamilyOptions(), weights)


def verify(
    bundle: PathLike,
    *,
    images: PathLike | None = None,
    checkpoint: PathLike | None = None,
    annotations: PathLike | None = None,
    backend: str = "auto",
    device: str = "auto",
    batches: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check a bundle on this machine, as `vtk.verification.verify` says; read `.passed` and `.first_failure`."""
    return _verify_bundle(
        Path(bundle),
        images=None if images is None else Path(images),
        checkpoint=None if checkpoint is None else Path(checkpoint),
        annotations=None if annotations is None else Path(annotations),
        backend=backend,
        device=device,
        batches=batches,
        progress=progress,
    )
