"""A job as a FiftyOne data set, by the documented structure; FiftyOne itself needs a database and is played here."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vtk.errors import MissingDependencyError, UsageError
from vtk.inputs import expand
from vtk.job_results import read_job
from vtk.run import run_job
from vtk.sinks.to_fiftyone import export_fiftyone


@dataclass
class Sample:
    """Fields are items, as in FiftyOne."""

    filepath: str
    metadata: Any
    fields: dict[str, Any] = field(default_factory=dict)

    def __setitem__(self, name: str, value: Any) -> None:
        self.fields[name] = value

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass
class ImageMetadata:
    width: int
    height: int


@dataclass
class Detection:
    label: str
    bounding_box: list[float]
    confidence: float
    mask: Any = None


@dataclass
class Detections:
    detections: list[Detection]


@dataclass
class Classification:
    label: str
    confidence: float


@dataclass
class Classifications:
    classifications: list[Classification]


@dataclass
class Dataset:
    name: str | None
    samples: list[Sample] = field(default_factory=list)

    def add_samples(self, samples: Iterable[Sample]) -> None:
        self.samples.extend(samples)


@pytest.fixture
def _fiftyone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fiftyone")
    for kind in (Sample, ImageMetadata, Detection, Detections, Classification, Classifications, Dataset):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "fiftyone", module)


def finished_job(stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path], task: str) -> Path:
    for index in range(3):
        save_picture(tmp_path / f"in/{index}.png", seed=index, size_wh=(40, 20))
    formats = {"embed": ("npz",)}.get(task, ("jsonl",))
    options = replace(stub.stub_options(formats, task=task))
    run_job(stub.StubModel(task), expand([str(tmp_path / "in")]), tmp_path / "out", options, lambda done, failed: None)
    return tmp_path / "out"


@pytest.mark.usefixtures("_fiftyone")
@pytest.mark.parametrize("task", ["detect", "segment"])
def test_every_detection_is_there(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path], task: str
) -> None:
    job = finished_job(stub, tmp_path, save_picture, task)
    dataset = export_fiftyone(job, "mine")
    assert dataset.name == "mine"
    assert [Path(sample.filepath).name for sample in dataset.samples] == ["0.png", "1.png", "2.png"]
    assert all(Path(sample.filepath).is_absolute() for sample in dataset.samples)
    for sample, result in zip(dataset.samples, read_job(job).results(), strict=True):
        assert (sample.metadata.width, sample.metadata.height) == (40, 20)
        (found,) = sample["predictions"].detections
        assert found.label == "dog"
        assert np.float32(found.confidence) == result.scores[0]
        x, y, width, height = np.array(found.bounding_box) * (40, 20, 40, 20)
        if task == "detect":
            assert np.allclose([x, y, x + width, y + height], [-1.5, 5, 20, 22])
            assert found.mask is None
        else:
            assert np.allclose([x, y, x + width, y + height], [0, 5, 20, 20]), "whole pixels inside the picture"
            assert found.mask.shape == (15, 20)
            assert np.array_equal(found.mask, result.masks[0][5:20, 0:20])


@pytest.mark.usefixtures("_fiftyone")
def test_classes_are_classifications(stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    dataset = export_fiftyone(finished_job(stub, tmp_path, save_picture, "classify"))
    assert [[item.label for item in sample["predictions"].classifications] for sample in dataset.samples] == [
        ["dog"]
    ] * 3


@pytest.mark.usefixtures("_fiftyone")
def test_embeddings_and_other_folders_are_refused(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    with pytest.raises(UsageError, match="embeddings"):
        export_fiftyone(finished_job(stub, tmp_path, save_picture, "embed"))
    with pytest.raises(UsageError, match="not the folder of a vtk job"):
        export_fiftyone(tmp_path)


def test_without_the_package_the_extra_is_named(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished_job(stub, tmp_path, save_picture, "detect")
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    with pytest.raises(MissingDependencyError) as caught:
        export_fiftyone(job)
    assert "vtk-deploy[fiftyone]" in str(caught.value)
