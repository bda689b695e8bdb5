"""Does a bundle in parts reproduce its source model? Part by part, so that the first one that differs is named.

reference → decode → preprocess → tokenize → rows → image_encoder → text_encoder → decoder → results. Each part works on
what the part before it gave, not on the golden features, of which only a sample is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import BackendError, BundleError, ImageError, UsageError
from vtk.exporters.family import OutputSpec
from vtk.golden import pixels_sha256
from vtk.parts_golden import BEST, GoldenAnswer, PartsGolden, best_found, mask_bits, sample
from vtk.postprocess.segment import LOGITS, MASKS, PRESENCE, segment_detections
from vtk.predictor import Row
from vtk.preprocess.decode import decode
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.segmenting.predictor import DECODER, IMAGE_ENCODER, TEXT_ENCODER, EmbeddedPicture, SegmentPredictor
from vtk.segmenting.tokenizer import read_tokenizer
from vtk.segmenting.tokenizer_files import FOLDER
from vtk.verify_report import Check, placed, worst
from vtk.verify_results import compare_results
from vtk.verify_stages import MAX_GRAY_LEVELS

MAX_MASK_DISTANCE = 1e-3


def verify_parts(
    bundle: Bundle, predictor: SegmentPredictor, golden: PartsGolden, progress: Callable[[str], None]
) -> Iterator[Check]:
    """All checks on the bundle's own pictures and prompts. Raises BundleError for a manifest without its parts."""
    return _PartsVerification(bundle, predictor, golden, progress).run()


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
        yield from self._image_encoder()
        yield from self._text_encoder()
        yield from self._decoder(pixels)

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
        length = int(self.bundle.manifest.config["context_length"])
        tokenizer = read_tokenizer(self.bundle.path(FOLDER), context_length=length)
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

    def _decoder(self, pixels: Sequence[RGBImage]) -> Iterator[Check]:
        outputs: list[Check] = []
        results: list[Check] = []
        for picture, rgb, features in zip(self.golden.pictures, pixels, self.features, strict=True):
            prepared = self.predictor.images.prepare(rgb)
            self.progress(f"{DECODER} on {picture.name}")
            if not np.array_equal(prepared.tensor, picture.tensor):
                (features,) = self.predictor.images.infer([prepared.tensor])
            embedded = EmbeddedPicture(features, prepared.geometry)
            for prompt, answer in zip(self.golden.prompts, picture.answers, strict=True):
                row = self.predictor.decode(embedded, prompt.on(prepared.geometry))
                where = f"{picture.name}, {prompt.name}"
                found = [*self._compare(DECODER, answer.outputs, row), *_compare_masks(answer, row, self._threshold)]
                outputs += placed(found, stage="", detail=where)
                results += placed(self._results(answer, row, prepared.geometry), stage="", detail=where)
        yield from placed(worst(outputs), stage=DECODER)
        yield from placed(worst(results), stage="results", prefix="from file to result: ")

    @property
    def _threshold(self) -> float:
        return self.bundle.manifest.post.score_threshold

    def _results(self, answer: GoldenAnswer, row: Row, geometry: Geometry) -> list[Check]:
        post = best_found(self.bundle.manifest.post)
        try:
            result = segment_detections(row, geometry, post, None)
        except BackendError as error:
            return [Check("", "outputs without a result", 1, 0, str(error))]
        return compare_results(answer.result, result, post)

    def _compare(self, part: str, wanted: Mapping[str, Array], row: Mapping[str, Array]) -> list[Check]:
        return [compare_output(spec, wanted.get(spec.name), row.get(spec.name)) for spec in self.specs[part]]


def part_outputs(bundle: Bundle) -> dict[str, tuple[OutputSpec, ...]]:
    """What verify compares of each part. Raises BundleError for a manifest that does not say."""
    try:
        parts = bundle.manifest.config["parts"]
        specs = {part["name"]: tuple(OutputSpec(**output) for output in part["outputs"]) for part in parts}
        if missing := {IMAGE_ENCODER, TEXT_ENCODER, DECODER} - specs.keys():
            raise KeyError(", ".join(sorted(missing)))
        return specs
    except (KeyError, TypeError) as error:
        raise BundleError(f"The parts in the manifest of {bundle.root} are not usable: {error}.") from error


def compare_output(spec: OutputSpec, wanted: Array | None, came: Array | None) -> Check:
    """The largest difference between an output and its golden sample.

    Features and masks have no unit: theirs is relative to their root mean square, where that is above 1.
    """
    subject = f"{spec.name} max abs"
    if wanted is None or came is None:
        return Check("", subject, np.inf, spec.atol, "the output is missing")
    a, b = np.asarray(wanted, np.float64), np.asarray(sample(came), np.float64)
    if a.shape != b.shape:
        return Check("", subject, np.inf, spec.atol, f"shape {came.shape}, of which {a.shape} was expected to be kept")
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return Check("", subject, np.inf, spec.atol, "there are values that are NaN or infinite")
    scale = max(1.0, float(np.sqrt((a**2).mean()))) if spec.kind in ("features", "masks") else 1.0
    return Check("", subject, float(np.abs(a - b).max(initial=0.0)) / scale, spec.atol)


def _compare_masks(answer: GoldenAnswer, row: Row, threshold: float) -> list[Check]:
    """1 - IoU of the masks that are reported, and of the best queries anyhow, in the decoder's own resolution."""
    subject = "masks 1 - IoU"
    masks, logits, presence = row.get(MASKS), answer.outputs.get(LOGITS), answer.outputs.get(PRESENCE)
    if masks is None or logits is None or presence is None:
        return [Check("", subject, np.inf, MAX_MASK_DISTANCE, "an output is missing")]
    bits = mask_bits(masks.astype(np.float32, copy=False))
    if bits.shape != answer.mask_bits.shape:
        return [Check("", subject, np.inf, MAX_MASK_DISTANCE, f"masks are {masks.shape}")]
    scores = expit(logits.astype(np.float64)) * expit(presence.astype(np.float64))
    count = max(BEST, int(np.count_nonzero(scores > threshold)))
    distances = [_mask_distance(answer.mask_bits[query], bits[query]) for query in np.argsort(-scores)[:count]]
    return [Check("", subject, max(distances), MAX_MASK_DISTANCE)]


def _mask_distance(bits: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> float:
    """1 - IoU of two packed masks; 0 for two empty ones."""
    both, either = np.bitwise_count(bits & others).sum(), np.bitwise_count(bits | others).sum()
    return float(1 - both / either) if either else 0.0
