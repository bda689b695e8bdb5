"""Golden checkpoints through the whole path: file → bundle → official outputs, at batch 1 and 8.

One export per file and session. With VTK_GOLDEN set to a folder, its checkpoints are exported too.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vtk
from vtk.bundle import read_bundle
from vtk.errors import UsageError
from vtk.exporters.family import FamilyOptions
from vtk.exporters.lint import lint
from vtk.postprocess.detr import BOXES, LOGITS
from vtk.postprocess.matching import match_queries
from vtk.postprocess.results import Detections
from vtk.predictor import open_predictor
from vtk.verification import verify

DATA = Path(__file__).parent / "data" / "golden"
BATCHES = (1, 8)
TOKEN_ATOL = 1e-4
BOX_ATOL, LOGIT_ATOL = 1e-4, 1e-3
NEAR_THRESHOLD = 0.305  # results start at 0.3, and scores may differ by 0.005
VIT_NAMES = {"cls": "cls", "registers": "registers", "patches": "patch"}


@dataclass(frozen=True)
class Case:
    """A checkpoint, how it is to be read, and where its official outputs are."""

    checkpoint: Path
    size: tuple[int, int]
    options: FamilyOptions

    @property
    def name(self) -> str:
        return self.checkpoint.stem

    @property
    def expected(self) -> Path:
        return self.checkpoint.with_name(f"{self.name}_expected.npz")


LVD = FamilyOptions(pretrain_data="lvd")
BACKBONES = [
    Case(DATA / "dinov3_vit_mlp.pth", (224, 224), LVD),
    Case(DATA / "dinov3_vit_swiglu.pth", (224, 224), LVD),
    Case(DATA / "dinov3_convnext.pth", (224, 224), FamilyOptions()),
]
WIDE = Case(DATA / "dinov3_vit_mlp.pth", (192, 320), LVD)
DETECTORS = [Case(DATA / "dfine_n.pth", (640, 640), FamilyOptions(family="dfine"))]
TOY = Case(DATA / "toy_deim.pth", (128, 128), FamilyOptions(family="deim", class_names=tuple("01234")))
if folder := os.environ.get("VTK_GOLDEN"):
    DETECTORS.append(Case(Path(folder) / "deim_n.pth", (640, 640), FamilyOptions(family="deim")))
    TOY = Case(Path(folder) / "toy_deim.pth", TOY.size, TOY.options)

Export = Callable[[Case], Path]


def case_id(case: Case) -> str:
    return f"{case.name}-{case.size[0]}x{case.size[1]}"


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The verified bundle of a case, exported once."""
    made: dict[Case, Path] = {}
    root = tmp_path_factory.mktemp("bundles")

    def export(case: Case) -> Path:
        if case not in made:
            output = root / case_id(case)
            made[case] = vtk.export(case.checkpoint, output, batches=BATCHES, size=case.size, options=case.options)
        return made[case]

    return export


def infer(bundle: Path, batch: int, tensor: np.ndarray) -> list[dict[str, np.ndarray]]:
    with open_predictor(read_bundle(bundle), batches=[batch]) as predictor:
        return predictor.infer_batch(batch, [tensor] * batch)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", [*BACKBONES, WIDE], ids=case_id)
def test_tokens_equal_the_official_ones(case: Case, batch: int, bundle_of: Export) -> None:
    size = f"{case.size[0]}x{case.size[1]}"
    tensor = np.load(DATA / "dinov3_inputs.npz")[f"input_{size}"][0]
    expected = np.load(case.expected)
    rows = infer(bundle_of(case), batch, tensor)
    assert len(rows) == batch
    for row in rows:
        for name, array in row.items():
            np.testing.assert_allclose(array, expected[f"{VIT_NAMES[name]}_{size}"][0], rtol=0, atol=TOKEN_ATOL)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", DETECTORS, ids=case_id)
def test_queries_equal_the_official_ones(case: Case, batch: int, bundle_of: Export) -> None:
    expected = np.load(case.expected)
    tensor = expected["input_uint8"][0].astype(np.float32) / 255
    for row in infer(bundle_of(case), batch, tensor):
        match = match_queries(expected["pred_logits"][0], expected["pred_boxes"][0], row[LOGITS], row[BOXES])
        assert match.unmatched(box_atol=BOX_ATOL, logit_atol=LOGIT_ATOL) == 0


