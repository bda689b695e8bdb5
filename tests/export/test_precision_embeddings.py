"""Embeddings in half precision point where those of the float32 source do, for pictures that differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import vtk
from vtk.bundle import read_bundle
from vtk.demo_weights import dinov2_small
from vtk.errors import InputError
from vtk.exporters.family import FamilyOptions
from vtk.exporters.precision_terms import Precision
from vtk.predictor import Predictor, open_predictor
from vtk.preprocess.decode import decode
from vtk.verify_rounding import open_rounded

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
IMAGES = GOLDEN / "toy_images"
PICTURES = sorted(IMAGES.iterdir())[::3]
# DINOv3 files have the layout and the structure of the official ones, and random numbers; DINOv2's are trained.
SOURCES = {
    "dinov3-vit": ("dinov3_vit_mlp.pth", 128),
    "dinov3-vit-swiglu": ("dinov3_vit_swiglu.pth", 128),
    "dinov3-convnext": ("dinov3_convnext.pth", 128),
    "dinov2-small": (None, 112),
}
MIN_COSINE = 0.999
# Of one picture and the next: were they alike, it would mean nothing to be near to the source.
MAX_COSINE_OF_OTHERS = 0.9

Vectors = npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=SOURCES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float32."""
    (file, side), folder = SOURCES[request.param], tmp_path_factory.mktemp(request.param)
    try:
        checkpoint = dinov2_small(folder / "dinov2.safetensors") if file is None else GOLDEN / file
    except InputError as error:
        pytest.skip(f"needs the real weights. {error.hint}")
    options = FamilyOptions(size_hw=(side, side))
    return vtk.export(checkpoint, folder / "fp32", batches=[1], options=options, images=IMAGES)


@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_half_precision_keeps_the_direction(
    bundle: Path, precision: Precision, in_precision: Callable[[Path, Precision, Path], Path], tmp_path: Path
) -> None:
    """The class token, and every patch; also where each operation rounds, as on a GPU."""
    cast = read_bundle(in_precision(bundle, precision, tmp_path / precision))
    with open_predictor(read_bundle(bundle), backend="ort") as predictor:
        source = vectors(predictor)
    with open_predictor(cast, backend="ort") as predictor:
        rounded = open_rounded(cast, predictor)
        assert rounded is not None
        with rounded:
            found = [vectors(predictor), vectors(rounded)]
    for name, wanted in source.items():
        assert cosines(wanted[1:], wanted[:-1]).mean() < MAX_COSINE_OF_OTHERS
        for came in found:
            assert cosines(wanted, came[name]).min() >= MIN_COSINE


def vectors(predictor: Predictor) -> dict[str, Vectors]:
    """Each output for all pictures: (P, ..., D)."""
    prepared = [predictor.prepare(decode(picture)) for picture in PICTURES]
    rows = predictor.infer([item.tensor for item in prepared])
    return {name: np.stack([row[name] for row in rows]).astype(np.float64) for name in rows[0]}


def cosines(one: Vectors, other: Vectors) -> Vectors:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray((one * other).sum(-1) / lengths)
