"""Fixtures that several folders of tests share."""

import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.demo_weights import smollm2
from vtk.errors import InputError

DATA = Path(__file__).parent / "data"


def load_module(path: Path) -> ModuleType:
    """A module of the data folder, which is no package; afterwards tests may import it by its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


load_module(DATA / "llm/fake_engine.py")


@pytest.fixture(autouse=True)
def _restored_logs() -> Iterator[None]:
    """`vtk serve` in this process sends logs to its stderr, which pytest closes; threads of later tests log too."""
    root, vtk = logging.getLogger(), logging.getLogger("vtk")
    levels = root.level, vtk.level
    yield
    root.handlers = [handler for handler in root.handlers if type(handler) is not logging.StreamHandler]
    root.setLevel(levels[0])
    vtk.setLevel(levels[1])


@pytest.fixture(scope="session")
def recording_device() -> Any:
    """`RecordingDevice` of `data/recording_device.py`: a device that notes every access that nothing orders."""
    return load_module(DATA / "recording_device.py").RecordingDevice


@pytest.fixture(scope="session")
def stub() -> ModuleType:
    """The module `data/stub_model.py`, which is also run as a script."""
    return load_module(DATA / "stub_model.py")


@pytest.fixture(scope="session")
def prompted() -> ModuleType:
    """The module `data/prompted_bundle.py`, which writes a small promptable model."""
    return load_module(DATA / "prompted_bundle.py")


@pytest.fixture(scope="session")
def prompted_bundle(prompted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of task segment that answers in milliseconds, with batch sizes 1 and 2."""
    root: Path = prompted.write_prompted_bundle(tmp_path_factory.mktemp("prompted") / "bundle", batches=(1, 2)).root
    return root


@pytest.fixture(scope="session")
def pointed_bundle(prompted: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, which also takes points."""
    root: Path = prompted.write_prompted_bundle(tmp_path_factory.mktemp("pointed") / "bundle", points=True).root
    return root


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The packaged SmolLM2, found without importing its package."""
    try:
        return smollm2()
    except InputError as error:
        pytest.skip(f"needs the real model. {error.hint}")


@pytest.fixture
def save_picture() -> Callable[..., Path]:
    """Writes a picture whose pixels follow from `seed`, in the format of its suffix."""

    def save(path: Path, seed: int = 0, size_wh: tuple[int, int] = (24, 16), **options: object) -> Path:
        pixels = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **options)
        return path

    return save


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained toy detector as a verified bundle with batch sizes 1 and 8, exported once per session."""
    import vtk
    from vtk.exporters.family import FamilyOptions

    names = tuple(json.loads((DATA / "golden/toy_labels.json").read_text()))
    options = FamilyOptions(family="deim", class_names=names)
    output = tmp_path_factory.mktemp("toy") / "bundle"
    return vtk.export(DATA / "golden/toy_deim.pth", output, batches=(1, 8), options=options)


@pytest.fixture(scope="session")
def sam3_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reduced SAM3 as a verified bundle in parts, its image encoder at batch sizes 1 and 2; once per session."""
    import vtk

    folder = tmp_path_factory.mktemp("sam3")
    for name, target in (("sam3_small.pt", "sam3_small.pt"), ("sam3_small_config.json", "config.json")):
        (folder / target).symlink_to(DATA / "golden" / name)
    return vtk.export(folder / "sam3_small.pt", folder / "bundle", batches=(1, 2))


@pytest.fixture(scope="session")
def sam3_tracker() -> ModuleType:
    """The module `data/sam3_tracker.py`, which makes the reduced SAM3 with a tracker of random weights."""
    return load_module(DATA / "sam3_tracker.py")


@pytest.fixture(scope="session")
def sam3_point_bundle(sam3_tracker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reduced SAM3 with a tracker, as a verified bundle that takes points; once per session."""
    import vtk

    folder, golden = tmp_path_factory.mktemp("sam3_points"), DATA / "golden"
    tensors = sam3_tracker.official_tensors(golden, sam3_tracker.make_tracker(golden))
    return vtk.export(sam3_tracker.write_official(folder, golden, tensors), folder / "bundle")
