"""`vtk export --trt` as typed: engines, or the bundle with the recipe and a clear word about what is missing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.bundle import Artifact, read_bundle
from vtk.cli.main import main

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def export(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Exports the tiny checkpoint to `out` with more flags; exit code and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def command(*flags: object) -> tuple[int, str]:
        code = main(["export", str(checkpoint), "-o", str(tmp_path / "out"), "--batch", "1", *map(str, flags)])
        return code, capsys.readouterr().err

    return command


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, TensorRT and TensorRT-RTX."""
    for where in ("vtk.engine_choice", "vtk.engines.hosts"):
        monkeypatch.setattr(f"{where}.installed_version", lambda kind: None)
        monkeypatch.setattr(f"{where}.gpu_target", lambda: None)


def engines(bundle: Path) -> list[Artifact]:
    return [item for item in read_bundle(bundle).manifest.artifacts if item.backend != "onnx"]


@pytest.mark.usefixtures("bare")
def test_what_is_missing_ends_non_zero_and_leaves_the_bundle_with_its_recipe(export: Run, tmp_path: Path) -> None:
    code, err = export("--trt", "--target", "sm_89")
    assert code == 2
    assert "tensorrt-rtx" in err
    assert "pip install 'vtk-deploy[rtx]'" in err
    assert "engines/recipe.json" in err
    manifest = read_bundle(tmp_path / "out").manifest
    assert manifest.verify["passed"] is True
    assert "engines/recipe.json" in manifest.files
    recipe = json.loads((tmp_path / "out" / "engines" / "recipe.json").read_text())
    assert recipe["targets"] == ["sm_89"]


@pytest.mark.usefixtures("bare")
def test_who_asks_for_the_recipe_alone_gets_it(export: Run, tmp_path: Path) -> None:
    code, err = export("--trt", "--target", "sm_90", "--no-build")
    assert code == 0, err
    assert engines(tmp_path / "out") == []
    assert (tmp_path / "out" / "engines" / "recipe.json").exists()


@pytest.mark.usefixtures("bare")
def test_a_target_that_cannot_be_built_here_is_refused_before_the_export(export: Run, tmp_path: Path) -> None:
    code, err = export("--trt", "--target", "sm_100")
    assert code == 2
    assert "classic TensorRT" in err
    assert "read tiny" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [["--target", "sm_89"], ["--no-build"]])
def test_flags_without_trt_are_refused(export: Run, flags: list[str]) -> None:
    code, err = export(*flags)
    assert code == 2
    assert "means nothing without --trt" in err


def test_a_target_that_is_none_is_refused(export: Run) -> None:
    code, err = export("--trt", "--target", "ampere")
    assert code == 2
    assert "'ampere' is no GPU target" in err


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_real_engines_are_in_the_manifest_with_the_precision_of_their_graph(
    precision: str, export: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setattr("vtk.engine_choice.gpu_target", lambda: None)
    monkeypatch.setattr("vtk.engines.hosts.gpu_target", lambda: None)
    code, err = export("--trt", "--target", "sm_89,sm_120", "--precision", precision)
    assert code == 0, err
    made = engines(tmp_path / "out")
    assert [(item.backend, item.target, item.precision) for item in made] == [
        ("tensorrt_rtx", "sm_89", precision),
        ("tensorrt_rtx", "sm_120", precision),
    ]
    assert all((float(item.builder["half_share"]) > 0) == (precision == "fp16") for item in made)
    assert f"{precision}, " in err


def test_the_graphs_say_how_they_are_written(export: Run, tmp_path: Path) -> None:
    assert export("--attn", "fused", "--deform", "gather")[0] == 0
    (graph,) = read_bundle(tmp_path / "out").manifest.artifacts
    assert (graph.builder["attn"], graph.builder["deform"]) == ("fused", "gather")


def test_a_model_repository_is_written_beside_the_bundle(export: Run, tmp_path: Path) -> None:
    code, err = export("--triton", tmp_path / "models")
    assert code == 0, err
    assert (tmp_path / "models" / "out_b1" / "config.pbtxt").read_text().startswith('name: "out_b1"\n')
    assert "out_b1" in err
