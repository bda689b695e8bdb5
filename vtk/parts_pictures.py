"""A bundle in parts on the user's own pictures: every part against a reference, with the bundle's own prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import UsageError
from vtk.parts_answers import PartsAnswers, PromptShares, RunPart
from vtk.parts_golden import PartsGolden
from vtk.parts_verify import verify_answers
from vtk.requirements import require
from vtk.segmenting.predictor import DECODER, IMAGE_ENCODER, POINT_DECODER, TEXT_ENCODER, SegmentPredictor
from vtk.segmenting.tokenizer import read_tokenizer
from vtk.segmenting.tokenizer_files import FOLDER
from vtk.verify_own import STAGE, OwnPictures
from vtk.verify_report import Check, worst
from vtk.verify_rounding import open_verified_parts


@dataclass(frozen=True)
class _Reference:
    """What runs the parts that are right by agreement, and what it is called."""

    name: str
    run: RunPart


def verify_own_pictures(
    bundle: Bundle,
    predictor: SegmentPredictor,
    golden: PartsGolden,
    images: Path,
    checkpoint: Path | None,
    progress: Callable[[str], None],
) -> list[Check]:
    """Every output of every part on each picture, asked the prompts and points of the bundle, and the results.

    The reference is the source model where `checkpoint` is given; else ONNX Runtime on the processor where the
    predictor is another engine; else the smallest batch size.
    Raises UsageError where none of them is there, InputError for `images`, and the errors of `load_source`.
    """
    own = OwnPictures(images)
    with _reference(bundle, predictor, checkpoint) as reference:
        answers = _answers(bundle, predictor, golden, reference.run)
        checks: list[Check] = []
        for ((name, pixels),) in own.chunks(1):
            progress(f"pictures of {images}: {name}")
            asked = replace(golden, pictures=(answers.picture(name, b"", pixels),), prompts=answers.golden_prompts())
            found = verify_answers(bundle, predictor, asked, [pixels], progress)
            checks = worst([*checks, *(_as_own(check, reference.name) for check in found)])
    return checks + own.checks()


def _as_own(check: Check, reference: str) -> Check:
    return replace(check, stage=STAGE, subject=f"against {reference}: {check.stage}, {check.subject}")


def _answers(bundle: Bundle, predictor: SegmentPredictor, golden: PartsGolden, run: RunPart) -> PartsAnswers:
    """With the numbers of slots that the graphs have, whatever the manifest says of them."""
    manifest = bundle.manifest
    slots = {"box_slots": predictor.max_boxes, "point_slots": predictor.max_points}
    prompts = [PromptShares(prompt.text, prompt.boxes, prompt.negative_boxes) for prompt in golden.prompts]
    tokenizer = read_tokenizer(bundle.path(FOLDER), context_length=predictor.max_tokens + 2)
    return PartsAnswers(
        run, tokenizer, prompts, golden.clicks, recipe=manifest.recipe, post=manifest.post, config=slots
    )


@contextmanager
def _reference(bundle: Bundle, predictor: SegmentPredictor, checkpoint: Path | None) -> Iterator[_Reference]:
    if checkpoint is not None:
        yield _Reference("the source model", _source(bundle, checkpoint))
    elif (predictor.backend, predictor.device) != ("ort", "cpu") and not predictor.backend.startswith("ort,"):
        batches = predictor.batch_sizes[:1]
        with open_verified_parts(bundle, backend="ort", device="cpu", batches=batches) as processor:
            yield _Reference("ONNX Runtime on the processor", run_engines(processor))
    elif len(predictor.batch_sizes) > 1:
        yield _Reference(f"batch {predictor.batch_sizes[0]}", run_engines(predictor))
    else:
        raise UsageError(
            f"--images has nothing to compare batch {predictor.batch_sizes[0]} with: it is the only one.",
            hint="Pass --checkpoint FILE as well.",
        )


def _source(bundle: Bundle, checkpoint: Path) -> RunPart:
    require("torch", "safetensors", needed_for="vtk verify --checkpoint", extra="export")
    # torch is imported from here on only
    from vtk.exporting_parts import PartsReference
    from vtk.reference import load_source

    return PartsReference(load_source(bundle, checkpoint)).once


def run_engines(predictor: SegmentPredictor) -> RunPart:
    """The open parts of a bundle, the image encoder at its smallest batch size."""
    batch = predictor.batch_sizes[0]
    engines = {
        TEXT_ENCODER: predictor.text_engine,
        DECODER: predictor.decoder_engine,
        POINT_DECODER: predictor.point_engine,
    }

    def run(part: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if part == IMAGE_ENCODER:
            row, *_ = predictor.images.infer_batch(batch, [feeds["images"][0]] * batch)
            return {name: array[None] for name, array in row.items()}
        engine = engines[part]
        assert engine is not None
        return engine.infer({item.name: feeds[item.name] for item in engine.inputs})

    return run
