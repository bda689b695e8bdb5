"""`vtk export --trt` as typed: engines, or the bundle with the recipe and a clear word about what is missing."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vtk.bundle import Artifact, read_bundle
from vtk.cli.main import main
from vtk.engines.tensorrt import TensorRTEngine

FAKES = Path(__file__).parents[1] / "data" / "tensorrt"
Run = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def no_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees engines that another one, or a user, has built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def export(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exports the tiny checkpoint to `out` with more flags; exit code and stderr."""

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
    monkeypatch.setattr("vtk.engine_recipe.gpu_target", lambda: None)


def engines(bundle: Path) -> list[Artifact]:
    return [item for item in read_bundle(bundle).manifest.artifacts if item.backend != "onnx"]


@pytest.mark.usefixtures("bare")
def test_what_is_missing_ends_non_zero_and_leaves_the_bundle_with_its_recipe(export: Run, tmp_path: Path) -> None:
    code, err = export("--trt", "--target", "sm_89")
    assert code == 2
    assert "tensorrt-rtx" in err
    assert "pip install 'vtk-deploy[rtx]'" in err
    assert "engines/recipe.json" in err
    assert "'vtk build BUNDLE' does it" in err
    manifest = read_bundle(tmp_path / "out").manifest
    assert manifest.verify["passed"] is True
    assert "engines/recipe.json" in manifest.files
    recipe = json.loads((tmp_path / "out" / "engines" / "recipe.json").read_text())
    assert recipe["targets"] == ["sm_89"]


@pytest.mark.usefixtures("bare")
def test_a_build_without_a_gpu_follows_the_recipe(
    export: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--trt", "--target", "sm_89", "--no-build")[0] == 0
    assert main(["build", str(tmp_path / "out")]) == 2
    assert "Building for sm_89 needs the package 'tensorrt-rtx'" in capsys.readouterr().err
    assert main(["build", str(tmp_path / "out"), "--target", "sm_120"]) == 2
    assert "Building for sm_120 needs" in capsys.readouterr().err


def test_a_build_with_a_gpu_is_for_that_gpu(gpu: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "copied"
    shutil.copytree(tiny_bundle, bundle)
    assert main(["build", str(bundle), "--no-build", "--target", "sm_89"]) == 0
    assert main(["build", str(bundle)]) == 0
    assert {item.target for item in engines(bundle)} == {"sm_90"}


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


@pytest.mark.parametrize("place", ["out", "out/models", "photos", "notes.txt"])
def test_a_place_for_no_model_repository_is_refused_before_any_work(place: str, export: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "beach.jpg").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    code, err = export("--triton", tmp_path / place)
    assert code == 2
    assert "Choose another --triton folder" in " ".join(err.split())
    assert "read " not in err
    assert not (tmp_path / "out").exists()


def load_fake(name: str) -> ModuleType:
    """A module of the data folder of the engine tests."""
    spec = importlib.util.spec_from_file_location(name, FAKES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with an sm_90 GPU and TensorRT 11, both fake: engines compute what their graphs do."""
    fakes = load_fake("fake_tensorrt")
    library, cuda = fakes.fake_module("11"), fakes.FakeCuda("sm_90")
    for where in ("vtk.engine_choice", "vtk.engines.hosts"):
        monkeypatch.setattr(f"{where}.installed_version", {"tensorrt": library.__version__}.get)
        monkeypatch.setattr(f"{where}.gpu_target", lambda: "sm_90")
    monkeypatch.setattr("vtk.engine_recipe.gpu_target", lambda: "sm_90")
    monkeypatch.setattr("vtk.exporters.to_tensorrt_api.is_installed", lambda kind: kind == "tensorrt")
    monkeypatch.setattr("vtk.exporters.to_tensorrt_api.import_module", lambda kind: library)
    monkeypatch.setattr("vtk.engines.cuda_driver._load", lambda: cuda)
    return library


def calls(library: Any, name: str) -> int:
    return sum(call[0] == name for call in library.calls)


def test_where_there_is_a_gpu_engines_are_verified_and_used(
    gpu: Any, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundle comes from a machine without TensorRT; `vtk build` on the target completes it (case V16)."""
    bundle = tmp_path / "copied"
    shutil.copytree(tiny_bundle, bundle)
    assert main(["build", str(bundle)]) == 0, capsys.readouterr().err
    assert "tensorrt on cuda" in capsys.readouterr().err
    assert [(item.backend, item.target, item.batch) for item in engines(bundle)] == [
        ("tensorrt", "sm_90", 1),
        ("tensorrt", "sm_90", 4),
    ]
    runs = calls(gpu, "execute")
    assert runs > 0
    assert main(["verify", str(bundle), "--backend", "tensorrt"]) == 0
    assert main(["verify", str(bundle), "--backend", "ort"]) == 0
    assert calls(gpu, "execute") == 2 * runs


def test_an_engine_that_is_wrong_never_enters_the_manifest(
    gpu: Any, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases V01, V02: one row of a batch is off, as from a miscompiled kernel; the build passed, verify does not."""
    bundle = tmp_path / "copied"
    shutil.copytree(tiny_bundle, bundle)
    right = TensorRTEngine.infer

    def wrong(engine: TensorRTEngine, feeds: Any) -> Any:
        outputs = right(engine, feeds)
        if engine.inputs[0].shape[0] == 4:
            outputs["logits"][2] += 0.5
        return outputs

    monkeypatch.setattr(TensorRTEngine, "infer", wrong)
    assert main(["build", str(bundle)]) == 1
    err = capsys.readouterr().err
    assert "engines do not reproduce" in err
    assert "batch 4" in err
    assert engines(bundle) == []
    assert list((bundle / "engines").glob("*.plan")) == []


def test_a_build_that_fails_leaves_the_engines_that_were_there(
    gpu: Any, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "copied"
    shutil.copytree(tiny_bundle, bundle)
    assert main(["build", str(bundle)]) == 0
    before = engines(bundle)
    monkeypatch.setattr(
        TensorRTEngine, "infer", lambda engine, feeds: {"logits": np.zeros(engine.outputs[0].shape, np.float32)}
    )
    gpu.plan_suffix = b" "
    shutil.rmtree(tmp_path / "cache")
    assert main(["build", str(bundle)]) == 1
    assert engines(bundle) == before  # reading compares every file with its SHA-256


def test_engines_of_an_older_library_give_way_to_new_ones(gpu: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "copied"
    shutil.copytree(tiny_bundle, bundle)
    assert main(["build", str(bundle)]) == 0
    gpu.plan_suffix = b" "
    shutil.rmtree(tmp_path / "cache")
    assert main(["build", str(bundle)]) == 0
    assert {path.name for path in (bundle / "engines").glob("*.plan")} == {
        Path(item.file).name for item in engines(bundle)
    }
