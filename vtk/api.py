"""The Python API: what the command line does, as functions and one object."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.bundle import Label, read_bundle
from vtk.errors import ImageError, UsageError
from vtk.exporters.family import FamilyOptions
from vtk.exporters.precision_terms import Precision
from vtk.inspection import BundleInspection, inspect_path
from vtk.postprocess.results import Detections, Result
from vtk.predictor import Predictor, open_predictor
from vtk.preprocess.decode import DEFAULT, DecodeOptions, decode, upright_rgb
from vtk.requirements import require_export
from vtk.segmenting.places import Boxes, PointLabels, Points
from vtk.segmenting.predictor import DEFAULT_CACHE_BYTES, SegmentPredictor, open_segment_predictor
from vtk.segmenting.prompts import Prompts, prompts_asked
from vtk.verification import verify as _verify_bundle

if TYPE_CHECKING:
    from vtk.bundle import Task
    from vtk.exporters.inspection import Inspection
    from vtk.postprocess.recipe import PostRecipe
    from vtk.preprocess.apply import Preprocessed
    from vtk.preprocess.resize import RGBImage
    from vtk.verify_report import Report

PathLike: TypeAlias = "str | os.PathLike[str]"
ImageLike: TypeAlias = "PathLike | bytes | Image.Image | npt.NDArray[np.uint8]"


class Model:
    """An open bundle that answers pictures; use it as a context manager or call `close`.

    A picture is a path, the bytes of a file, a PIL image, or an RGB array (height, width, 3) uint8. One picture gives
    one result, a list gives a list: Detections, Embeddings or Classification, as `task` says. A model of task segment
    is asked with `segment`, the others are called.
    """

    def __init__(self, predictor: Predictor | SegmentPredictor, decode_options: DecodeOptions) -> None:
        self._predictor = predictor
        self._decode_options = decode_options

    @property
    def task(self) -> Task:
        """detect, embed, classify or segment."""
        return self._predictor.bundle.manifest.task

    @property
    def labels(self) -> tuple[Label, ...]:
        """Class index i of a result is `labels[i]`; empty for embeddings and for what is prompted."""
        return self._predictor.bundle.manifest.labels

    @property
    def backend(self) -> str:
        """What runs the model: ort, openvino."""
        return self._predictor.backend

    @property
    def device(self) -> str:
        """Where it really runs, asked from the backend."""
        return self._predictor.device

    # a str is a Sequence of str, which mypy takes for a contradiction
    @overload
    def __call__(self, images: ImageLike) -> Result: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, images: Sequence[ImageLike]) -> list[Result]: ...
    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> Result | list[Result]:
        """Raises ImageError for a picture that cannot be decoded and UsageError for what is none, saying which."""
        predictor = self._predictor
        if isinstance(predictor, SegmentPredictor):
            raise UsageError("This model finds what it is asked for.", hint="Call model.segment(picture, prompts=[…]).")
        if not isinstance(images, (list, tuple)):
            return _answer(predictor, [self._prepare(predictor, _one(images), "The picture")])[0]
        results: list[Result] = []
        step = predictor.batch_sizes[-1]
        for start in range(0, len(images), step):
            group = enumerate(images[start : start + step], start)
            results += _answer(predictor, [self._prepare(predictor, image, f"Picture {i}") for i, image in group])
        return results

    @overload
    def segment(  # type: ignore[overload-overlap]
        self,
        images: ImageLike,
        prompts: Prompts = ...,
        *,
        boxes: Boxes = ...,
        negative_boxes: Boxes = ...,
        points: Points = ...,
        point_labels: PointLabels | None = ...,
        score_threshold: float | None = ...,
    ) -> Detections: ...
    @overload
    def segment(
        self,
        images: Sequence[ImageLike],
        prompts: Prompts = ...,
        *,
        boxes: Boxes = ...,
        negative_boxes: Boxes = ...,
        points: Points = ...,
        point_labels: PointLabels | None = ...,
        score_threshold: float | None = ...,
    ) -> list[Detections]: ...
    def segment(
        self,
        images: ImageLike | Sequence[ImageLike],
        prompts: Prompts = (),
        *,
        boxes: Boxes = (),
        negative_boxes: Boxes = (),
        points: Points = (),
        point_labels: PointLabels | None = None,
        score_threshold: float | None = None,
    ) -> Detections | list[Detections]:
        """Everything that the prompts name, each with a mask; class i is prompt i.

        prompts: short noun phrases, or `Prompt` for those with boxes or objects of their own. boxes, negative_boxes:
        examples, and what is not meant, for the one prompt or without any; (left, top, right, bottom) in pixels of one
        picture. points: (x, y) of one object, whose mask alone is the result, with its estimated IoU as score;
        point_labels: 1 for each that is on it (all, unless given), 0 for each beside it; a single one of `boxes` then
        is around that object. score_threshold: None for the bundle's own, for SAM3 the official 0.5 (transformers has
        0.3); points are answered whatever the score. Another prompt or point on a picture that was asked about lately
        costs the decoder only. Raises UsageError and ImageError, saying of what.
        """
        parts = self._predictor
        if not isinstance(parts, SegmentPredictor):
            raise UsageError(f"This model is for {self.task} and takes no prompts.", hint="Call it: model(picture).")
        asked = prompts_asked(
            prompts, boxes=boxes, negative_boxes=negative_boxes, points=points, point_labels=point_labels
        )
        for prompt in asked:
            parts.check(prompt)
        post = parts.bundle.manifest.post
        if score_threshold is not None:
            post = _with_threshold(post, score_threshold)
        if not isinstance(images, (list, tuple)):
            return parts.segment(parts.embed(self._pixels(_one(images), "The picture")), asked, post)
        if any(prompt.is_of_one_picture for prompt in asked):
            raise UsageError("Places are pixels of one picture; several were given.", hint="Ask about one at a time.")
        pictures = (self._pixels(image, f"Picture {place}") for place, image in enumerate(images))
        return [parts.segment(parts.embed(picture), asked, post) for picture in pictures]

    def close(self) -> None:
        """Free the engines; the model is unusable afterwards."""
        self._predictor.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, predictor: Predictor, image: ImageLike, which: str) -> Preprocessed:
        with _told_which(which):
            return predictor.prepare(_to_pixels(image, self._decode_options))

    def _pixels(self, image: ImageLike, which: str) -> RGBImage:
        with _told_which(which):
            return _to_pixels(image, self._decode_options)


def load(
    bundle: PathLike,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    decode_options: DecodeOptions = DEFAULT,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
) -> Model:
    """Open a bundle made by `export`; its files are checked against their hashes.

    backend: auto, ort or openvino. device: auto, cpu or cuda. threads: None leaves it to the backend. cache_bytes: of
    features of pictures that a promptable model remembers. Raises BundleError, BackendError, MissingDependencyError.
    """
    opened = read_bundle(Path(bundle))
    if opened.manifest.task == "segment":
        parts = open_segment_predictor(opened, backend=backend, device=device, threads=threads, cache_bytes=cache_bytes)
        return Model(parts, decode_options)
    return Model(open_predictor(opened, backend=backend, device=device, threads=threads), decode_options)


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


def _with_threshold(post: PostRecipe, score_threshold: float) -> PostRecipe:
    try:
        return replace(post, score_threshold=score_threshold)
    except (TypeError, ValueError):
        raise UsageError(f"score_threshold is a number from 0 to 1, got {score_threshold!r}.") from None


def _answer(predictor: Predictor, prepared: Sequence[Preprocessed]) -> list[Result]:
    rows = predictor.infer([item.tensor for item in prepared])
    return [predictor.finish(row, item.geometry) for row, item in zip(rows, prepared, strict=True)]


@contextmanager
def _told_which(which: str) -> Iterator[None]:
    try:
        yield
    except ImageError as error:
        raise ImageError(error.reason, f"{which}: {error.message}", hint=error.hint) from error
    except UsageError as error:
        raise UsageError(f"{which}: {error.message}", hint=error.hint) from error


def _one(image: ImageLike | Sequence[ImageLike]) -> ImageLike:
    if isinstance(image, (str, bytes, os.PathLike, Image.Image, np.ndarray)):
        return image
    raise UsageError(
        f"A picture must be a path, bytes, PIL image or uint8 array (height, width, 3), got {type(image).__name__}.",
        hint="Pass several pictures as a list.",
    )


def _to_pixels(image: ImageLike, options: DecodeOptions) -> RGBImage:
    picture = _one(image)
    if isinstance(picture, np.ndarray):
        return picture
    if isinstance(picture, Image.Image):
        return _pixels_of_pil(picture, options)
    return decode(picture if isinstance(picture, bytes) else Path(picture), options)


def _pixels_of_pil(image: Image.Image, options: DecodeOptions) -> RGBImage:
    try:
        return upright_rgb(image, options)
    except ImageError:
        raise
    except Exception as error:  # an opened file is read only now, and damaged ones make Pillow raise anything
        raise ImageError("corrupt", f"The PIL image cannot be loaded: {error}.") from error
