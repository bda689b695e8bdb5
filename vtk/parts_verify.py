"""Does a bundle in parts reproduce its source model? Part by part, so that the first one that differs is named.

reference → decode → preprocess → tokenize → image_encoder → text_encoder → decoder → results → point_decoder →
rounding. Each part works on what the part before it gave, not on the golden features, of which only a sample is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import BackendError, BundleError, ImageError, UsageError
from vtk.exporters.family import OutputSpec
from vtk.golden import pixels_sha256
from vtk.parts_compare import compare_masks, compare_output, compare_point_masks
from vtk.parts_golden import PartsGolden, best_found
from vtk.postprocess.results import Detections, Result
from vtk.postprocess.segment import segment_detections
from vtk.predictor import Row
from vtk.preprocess.decode import decode
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.segmenting.embedded import EmbeddedPicture
from vtk.segmenting.predictor import DECODER, IMAGE_ENCODER, POINT_DECODER, TEXT_ENCODER, SegmentPredictor
from vtk.segmenting.tokenizer import read_tokenizer
from vtk.segmenting.tokenizer_files import FOLDER
from vtk.verify_limits import limits_of
from vtk.verify_report import Check, placed, worst
from vtk.verify_results import compare_found, compare_results
from vtk.verify_stages import MAX_GRAY_LEVELS, check_spec


def verify_parts(
    bundle: Bundle, predictor: SegmentPredictor, golden: PartsGolden, progress: Callable[[str], None]
) -> Iterator[Check]:
    """All checks on the bundle's own pictures and prompts. Raises BundleError for a manifest without its parts."""
    return _PartsVerification(bundle, predictor, golden, progress).run()


def verify_rounding(
    bundle: Bundle, rounded: SegmentPredictor, golden: PartsGolden, progress: Callable[[str], None]
) -> list[Check]:
    """What the twins of half-precision graphs give, which round as those do (`vtk/verify_rounding.py`)."""
    checks = verify_answers(bundle, rounded, golden, [decode(picture.data) for picture in golden.pictures], progress)
    return [replace(check, stage="rounding", subject=f"{check.stage}, {check.subject}") for check in checks]


def verify_answers(
    bundle: Bundle,
    predictor: SegmentPredictor,
    golden: PartsGolden,
    pixels: Sequence[RGBImage],
    progress: Callable[[str], None],
) -> Iterator[Check]:
    """The parts and the results alone. pixels: of the golden pictures, in their order."""
    return _PartsVerification(bundle, predictor, golden, progress).parts(pixels)


