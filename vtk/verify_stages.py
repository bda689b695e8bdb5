"""The stages of a verification: what runs, in which order, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import BackendError, BundleError, ImageError
from vtk.exporters.family import OutputKind, OutputSpec
from vtk.golden import Golden, GoldenPicture, pixels_sha256
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections, Result
from vtk.predictor import Predictor
from vtk.preprocess.apply import Preprocessed
from vtk.preprocess.decode import decode
from vtk.preprocess.resize import RGBImage
from vtk.verify_limits import limits_of
from vtk.verify_outputs import Row, compare_rows
from vtk.verify_report import Check, placed, worst
from vtk.verify_results import compare_found, compare_ranks, compare_results
from vtk.verify_rounding import open_rounded
from vtk.verify_variation import compare_variation

Tensor: TypeAlias = npt.NDArray[np.float32]
ReferenceRows: TypeAlias = Callable[[Sequence[Tensor]], list[dict[str, Array]]]

# What is compared where a recipe reports nothing of any picture: a bundle must not pass because it finds nothing.
BEST_DETECTIONS = 20
# One step of an 8-bit channel: what two correct decoders or resizers may be apart. `+ 1e-3` is float rounding.
MAX_GRAY_LEVELS = 1.0 + 1e-3


def verify_golden(
    bundle: Bundle, predictor: Predictor, golden: Golden, progress: Callable[[str], None]
) -> Iterator[Check]:
    """All checks on the bundle's own pictures, in the order of the path from file to result."""
    return _Verification(bundle, predictor, golden, progress).run()


def verify_pictures(
    bundle: Bundle,
    predictor: Predictor,
    pictures: Sequence[tuple[str, RGBImage]],
    reference: ReferenceRows | None,
) -> list[Check]:
    """The user's own pictures (name and pixels): every batch size against `reference`, or the smallest without one."""
    names = [name for name, _ in pictures]
    prepared = [predictor.prepare(picture) for _, picture in pictures]
    tensors = [item.tensor for item in prepared]
    first, *others = predictor.batch_sizes
    against = "the reference" if reference is not None else f"batch {first}"
    wanted = reference(tensors) if reference is not None else _run_batch(predictor, first, tensors)[: len(tensors)]
    compare = _Comparison(bundle, predictor)
    checks: list[Check] = []
    for batch in predictor.batch_sizes if reference is not None else others:
        rows = _run_batch(predictor, batch, tensors)[: len(tensors)]
        where = f"batch {batch} against {against}: "
        checks += placed(compare.rows(wanted, rows, names, prepared), stage="pictures", prefix=where)
        results = compare.finish(wanted, prepared), compare.finish(rows, prepared)
        checks += placed(compare.results(*results, names), stage="pictures", prefix=where)
    return worst(checks)


class _Comparison:
    """Rows and results of several pictures, compared as the bundle's manifest says."""

    def __init__(self, bundle: Bundle, predictor: Predictor) -> None:
        self.manifest = bundle.manifest
        self.predictor = predictor
        self.specs = _output_specs(bundle)
        self.limits = limits_of(bundle.manifest)

    def rows(
        self, wanted: Sequence[Row], rows: Sequence[Row], names: Sequence[str], prepared: Sequence[Preprocessed]
    ) -> list[Check]:
        """Raw outputs; for detections in reduced precision, what the recipe makes of them."""
        found: list[Check] = []
        for reference, row, name in zip(wanted, rows, names, strict=True):
            checks = compare_rows(
                reference, row, self.specs, score_threshold=self.manifest.post.score_threshold, limits=self.limits
            )
            found += placed(checks, stage="", detail=name)
        checks = worst(found)
        if self.limits.elementwise or self.manifest.task != "detect" or not all(check.passed for check in checks):
            return checks
        return checks + self._found(wanted, rows, prepared)

    def results(self, wanted: Sequence[Result], results: Sequence[Result], names: Sequence[str]) -> list[Check]:
        post, found = self.manifest.post, list[Check]()
        for reference, result, name in zip(wanted, results, names, strict=True):
            found += placed(compare_results(reference, result, post, self.limits), stage="", detail=name)
        if self.manifest.task == "detect" and not self.limits.elementwise:
            found += compare_found(wanted, results, post, self.limits)
        return worst(found) + compare_ranks(wanted, results, self.limits)

    def finish(
        self, rows: Sequence[Row], prepared: Sequence[Preprocessed], post: PostRecipe | None = None
    ) -> list[Result]:
        pairs = zip(rows, prepared, strict=True)
        return [self.predictor.finish(row, item.geometry, post=post) for row, item in pairs]

    def _found(self, wanted: Sequence[Row], rows: Sequence[Row], prepared: Sequence[Preprocessed]) -> list[Check]:
        post = self.manifest.post
        if not any(isinstance(item, Detections) and len(item) for item in self.finish(wanted, prepared)):
            post = replace(post, score_threshold=0.0, max_detections=min(BEST_DETECTIONS, post.max_detections))
        return compare_found(self.finish(wanted, prepared, post), self.finish(rows, prepared, post), post, self.limits)


