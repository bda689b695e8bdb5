"""An open bundle in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, overload

from vtk.bundle import Label, read_bundle
from vtk.errors import UsageError
from vtk.image_like import ImageLike, PathLike, one_picture, pixels_of, told_which
from vtk.postprocess.results import Detections, Result
from vtk.predictor import Predictor, open_predictor
from vtk.preprocess.decode import DEFAULT, DecodeOptions
from vtk.segmenting.places import Boxes, PointLabels, Points
from vtk.segmenting.predictor import DEFAULT_CACHE_BYTES, SegmentPredictor, open_segment_predictor
from vtk.segmenting.prompts import Prompts, prompts_asked

if TYPE_CHECKING:
    from vtk.bundle import Task
    from vtk.postprocess.recipe import PostRecipe
    from vtk.preprocess.apply import Preprocessed
    from vtk.preprocess.resize import RGBImage


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
            return _answer(predictor, [self._prepare(predictor, one_picture(images), "The picture")])[0]
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
            return parts.segment(parts.embed(self._pixels(one_picture(images), "The picture")), asked, post)
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
        with told_which(which):
            return predictor.prepare(pixels_of(image, self._decode_options))

    def _pixels(self, image: ImageLike, which: str) -> RGBImage:
        with told_which(which):
            return pixels_of(image, self._decode_options)


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


def _with_threshold(post: PostRecipe, score_threshold: float) -> PostRecipe:
    try:
        return replace(post, score_threshold=score_threshold)
    except (TypeError, ValueError):
        raise UsageError(f"score_threshold is a number from 0 to 1, got {score_threshold!r}.") from None


def _answer(predictor: Predictor, prepared: Sequence[Preprocessed]) -> list[Result]:
    rows = predictor.infer([item.tensor for item in prepared])
    return [predictor.finish(row, item.geometry) for row, item in zip(rows, prepared, strict=True)]