class _PartsVerification:
    """One pass over the golden data with one predictor."""

    def __init__(
        self, bundle: Bundle, predictor: SegmentPredictor, golden: PartsGolden, progress: Callable[[str], None]
    ) -> None:
        self.bundle = bundle
        self.predictor = predictor
        self.golden = golden
        self.progress = progress
        self.specs = part_outputs(bundle)
        self.limits = limits_of(bundle.manifest)
        self.post = bundle.manifest.post
        self.features: list[Row] = []  # of each golden tensor, at the smallest batch size

    def run(self) -> Iterator[Check]:
        difference = self.golden.max_difference
        yield Check("reference", "difference between two runs of the source model", difference, 0)
        try:
            pixels = [decode(picture.data) for picture in self.golden.pictures]
        except ImageError as error:
            yield Check("decode", "pictures that do not decode", 1, 0, str(error))
            return
        yield self._decode(pixels)
        yield from self._preprocess(pixels)
        yield from self._tokenize()
        yield from self.parts(pixels)

    def parts(self, pixels: Sequence[RGBImage]) -> Iterator[Check]:
        """From the golden tensors to results, part by part."""
        yield from self._image_encoder()
        yield from self._text_encoder()
        embedded = self._embedded(pixels)
        yield from self._decoder(embedded)
        if self.golden.clicks:
            yield from self._point_decoder(embedded)

    def _decode(self, pixels: Sequence[RGBImage]) -> Check:
        pairs = zip(self.golden.pictures, pixels, strict=True)
        changed = [picture.name for picture, rgb in pairs if pixels_sha256(rgb) != picture.pixels_sha256]
        return Check("decode", "pictures with other pixels", len(changed), 0, ", ".join(changed))

    def _preprocess(self, pixels: Sequence[RGBImage]) -> Iterator[Check]:
        recipe = self.bundle.manifest.recipe
        yield Check("preprocess", "recipe is another one", int(recipe.digest != self.golden.recipe_sha256), 0)
        std = np.array(recipe.std)[:, None, None]
        distances = [
            float((np.abs(self.predictor.images.prepare(rgb).tensor.astype(np.float64) - picture.tensor) * std).max())
            for rgb, picture in zip(pixels, self.golden.pictures, strict=True)
        ]
        yield Check("preprocess", "gray levels from the golden tensor", max(distances) * 255, MAX_GRAY_LEVELS)

    def _tokenize(self) -> Iterator[Check]:
        tokenizer = read_tokenizer(self.bundle.path(FOLDER), context_length=self.predictor.max_tokens + 2)
        for prompt in self.golden.prompts:
            try:
                ids = tokenizer(prompt.text).input_ids
            except UsageError as error:
                yield Check("tokenize", f"{prompt.name} is refused", 1, 0, str(error))
                continue
            other = ids.shape != prompt.input_ids.shape or (ids != prompt.input_ids).any()
            yield Check("tokenize", f"other tokens of {prompt.name}", int(other), 0)

    def _image_encoder(self) -> Iterator[Check]:
        pictures = self.golden.pictures
        for batch in self.predictor.batch_sizes:
            self.progress(f"{IMAGE_ENCODER}, batch {batch}")
            checks: list[Check] = []
            for picture in pictures:
                rows = self.predictor.images.infer_batch(batch, [picture.tensor] * batch)
                if batch == self.predictor.batch_sizes[0]:
                    self.features.append(rows[0])
                for number, row in enumerate(rows):
                    found = self._compare(IMAGE_ENCODER, picture.features, row)
                    checks += placed(found, stage="", detail=f"{picture.name} in row {number}")
            yield from placed(worst(checks), stage=IMAGE_ENCODER, prefix=f"batch {batch}: ")

    def _text_encoder(self) -> Iterator[Check]:
        self.progress(TEXT_ENCODER)
        checks: list[Check] = []
        for prompt in self.golden.prompts:
            row = {"text_features": self.predictor.embed_text(prompt.text).features[0]}
            checks += placed(self._compare(TEXT_ENCODER, prompt.features, row), stage="", detail=prompt.name)
        yield from placed(worst(checks), stage=TEXT_ENCODER)

    def _embedded(self, pixels: Sequence[RGBImage]) -> list[EmbeddedPicture]:
        """The golden pictures from their pixels on."""
        found = []
        for picture, features, rgb in zip(self.golden.pictures, self.features, pixels, strict=True):
            prepared = self.predictor.images.prepare(rgb)
            if not np.array_equal(prepared.tensor, picture.tensor):
                (features,) = self.predictor.images.infer([prepared.tensor])
            found.append(EmbeddedPicture(features, prepared.geometry))
        return found

    def _decoder(self, pictures: Sequence[EmbeddedPicture]) -> Iterator[Check]:
        checks: list[Check] = []
        results: list[tuple[str, Result, Result]] = []  # where, wanted and found
        for picture, embedded in zip(self.golden.pictures, pictures, strict=True):
            self.progress(f"{DECODER} on {picture.name}")
            for prompt, answer in zip(self.golden.prompts, picture.answers, strict=True):
                row = self.predictor.decode(embedded, prompt.on(embedded.geometry))
                where = f"{picture.name}, {prompt.name}"
                checks += placed(self._compare(DECODER, answer.outputs, row), stage="", detail=where)
                checks += placed([compare_masks(answer, row, self.post, self.limits)], stage="", detail=where)
                results.append((where, answer.result, self._finish(row, embedded.geometry)))
        yield from placed(worst(checks), stage=DECODER)
        yield from placed(self._results(results), stage="results", prefix="from file to result: ")

    def _point_decoder(self, pictures: Sequence[EmbeddedPicture]) -> Iterator[Check]:
        checks: list[Check] = []
        for picture, embedded in zip(self.golden.pictures, pictures, strict=True):
            self.progress(f"{POINT_DECODER} on {picture.name}")
            for clicks, masks in zip(self.golden.clicks, picture.clicked, strict=True):
                row = self.predictor.decode_points(embedded, clicks.on(embedded.geometry))
                found = [
                    *self._compare(POINT_DECODER, masks.outputs, row),
                    compare_point_masks(masks, row, self.limits),
                ]
                checks += placed(found, stage="", detail=f"{picture.name}, {clicks.name}")
        yield from placed(worst(checks), stage=POINT_DECODER)

    def _finish(self, row: Row, geometry: Geometry) -> Result:
        """Nothing found, where the outputs are not fit for a result; their own checks say why."""
        try:
            return segment_detections(row, geometry, best_found(self.post), None)
        except BackendError:
            height, width = geometry.source_hw
            none = np.empty(0, np.float32)
            return Detections(none.reshape(0, 4), none, np.empty(0, np.int64), (width, height))

    def _results(self, results: Sequence[tuple[str, Result, Result]]) -> list[Check]:
        post = best_found(self.post)
        if not self.limits.elementwise:
            return compare_found([item[1] for item in results], [item[2] for item in results], post, self.limits)
        checks: list[Check] = []
        for where, wanted, found in results:
            checks += placed(compare_results(wanted, found, post), stage="", detail=where)
        return worst(checks)

    def _compare(self, part: str, wanted: Mapping[str, Array], row: Mapping[str, Array]) -> list[Check]:
        pairs = [(spec, wanted.get(spec.name), row.get(spec.name)) for spec in self.specs[part]]
        return [check for pair in pairs for check in compare_output(*pair, self.limits)]


def part_outputs(bundle: Bundle) -> dict[str, tuple[OutputSpec, ...]]:
    """What verify compares of each part. Raises BundleError for a manifest that does not say."""
    try:
        parts = bundle.manifest.config["parts"]
        specs = {part["name"]: tuple(OutputSpec(**output) for output in part["outputs"]) for part in parts}
        built = {artifact.part for artifact in bundle.manifest.artifacts}
        if missing := {IMAGE_ENCODER, TEXT_ENCODER, DECODER, *built} - specs.keys():
            raise KeyError(", ".join(sorted(missing)))
        if bare := [name for name, outputs in specs.items() if not outputs]:
            raise TypeError(f"nothing of {bare[0]} is compared")
        for spec in chain.from_iterable(specs.values()):
            check_spec(spec)
        return specs
    except (KeyError, TypeError) as error:
        raise BundleError(f"The parts in the manifest of {bundle.root} are not usable: {error}.") from error