@pytest.mark.parametrize("case", [*BACKBONES, *DETECTORS, TOY], ids=case_id)
def test_the_bundle_says_what_it_is(case: Case, bundle_of: Export) -> None:
    bundle = read_bundle(bundle_of(case))
    manifest = bundle.manifest
    assert manifest.batches == BATCHES
    assert manifest.verify["passed"] is True
    assert manifest.source["name"] == case.checkpoint.name
    assert manifest.recipe.size_hw == case.size
    for artifact in manifest.artifacts:
        report = lint(onnx.load(bundle.path(artifact.file), load_external_data=False))
        assert report.errors == ()
    weights = {file for file in manifest.files if not file.startswith("golden/")}
    assert len(weights) == 1


def test_the_toy_detector_finds_what_the_official_code_finds(bundle_of: Export) -> None:
    """JPEG, PNG, EXIF-rotated, gray and RGBA pictures: IoU at least 0.99, scores within 0.005, classes equal."""
    truth = json.loads((DATA / "toy_annotations.json").read_text())
    expected = json.loads((DATA / "toy_expected.json").read_text())
    files = [DATA / "toy_images" / image["file_name"] for image in truth["images"]]
    with vtk.load(bundle_of(TOY)) as model:
        results = model(files)
        assert [label.name for label in model.labels] == list("01234")
    assert len(files) == 24
    for image, result in zip(truth["images"], results, strict=True):
        assert isinstance(result, Detections)
        assert result.resolution_wh == (image["width"], image["height"])
        wanted = [row for row in expected if row["image_id"] == image["id"]]
        lost = [row for row in wanted if row["score"] > NEAR_THRESHOLD and not _has(result, row)]
        assert lost == [], image["file_name"]
        assert int((result.scores > NEAR_THRESHOLD).sum()) <= len(wanted), image["file_name"]


def _has(result: Detections, row: dict[str, Any]) -> bool:
    found = zip(result.xyxy, result.class_ids, result.scores, strict=True)
    return any(
        _iou(row["bbox"], box) >= 0.99 and label == row["category_id"] and abs(score - row["score"]) <= 0.005
        for box, label, score in found
    )


def _iou(xywh: list[float], box: np.ndarray) -> float:
    x, y, w, h = xywh
    width = min(x + w, box[2]) - max(x, box[0])
    height = min(y + h, box[3]) - max(y, box[1])
    shared = max(width, 0) * max(height, 0)
    return float(shared / (w * h + (box[2] - box[0]) * (box[3] - box[1]) - shared))


def test_openvino_reproduces_the_source_too(bundle_of: Export) -> None:
    for case in (BACKBONES[0], TOY):
        report = verify(bundle_of(case), backend="openvino")
        assert report.backend == "openvino"
        assert report.first_failure is None


def test_own_pictures_are_compared_with_the_checkpoint(bundle_of: Export) -> None:
    report = verify(bundle_of(TOY), images=DATA / "toy_images", checkpoint=TOY.checkpoint)
    assert report.first_failure is None
    assert any("against the reference" in check.subject for check in report.checks)


def test_another_checkpoint_is_not_taken_for_the_source(bundle_of: Export) -> None:
    with pytest.raises(UsageError, match="is not the source"):
        verify(bundle_of(BACKBONES[0]), images=DATA / "toy_images", checkpoint=BACKBONES[1].checkpoint)


BLOCKED = """
import sys

class NoExportPackages:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnxscript", "timm", "transformers"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, NoExportPackages())
import vtk
from vtk.cli.main import main
"""


def test_a_bundle_verifies_and_runs_without_torch(bundle_of: Export, tmp_path: Path) -> None:
    """Case V16: copied to the target machine, a bundle proves itself from its own data."""
    bundle = shutil.copytree(bundle_of(TOY), tmp_path / "copied")
    script = BLOCKED + (
        "code = main(['verify', sys.argv[1]])\n"
        "with vtk.load(sys.argv[1]) as model:\n"
        "    print('found', len(model(sys.argv[2])))\n"
        "sys.exit(code)\n"
    )
    picture = DATA / "toy_images" / "000.jpg"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(bundle), str(picture)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    assert "checks passed" in done.stdout
    assert int(done.stdout.split("found ")[1]) > 0
