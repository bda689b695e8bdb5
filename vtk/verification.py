"""Does a bundle reproduce the model that it was made from? Stage by stage, so that the first one that differs is named.

files → reference → decode → preprocess → rows → engine → batches → postprocess → results → variation. The golden data
of the bundle is enough: neither the checkpoint nor torch is needed on the machine that verifies.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

from vtk.bundle import Bundle, changed_files, read_bundle, write_json_atomic
from vtk.errors import UsageError
from vtk.golden import Golden, read_golden
from vtk.parts_golden import PartsGolden, read_parts_golden
from vtk.parts_pictures import verify_own_pictures
from vtk.parts_verify import verify_parts, verify_rounding
from vtk.predictor import Predictor
from vtk.requirements import require
from vtk.segmenting.predictor import SegmentPredictor
from vtk.verify_accuracy import Accuracy
from vtk.verify_own import OwnPictures
from vtk.verify_report import Check, Report, worst
from vtk.verify_rounding import open_rounded_parts, open_verified, open_verified_parts
from vtk.verify_stages import ReferenceRows, verify_golden, verify_pictures

VERIFY_NAME = "verify.json"
_CHUNK = 16
_PACKAGES = ("vtk-deploy", "numpy", "pillow", "opencv-python-headless", "onnxruntime", "openvino")


def verify(
    root: Path,
    *,
    images: Path | None = None,
    checkpoint: Path | None = None,
    annotations: Path | None = None,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Check a bundle on this machine and write `verify.json` into it; the report says whether it passed.

    A bundle that cannot be written to is verified all the same, and the report says that it was not saved.
    images: a folder of further pictures, on which every batch size is compared with the smallest, or with the source
    model when `checkpoint` is given too (which needs torch); those that do not decode are a check that fails. A bundle
    in parts is asked its own prompts about them, see `verify_own_pictures`. annotations: COCO file about `images`, to
    compare AP. batches: sizes to check, default all.
    Raises BundleError for a folder that is no bundle, UsageError for a checkpoint that is not its source and for
    `images` with nothing to compare, InputError for `images`, and the errors of `open_predictor`.
    """
    if checkpoint is not None and images is None:
        raise UsageError("--checkpoint compares on pictures of yours.", hint="Pass --images DIR as well.")
    if annotations is not None and checkpoint is None:
        raise UsageError(
            "--annotations compares the accuracy of the source model and the bundle.",
            hint="Pass --images DIR and --checkpoint FILE as well.",
        )
    bundle = read_bundle(root, check_files=False)
    checks = check_files(bundle)
    if not checks[0].passed:
        return _finish(bundle, Report(tuple(checks), "none", "none", (), 0, installed_versions()))
    if bundle.manifest.task == "segment":
        if annotations is not None:
            raise UsageError("--annotations are for detectors.", hint="Leave out --annotations.")

        def further(predictor: SegmentPredictor, golden: PartsGolden) -> list[Check]:
            if images is None:
                return []
            return verify_own_pictures(bundle, predictor, golden, images, checkpoint, progress)

        report = verify_in_parts(
            bundle,
            checks,
            progress,
            backend=backend,
            device=device,
            threads=threads,
            batches=batches,
            further=further,
        )
        return _finish(bundle, report)
    with open_verified(bundle, backend=backend, device=device, threads=threads, batches=batches) as predictor:
        golden = read_golden(bundle.root)
        checks += verify_golden(bundle, predictor, golden, progress)
        if images is not None:
            if checkpoint is None and len(predictor.batch_sizes) < 2:
                raise UsageError(
                    f"--images has nothing to compare batch {predictor.batch_sizes[0]} with: it is the only one.",
                    hint="Pass --checkpoint FILE as well.",
                )
            reference = None if checkpoint is None else _reference(bundle, checkpoint)
            accuracy = None
            if annotations is not None and reference is not None:
                accuracy = Accuracy(bundle, predictor, annotations, reference)
            checks += _verify_images(bundle, predictor, images, reference, accuracy, progress)
        return _finish(bundle, make_report(checks, predictor, golden))


def verify_in_parts(
    bundle: Bundle,
    checks: Sequence[Check],
    progress: Callable[[str], None],
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
    further: Callable[[SegmentPredictor, PartsGolden], list[Check]] = lambda predictor, golden: [],
) -> Report:
    """The report on a bundle in parts, which `checks` begin and those of `further` end.

    Raises the errors of `open_segment_predictor` and of `further`.
    """
    golden = read_parts_golden(bundle.root)
    with open_verified_parts(bundle, backend=backend, device=device, threads=threads, batches=batches) as predictor:
        found = [*checks, *verify_parts(bundle, predictor, golden, progress)]
        rounded = open_rounded_parts(bundle, predictor)
        if rounded is not None:
            with rounded:
                found += verify_rounding(bundle, rounded, golden, progress)
        found += further(predictor, golden)
        return Report(
            checks=tuple(found),
            backend=predictor.backend,
            device=predictor.device,
            batches=predictor.batch_sizes,
            pictures=len(golden.pictures),
            versions=installed_versions(),
        )


def check_files(bundle: Bundle) -> list[Check]:
    """Whether every file is the one that the manifest was written for."""
    changed = changed_files(bundle)
    return [Check("files", "missing or changed", len(changed), 0, ", ".join(changed[:5]))]


def make_report(checks: Sequence[Check], predictor: Predictor, golden: Golden) -> Report:
    """The checks with what they ran on."""
    return Report(
        checks=tuple(checks),
        backend=predictor.backend,
        device=predictor.device,
        batches=predictor.batch_sizes,
        pictures=len(golden.pictures),
        versions=installed_versions(),
    )


def installed_versions() -> dict[str, str]:
    """Versions of what decides the numbers of a run."""
    installed = {distribution.name: distribution.version for distribution in distributions()}
    found = {package: installed[package] for package in _PACKAGES if package in installed}
    return {"python": platform.python_version(), **found}


def _finish(bundle: Bundle, report: Report) -> Report:
    try:
        write_json_atomic(bundle.path(VERIFY_NAME), report.to_json())
    except OSError as error:
        return replace(report, not_saved=str(error))
    return report


def _reference(bundle: Bundle, checkpoint: Path) -> ReferenceRows:
    require("torch", "safetensors", needed_for="vtk verify --checkpoint", extra="export")
    # torch is imported from here on only
    from vtk.reference import load_source, reference_rows

    loaded = load_source(bundle, checkpoint)
    return lambda tensors: reference_rows(loaded, tensors)


def _verify_images(
    bundle: Bundle,
    predictor: Predictor,
    images: Path,
    reference: ReferenceRows | None,
    accuracy: Accuracy | None,
    progress: Callable[[str], None],
) -> list[Check]:
    own = OwnPictures(images)
    checks: list[Check] = []
    for chunk in own.chunks(_CHUNK):
        progress(f"pictures of {images}: {chunk[0][0]}, …")
        checks = worst([*checks, *verify_pictures(bundle, predictor, chunk, reference)])
        if accuracy is not None:
            accuracy.add(chunk)
    if accuracy is not None and checks:
        checks += accuracy.checks()
    return checks + own.checks()
