"""A promptable model: an image encoder, a text encoder and a decoder that answers one prompt about one picture.

Some have another decoder, for points on one object. Features of pictures and prompts are remembered, so that another
prompt or point on the same picture costs a decoder call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from vtk.bundle import Bundle
from vtk.engines.base import Array, Engine
from vtk.engines.open import open_engine
from vtk.engines.select import select_artifacts
from vtk.errors import UsageError
from vtk.postprocess.points import select_mask
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.postprocess.segment import Queries, join_queries, select_queries, to_detections
from vtk.predictor import Predictor, Row
from vtk.segmenting.clicks import Clicks, check_num_points, point_slots
from vtk.segmenting.embedded import EmbeddedPicture, EmbeddedText, pixels_key
from vtk.segmenting.lru import ByteLru, CacheStats
from vtk.segmenting.parts_fit import check_parts
from vtk.segmenting.prompts import VISUAL, Prompt, box_slots, check_num_boxes
from vtk.segmenting.tokenizer import ClipTokenizer, read_tokenizer

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry
    from vtk.preprocess.resize import RGBImage

IMAGE_ENCODER, TEXT_ENCODER, DECODER = "image_encoder", "text_encoder", "decoder"
POINT_DECODER = "point_decoder"  # only where the checkpoint had SAM3's tracker

DEFAULT_CACHE_BYTES = 512 << 20  # four pictures at 1008 x 1008
TEXT_CACHE_BYTES = 16 << 20


class SegmentPredictor:
    """The open parts of one bundle.

    images: the image encoder as a predictor of its own, one thread at a time. All else may run in any thread; the
    other engines take one call at a time. max_boxes, max_tokens: of one prompt, without start and end. max_points: of
    one object; 0 where the bundle has no point decoder.
    """

    def __init__(
        self,
        images: Predictor,
        text_engine: Engine,
        decoder_engine: Engine,
        tokenizer: ClipTokenizer,
        *,
        point_engine: Engine | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """cache_bytes: of features of pictures. Raises BackendError for parts that do not fit each other."""
        check_parts(images, text_engine, decoder_engine, point_engine)
        self.images = images
        self.text_engine = text_engine
        self.decoder_engine = decoder_engine
        self.point_engine = point_engine
        self.bundle = images.bundle
        self.batch_sizes = images.batch_sizes
        engines = (*images.engines.values(), *self._prompted)
        self.backend = "+".join(dict.fromkeys(engine.backend for engine in engines))
        self.device = "+".join(dict.fromkeys(engine.device for engine in engines))
        self.max_tokens = text_engine.inputs[0].shape[1] - 2
        self._tokenizer = tokenizer
        self.max_boxes = _shape(decoder_engine, "boxes")[1]
        self.max_points = 0 if point_engine is None else _shape(point_engine, "points")[1]
        self._pictures: ByteLru[bytes, EmbeddedPicture] = ByteLru(cache_bytes, lambda picture: picture.nbytes)
        self._texts: ByteLru[str, EmbeddedText] = ByteLru(TEXT_CACHE_BYTES, lambda text: text.features.nbytes)
        self._lock = threading.Lock()

    def with_images(self, images: Predictor) -> SegmentPredictor:
        """The same engines for prompts, over another image encoder of the bundle; pictures are not remembered."""
        engines = self.text_engine, self.decoder_engine
        return SegmentPredictor(images, *engines, self._tokenizer, point_engine=self.point_engine, cache_bytes=0)

    @property
    def cache_stats(self) -> CacheStats:
        """Of the features of pictures."""
        return self._pictures.stats

    def embed(self, picture: RGBImage) -> EmbeddedPicture:
        """Features of a decoded picture (h, w, 3) uint8, remembered by its pixels."""
        return self.remembered(pixels_key(picture), lambda: self._embedded(picture))

    def remembered(self, key: bytes, embed: Callable[[], EmbeddedPicture]) -> EmbeddedPicture:
        """What is remembered under `key`, a digest of the picture's content; else that of `embed`, from now on."""
        found = self._pictures.get(key)
        if found is None:
            found = embed().to_keep()
            self._pictures.put(key, found)
        return found

    def check(self, prompt: Prompt) -> None:
        """Raise UsageError for a prompt that is too long, or has more boxes or points than the model takes."""
        for clicks in prompt.objects:
            self.check_points(clicks)
        if not prompt.objects:
            self._tokenizer(prompt.text or VISUAL)
            check_num_boxes(prompt, self.max_boxes)

    def check_points(self, clicks: Clicks) -> None:
        """Raise UsageError for more points than the model takes, which may be none."""
        if self.point_engine is None:
            raise UsageError(
                "This bundle takes no points: its checkpoint held no tracker, which is what answers them.",
                hint="Export a checkpoint with `tracker` tensors; `vtk inspect FILE` shows its point_prompts.",
            )
        check_num_points(clicks, self.max_points)

    def embed_text(self, text: str) -> EmbeddedText:
        """Features of a prompt's text. Raises UsageError for one that is too long."""
        found = self._texts.get(text)
        if found is None:
            tokens = self._tokenizer(text)
            feeds = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}
            with self._lock:
                outputs = self.text_engine.infer(feeds)
            found = EmbeddedText(outputs["text_features"], tokens.attention_mask)
            self._texts.put(text, found)
        return found

    def decode(self, picture: EmbeddedPicture, prompt: Prompt) -> Row:
        """Raw outputs of the decoder for one prompt, without batch dimension.

        Raises UsageError for a prompt that does not fit the model or the picture.
        """
        slots = box_slots(prompt, picture.geometry, self.max_boxes)
        text = self.embed_text(prompt.text or VISUAL)
        feeds = picture.feeds(self.decoder_engine)
        feeds |= {"text_features": text.features, "attention_mask": text.attention_mask}
        return self._infer_one(self.decoder_engine, feeds | {"boxes": slots.boxes, "box_labels": slots.labels})

    def decode_points(self, picture: EmbeddedPicture, clicks: Clicks) -> Row:
        """Raw outputs of the point decoder for one object, without batch dimension.

        Raises UsageError for a bundle without one, and for points that do not fit the model or the picture.
        """
        self.check_points(clicks)
        assert self.point_engine is not None
        slots = point_slots(clicks, picture.geometry, self.max_points)
        feeds = picture.feeds(self.point_engine)
        return self._infer_one(self.point_engine, feeds | {"points": slots.points, "point_labels": slots.labels})

    def ask(
        self,
        picture: EmbeddedPicture,
        prompts: Sequence[Prompt | None],
        threshold: float,
        before_each: Callable[[], None] = lambda: None,
    ) -> Queries:
        """What was found for each prompt with a score above `threshold`, and every object that was pointed at.

        `finish` makes a result of it. Only the masks that are kept stay in memory. None stands for a prompt that is not
        asked of this picture. before_each: called before every prompt and object; may raise to end it.
        """
        found = []
        for index, prompt in enumerate(prompts):
            for clicks in () if prompt is None else prompt.objects:
                before_each()
                found.append(select_mask(self.decode_points(picture, clicks), clicks.num_points, prompt=index))
            if prompt is not None and not prompt.objects:
                before_each()
                found.append(select_queries(self.decode(picture, prompt), threshold, prompt=index))
        return join_queries(found)

    def finish(self, queries: Queries, geometry: Geometry, post: PostRecipe | None = None) -> Detections:
        """Boxes and masks in pixels of the picture; class i is prompt i. `post` replaces the bundle's recipe."""
        return to_detections(queries, geometry, post or self.bundle.manifest.post)

    def segment(
        self, picture: EmbeddedPicture, prompts: Sequence[Prompt | None], post: PostRecipe | None = None
    ) -> Detections:
        """`ask` and `finish`."""
        recipe = post or self.bundle.manifest.post
        return self.finish(self.ask(picture, prompts, recipe.score_threshold), picture.geometry, recipe)

    def close(self) -> None:
        """Free the engines; the predictor is unusable afterwards."""
        self.images.close()
        for engine in self._prompted:
            engine.close()

    def __enter__(self) -> SegmentPredictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _prompted(self) -> tuple[Engine, ...]:
        """The engines that answer prompts."""
        points = () if self.point_engine is None else (self.point_engine,)
        return (self.text_engine, self.decoder_engine, *points)

    def _infer_one(self, engine: Engine, feeds: Mapping[str, Array]) -> Row:
        with self._lock:
            outputs = engine.infer(feeds)
        return {name: array[0] for name, array in outputs.items()}

    def _embedded(self, picture: RGBImage) -> EmbeddedPicture:
        prepared = self.images.prepare(picture)
        (features,) = self.images.infer([prepared.tensor])
        return EmbeddedPicture(features, prepared.geometry)


