"""Engines in a bundle: what is built, labeled, kept, written down for later, and said when nothing can be built."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_bundles import make_bundle

from vtk.bundle import file_sha256, read_bundle, write_manifest
from vtk.engine_adding import with_engines
from vtk.engine_builds import build_engines
from vtk.engine_cache import EngineCache, default_root, digest
from vtk.engine_choice import EngineRequest, deform_form
from vtk.engine_recipe import RECIPE_NAME
from vtk.errors import BackendError, MissingDependencyError

Install = Callable[..., dict[str, Any]]


def silent(text: str) -> None:
    pass


def builds(module: Any) -> int:
    return sum(call[0] == "build_serialized_network" for call in module.calls)


def test_rtx_makes_one_file_for_all_targets_and_an_artifact_for_each(installed: Install, tmp_path: Path) -> None:
    module = installed("rtx")["tensorrt_rtx"]
    bundle = make_bundle(tmp_path / "b", batches=(1, 4))
    built = build_engines(bundle, EngineRequest(("sm_89", "sm_120")), silent)
    assert built.missing is None
    assert [(item.batch, item.target, item.backend, item.precision) for item in built.artifacts] == [
        (1, "sm_89", "tensorrt_rtx", "fp32"),
        (1, "sm_120", "tensorrt_rtx", "fp32"),
        (4, "sm_89", "tensorrt_rtx", "fp32"),
        (4, "sm_120", "tensorrt_rtx", "fp32"),
    ]
    assert len({item.file for item in built.artifacts}) == 2
    assert [call[1:] for call in module.calls if call[0] == "set_compute_capability"][:2] == [("SM89", 0), ("SM120", 1)]
    for item in built.artifacts:
        assert item.sha256 == file_sha256(bundle.path(item.file))
        assert item.builder["tensorrt_rtx"] == "1.7.1.116"
        assert item.builder["half_share"] == "0.000"
    write_manifest(bundle.root, with_engines(bundle.manifest, built))
    assert len(read_bundle(bundle.root).manifest.artifacts) == 6


def test_a_half_graph_makes_a_half_engine_and_tells_its_share(installed: Install, tmp_path: Path) -> None:
    installed("11", gpu="sm_90")
    built = build_engines(make_bundle(tmp_path / "b", precision="fp16"), EngineRequest(), silent)
    (engine,) = built.artifacts
    assert (engine.backend, engine.precision, engine.target) == ("tensorrt", "fp16", "sm_90")
    assert engine.builder["half_share"] == "1.000"
    assert "fp16, 100% half" in built.lines[0]


def test_a_second_build_comes_from_the_cache(installed: Install, tmp_path: Path) -> None:
    module = installed("rtx")["tensorrt_rtx"]
    bundle = make_bundle(tmp_path / "b")
    first = build_engines(bundle, EngineRequest(("sm_89",)), silent)
    second = build_engines(bundle, EngineRequest(("sm_89",)), silent)
    assert second.artifacts == first.artifacts
    assert "from the cache" in second.lines[0]
    assert builds(module) == 1


@pytest.mark.parametrize("change", ["weights", "graph", "version", "target", "precision"])
def test_the_cache_tells_apart_what_makes_another_engine(
    change: str, installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = installed("rtx")["tensorrt_rtx"]
    bundle = make_bundle(tmp_path / "b", files={"model.weights": "1" * 64})
    build_engines(bundle, EngineRequest(("sm_89",)), silent)
    targets = ("sm_89",)
    if change == "weights":
        bundle = replace(bundle, manifest=replace(bundle.manifest, files={"model.weights": "2" * 64}))
    elif change == "graph":
        (graph,) = bundle.manifest.artifacts
        bundle = replace(bundle, manifest=replace(bundle.manifest, artifacts=(replace(graph, sha256="3" * 64),)))
    elif change == "precision":
        bundle = make_bundle(tmp_path / "half", precision="fp16")
    elif change == "target":
        targets = ("sm_86",)
    else:
        monkeypatch.setattr("vtk.engine_choice.installed_version", {"tensorrt_rtx": "1.8.0"}.get)
    build_engines(bundle, EngineRequest(targets), silent)
    assert builds(module) == 2


def test_timings_of_one_build_serve_the_next(installed: Install, tmp_path: Path) -> None:
    module = installed("10", gpu="sm_89")["tensorrt"]
    build_engines(make_bundle(tmp_path / "b", batches=(1, 2)), EngineRequest(), silent)
    assert [call[1] for call in module.calls if call[0] == "create_timing_cache"] == [b"", b"t"]


def test_a_damaged_entry_counts_as_none(tmp_path: Path) -> None:
    cache, plan = EngineCache(tmp_path / "cache"), tmp_path / "plan"
    plan.write_bytes(b"engine")
    cache.put("key", plan, {"layers": "3"})
    taken = cache.take("key", tmp_path / "out" / "plan")
    assert taken is not None
    assert taken["layers"] == "3"
    assert (tmp_path / "out" / "plan").read_bytes() == b"engine"
    (tmp_path / "cache" / "key.plan").write_bytes(b"engina")
    assert cache.take("key", tmp_path / "other") is None
    assert cache.take("absent", tmp_path / "other") is None


def test_the_cache_drops_the_oldest_and_survives_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_bytes(bytes(100))
    cache = EngineCache(tmp_path / "cache", max_bytes=250)
    for key in "abcd":
        cache.put(key, plan, {})
    kept = [key for key in "abcd" if cache.take(key, tmp_path / "out") is not None]
    assert len(kept) == 2
    assert "d" in kept
    EngineCache(plan / "below a file").put("a", plan, {})
    assert EngineCache(plan / "below a file").take("a", tmp_path / "out") is None


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert default_root() is not None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    assert default_root() is None


def test_keys_do_not_depend_on_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})


def test_a_known_bad_release_is_refused_before_the_build(installed: Install, tmp_path: Path) -> None:
    """Case V04."""
    module = installed("10", gpu="sm_89")["tensorrt"]
    bundle = make_bundle(tmp_path / "b", family="dinov3-vit")
    built = build_engines(bundle, EngineRequest(), silent)
    assert built.warnings == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vtk.engine_choice.installed_version", {"tensorrt": "10.4.0"}.get)
        with pytest.raises(BackendError, match=r"10\.4\.0 is known to be wrong for dinov3-vit"):
            build_engines(bundle, EngineRequest(), silent)
    assert builds(module) == 1


def test_the_graph_form_follows_the_engines_that_are_asked_for(installed: Install) -> None:
    assert deform_form(None, "dfine") == "grid_sample"
    for releases, gpu in ((("11",), "sm_89"), (("rtx",), None), ((), None)):
        installed(*releases, gpu=gpu)
        assert deform_form(EngineRequest(), "dfine") == "gather"
        assert deform_form(EngineRequest(), "yolov8") == "grid_sample"


def test_graphs_with_grid_sample_warn_and_written_out_ones_do_not(installed: Install, tmp_path: Path) -> None:
    installed("11", gpu="sm_89")
    bundle = make_bundle(tmp_path / "b", family="dfine")
    assert "--deform gather" in build_engines(bundle, EngineRequest(), silent).warnings[0]
    (graph,) = bundle.manifest.artifacts
    gathered = replace(graph, builder={"opset": "18", "deform": "gather"})
    bundle = replace(bundle, manifest=replace(bundle.manifest, artifacts=(gathered,)))
    assert build_engines(bundle, EngineRequest(), silent).warnings == ()


def test_where_nothing_is_installed_the_recipe_says_how(installed: Install, tmp_path: Path) -> None:
    installed()
    bundle = make_bundle(tmp_path / "b", batches=(1, 8))
    built = build_engines(bundle, EngineRequest(("sm_89",)), silent)
    assert built.artifacts == ()
    assert isinstance(built.missing, MissingDependencyError)
    assert built.files == {RECIPE_NAME: file_sha256(bundle.path(RECIPE_NAME))}
    recipe = json.loads(bundle.path(RECIPE_NAME).read_text())
    assert recipe["command"] == "vtk build BUNDLE --target sm_89"
    assert [(engine["graph"], engine["batch"]) for engine in recipe["engines"]] == [
        ("model.b1.onnx", 1),
        ("model.b8.onnx", 8),
    ]
    assert build_engines(bundle, EngineRequest(("sm_89",), build=False), silent).missing is None


def test_the_recipe_of_classic_tensorrt_holds_the_command_of_its_own_tool(installed: Install, tmp_path: Path) -> None:
    """No precision flag: 11 has none, and on 10 it would override the graph."""
    installed()
    bundle = make_bundle(tmp_path / "b")
    build_engines(bundle, EngineRequest(("sm_90",), build=False), silent)
    command = json.loads(bundle.path(RECIPE_NAME).read_text())["engines"][0]["trtexec"]
    assert command.startswith("trtexec --onnx=model.b1.onnx --saveEngine=engines/")
    assert "--stronglyTyped" in command
    assert "--fp16" not in command


def test_new_engines_take_the_place_of_old_ones_for_the_same_gpu(installed: Install, tmp_path: Path) -> None:
    installed("rtx")
    bundle = make_bundle(tmp_path / "b")
    manifest = with_engines(bundle.manifest, build_engines(bundle, EngineRequest(("sm_89",)), silent))
    bundle = replace(bundle, manifest=manifest)
    again = with_engines(manifest, build_engines(bundle, EngineRequest(("sm_89", "sm_86")), silent))
    assert [item.target for item in again.artifacts] == ["any", "sm_89", "sm_86"]