class _Verification:
    """One pass over the golden data with one predictor."""

    def __init__(self, bundle: Bundle, predictor: Predictor, golden: Golden, progress: Callable[[str], None]) -> None:
        self.bundle = bundle
        self.predictor = predictor
        self.golden = golden
        self.progress = progress
        self.compare = _Comparison(bundle, predictor)
        self.names = [picture.name for picture in golden.pictures]
        self.tensors = [picture.tensor for picture in golden.pictures]
        self.wanted: list[Row] = [picture.outputs for picture in golden.pictures]
        self.results = [picture.result for picture in golden.pictures]

    def run(self) -> Iterator[Check]:
        yield self._reference()
        try:
            pictures = [decode(picture.data) for picture in self.golden.pictures]
        except ImageError as error:
            yield Check("decode", "pictures that do not decode", 1, 0, str(error))
            return
        yield self._decode(pictures)
        prepared = [self.predictor.prepare(picture) for picture in pictures]
        yield from self._preprocess(prepared)
        rows = {}
        for batch in self.predictor.batch_sizes:
            self.progress(f"batch {batch}")
            yield from self._equal_rows(batch, prepared[0])
            full = _run_batch(self.predictor, batch, self.tensors)
            yield from self._engine(batch, full, prepared)
            rows[batch] = full[: len(self.tensors)]
        yield from self._batches(rows, prepared)
        yield from self._finished("postprocess", "golden outputs: ", self.wanted, prepared)
        for batch, row in rows.items():
            yield from self._finished("results", f"batch {batch}: ", row, prepared)
        self.progress("from file to result")
        whole = self.predictor.infer([item.tensor for item in prepared])
        yield from self._finished("results", "from file to result: ", whole, prepared)
        for batch, row in rows.items():
            yield from self._variation("variation", f"batch {batch}: ", row)
        yield from self._rounding(prepared)

    def _reference(self) -> Check:
        difference = self.golden.max_difference
        return Check("reference", "difference between two runs of the source model", difference, 0)

    def _decode(self, pictures: Sequence[RGBImage]) -> Check:
        changed = [
            picture.name
            for picture, pixels in zip(self.golden.pictures, pictures, strict=True)
            if pixels_sha256(pixels) != picture.pixels_sha256
        ]
        return Check("decode", "pictures with other pixels", len(changed), 0, ", ".join(changed))

    def _preprocess(self, prepared: Sequence[Preprocessed]) -> list[Check]:
        recipe = self.bundle.manifest.recipe
        other = recipe.digest != self.golden.recipe_sha256
        pairs = zip(self.golden.pictures, prepared, strict=True)
        distances = [self._gray_levels(picture, item) for picture, item in pairs]
        return [
            Check("preprocess", "recipe is another one", int(other), 0),
            Check("preprocess", "gray levels from the golden tensor", max(distances), MAX_GRAY_LEVELS),
        ]

    def _gray_levels(self, picture: GoldenPicture, item: Preprocessed) -> float:
        std = np.array(self.bundle.manifest.recipe.std, np.float64)[:, None, None]
        if picture.tensor.shape != item.tensor.shape:
            return float("inf")
        return float((np.abs(picture.tensor.astype(np.float64) - item.tensor) * std * 255).max())

    def _engine(self, batch: int, rows: Sequence[Row], prepared: Sequence[Preprocessed]) -> list[Check]:
        count = len(self.wanted)
        wanted = [self.wanted[row % count] for row in range(len(rows))]
        pictures = [prepared[row % count] for row in range(len(rows))]
        names = [f"{self.names[row % count]} in row {row % batch}" for row in range(len(rows))]
        return placed(self.compare.rows(wanted, rows, names, pictures), stage="engine", prefix=f"batch {batch}: ")

    def _equal_rows(self, batch: int, picture: Preprocessed) -> list[Check]:
        """The same picture in every row gives the same answer in every row."""
        if batch == 1:
            return []
        rows = self.predictor.infer_batch(batch, [self.tensors[0]] * batch)
        names = [f"row {row}" for row in range(batch)]
        checks = self.compare.rows([rows[0]] * batch, rows, names, [picture] * batch)
        return placed(checks, stage="rows", prefix=f"batch {batch}: rows differ, ")

    def _batches(self, rows: dict[int, list[dict[str, Array]]], prepared: Sequence[Preprocessed]) -> Iterator[Check]:
        first, *others = rows
        for batch in others:
            checks = self.compare.rows(rows[first], rows[batch], self.names, prepared)
            yield from placed(checks, stage="batches", prefix=f"batch {batch} against batch {first}: ")

    def _finished(self, stage: str, prefix: str, rows: Sequence[Row], prepared: Sequence[Preprocessed]) -> list[Check]:
        try:
            results = self.compare.finish(rows, prepared)
        except BackendError as error:
            return [Check(stage, f"{prefix}outputs without a result", 1, 0, str(error))]
        return placed(self.compare.results(self.results, results, self.names), stage=stage, prefix=prefix)

    def _variation(self, stage: str, prefix: str, rows: Sequence[Row]) -> list[Check]:
        specs = [spec for spec in self.compare.specs if all(_usable(self.wanted[0], row, spec.name) for row in rows)]
        return placed(compare_variation(self.wanted, rows, specs), stage=stage, prefix=prefix)

    def _rounding(self, prepared: Sequence[Preprocessed]) -> Iterator[Check]:
        """What an engine that computes in the precision of the graphs will answer, where this one does not."""
        rounded = open_rounded(self.bundle, self.predictor)
        if rounded is None:
            return
        with rounded:
            batch = rounded.batch_sizes[0]
            self.progress(f"batch {batch}, rounded")
            rows = _run_batch(rounded, batch, self.tensors)[: len(self.tensors)]
        prefix = f"batch {batch}, rounded: "
        yield from placed(self.compare.rows(self.wanted, rows, self.names, prepared), stage="rounding", prefix=prefix)
        yield from self._finished("rounding", prefix, rows, prepared)
        yield from self._variation("rounding", prefix, rows)