def open_segment_predictor(
    bundle: Bundle,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
    lanes: int = 1,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> SegmentPredictor:
    """Open the parts of a bundle of task segment.

    batches, lanes: of the image encoder, as `open_predictor` says. cache_bytes: of remembered features. wrap: makes the
    engines of the other parts of those that were opened. Raises BundleError for a bundle without a tokenizer, and
    what `open_predictor` raises.
    """
    with ExitStack() as undo:

        def opened(part: str, sizes: Sequence[int] | None) -> dict[int, Engine]:
            engines: dict[int, Engine] = {}
            selected = select_artifacts(bundle, backend=backend, device=device, batches=sizes, part=part)
            for chosen, artifact in selected:
                path = bundle.path(artifact.file)
                engines[artifact.batch] = open_engine(path, backend=chosen, device=device, threads=threads)
                undo.callback(engines[artifact.batch].close)
            return engines

        images = Predictor(bundle, opened(IMAGE_ENCODER, batches), lanes=lanes)
        (text_engine,) = opened(TEXT_ENCODER, [1]).values()
        (decoder_engine,) = opened(DECODER, [1]).values()
        has_points = any(artifact.part == POINT_DECODER for artifact in bundle.manifest.artifacts)
        point_engine = next(iter(opened(POINT_DECODER, [1]).values())) if has_points else None
        context_length = text_engine.inputs[0].shape[1]
        tokenizer = read_tokenizer(bundle.path("tokenizer"), context_length=context_length)
        predictor = SegmentPredictor(
            images,
            wrap(text_engine),
            wrap(decoder_engine),
            tokenizer,
            point_engine=None if point_engine is None else wrap(point_engine),
            cache_bytes=cache_bytes,
        )
        undo.pop_all()
        return predictor


def _shape(engine: Engine, name: str) -> tuple[int, ...]:
    return next(spec.shape for spec in engine.inputs if spec.name == name)
