"""Trained detectors of every family in half precision: on real pictures they find what their float32 source finds.

The weights come from `tests/data/make_toy_weights.py`, those of toy_deim.pth from the official training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import vtk
from vtk.average_precision import average_precision
from vtk.bundle import Bundle, Label, read_bundle
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.exporters.precision_terms import Precision
from vtk.postprocess.api import postprocess
from vtk.postprocess.results import Detections, Result
from vtk.predictor import Predictor, open_predictor
from vtk.preprocess.apply import Preprocessed, preprocess
from vtk.preprocess.decode import decode
from vtk.reference import reference_rows
from vtk.verify_accuracy import read_annotations
from vtk.verify_limits import LIMITS
from vtk.verify_results import compare_found
from vtk.verify_rounding import open_rounded

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
IMAGES = GOLDEN / "toy_images"
PICTURES = sorted(IMAGES.iterdir())
CLASSES = tuple(json.loads((GOLDEN / "toy_labels.json").read_text()))
MIN_AP50 = 0.9
MAX_F1_LOSS = 0.01
MIN_HALF = 0.95


@dataclass(frozen=True)
class Toy:
    """A checkpoint of `GOLDEN`, and what it does not say. min_half: least share of half parameters in mixed."""

    file: str
    side: int
    min_half: float
    family: str | None = None
    queries: int | None = None

    @property
    def path(self) -> Path:
        return GOLDEN / self.file

    @property
    def options(self) -> FamilyOptions:
        size = (self.side, self.side)
        return FamilyOptions(family=self.family, size_hw=size, num_queries=self.queries, class_names=CLASSES)


@dataclass(frozen=True)
class Source:
    """A float32 bundle, and what the source model finds in all pictures."""

    toy: Toy
    bundle: Path
    prepared: list[Preprocessed]
    found: list[Detections]


TOYS = {
    "deim": Toy("toy_deim.pth", 128, 0.7, family="deim"),
    "deimv2-hgnet": Toy("toy_deimv2_atto.pth", 160, 0.5, queries=60),
    "deimv2-dinov3": Toy("toy_deimv2_sta.pth", 128, 0.5, queries=60),
    "rtdetrv2": Toy("toy_rtdetrv2", 128, 0.7),
    "rfdetr": Toy("toy_rfdetr", 160, 0.7),
    "yolov8": Toy("toy_yolov8.pth", 160, 0.9),
}


@pytest.fixture(scope="module", params=TOYS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    toy, folder = TOYS[request.param], tmp_path_factory.mktemp(request.param)
    bundle = vtk.export(toy.path, folder / "fp32", batches=[1], options=toy.options, images=IMAGES)
    loaded = load_model(read_checkpoint(toy.path), toy.options)
    prepared = [preprocess(decode(picture), loaded.spec.recipe) for picture in PICTURES]
    rows = reference_rows(loaded, [item.tensor for item in prepared])
    results = (postprocess(row, item.geometry, loaded.spec.post) for row, item in zip(rows, prepared, strict=True))
    return Source(toy, bundle, prepared, detections(results))


def test_the_source_finds_the_objects(source: Source) -> None:
    """Without this, equal detections would say little."""
    labels = [Label(index, name) for index, name in enumerate(CLASSES)]
    truths = read_annotations(GOLDEN / "toy_annotations.json", labels)
    assert average_precision([truths[picture.name] for picture in PICTURES], source.found)[0].mean() >= MIN_AP50


@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_half_precision_finds_the_same(
    source: Source, precision: Precision, in_precision: Callable[[Path, Precision, Path], Path], tmp_path: Path
) -> None:
    """Also where each operation rounds, as on a GPU."""
    root = in_precision(source.bundle, precision, tmp_path / precision)
    assert vtk.verify(root, backend="ort").first_failure is None
    bundle = read_bundle(root)
    for found in found_by(bundle, source.prepared):
        f1, *others = compare_found(source.found, found, bundle.manifest.post, LIMITS[precision])
        assert f1.measured <= MAX_F1_LOSS, f1
        assert all(check.passed for check in others), others
    (artifact,) = bundle.manifest.artifacts
    assert artifact.precision == precision
    least = MIN_HALF if precision == "fp16" else source.toy.min_half
    assert least <= float(artifact.builder["half_parameters"]) <= 1


def found_by(bundle: Bundle, prepared: Sequence[Preprocessed]) -> list[list[Detections]]:
    """In all pictures: by the graph, and by its twin that rounds."""
    with open_predictor(bundle, backend="ort") as predictor:
        rounded = open_rounded(bundle, predictor)
        assert rounded is not None
        with rounded:
            return [run(predictor, prepared), run(rounded, prepared)]


def run(predictor: Predictor, prepared: Sequence[Preprocessed]) -> list[Detections]:
    rows = predictor.infer([item.tensor for item in prepared])
    return detections(predictor.finish(row, item.geometry) for row, item in zip(rows, prepared, strict=True))


def detections(results: Iterable[Result]) -> list[Detections]:
    return [result for result in results if isinstance(result, Detections)]