def _run_batch(predictor: Predictor, batch: int, tensors: Sequence[Tensor]) -> list[dict[str, Array]]:
    """Row i is tensor i modulo their number: full calls only, so that pictures come again where rows are left."""
    rows: list[dict[str, Array]] = []
    for start in range(0, len(tensors), batch):
        filled = [tensors[(start + offset) % len(tensors)] for offset in range(batch)]
        rows += predictor.infer_batch(batch, filled)
    return rows


def _output_specs(bundle: Bundle) -> tuple[OutputSpec, ...]:
    try:
        specs = tuple(OutputSpec(**item) for item in bundle.manifest.outputs)
        if not specs:
            raise TypeError("there are none")
        for spec in specs:
            check_spec(spec)
        return specs
    except TypeError as error:
        raise BundleError(f"The outputs in the manifest of {bundle.root} are not usable: {error}.") from error


def check_spec(spec: OutputSpec) -> None:
    """Raise TypeError for what tells of no output."""
    numbers = (spec.atol,) if spec.score_atol is None else (spec.atol, spec.score_atol)
    if not isinstance(spec.name, str) or spec.kind not in get_args(OutputKind):
        raise TypeError(f"{spec.name!r} is of the kind {spec.kind!r}")
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError(f"the limits of {spec.name} are {numbers}")


def _usable(wanted: Row, row: Row, name: str) -> bool:
    return name in row and row[name].shape == wanted[name].shape and bool(np.isfinite(row[name]).all())
