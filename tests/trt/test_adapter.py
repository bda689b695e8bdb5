"""One adapter for three libraries: their recorded names, what is asked of them, and what they say when they refuse."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from tiny_bundles import make_api, save_graph

from vtk.errors import BackendError, ExportError, MissingDependencyError, UsageError
from vtk.exporters import to_tensorrt_api
from vtk.exporters.to_tensorrt import LayerTypes, build_engine, check_precision
from vtk.exporters.to_tensorrt_api import RTX_TARGETS, TensorRT, check_target, installed_version, load, release_of


def build(api: TensorRT, graph: Path, precision: str = "fp32", **options: Any) -> Any:
    return build_engine(api, graph, graph.with_suffix(".plan"), targets=["sm_89"], precision=precision, **options)


def test_an_engine_is_built_by_every_release(api: TensorRT, graph: Path) -> None:
    """Names that a release lacks raise AttributeError in the fake as in the library."""
    built = build(api, graph)
    assert graph.with_suffix(".plan").stat().st_size == built.num_bytes > 0
    assert built.layers.half_share == 0
    assert ("clear_flag", "TF32") in api.module.calls


@pytest.mark.parametrize("release", ["10", "11", "rtx"])
def test_networks_are_strongly_typed_in_the_way_of_each_release(release: str, graph: Path) -> None:
    api = make_api(release)
    build(api, graph)
    strongly = 1 << int(api.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert ("create_network", strongly if release == "10" else 0) in api.module.calls


def test_only_rtx_is_told_its_targets_and_only_classic_keeps_timings(api: TensorRT, graph: Path) -> None:
    built = build(api, graph, timing_cache=b"old")
    names = [call[0] for call in api.module.calls]
    assert ("set_compute_capability" in names) == (api.kind == "tensorrt_rtx")
    assert ("create_timing_cache" in names) == (api.kind == "tensorrt")
    assert built.timing_cache == (b"oldt" if api.kind == "tensorrt" else b"")


def test_the_targets_of_rtx_are_those_of_its_library() -> None:
    members = set(make_api("rtx").module.ComputeCapability.__members__) - {"NONE", "CURRENT"}
    assert {target.replace("sm_", "SM") for target in RTX_TARGETS} == members


def test_what_version_11_dropped_is_never_used(graph: Path) -> None:
    module = make_api("11").module
    assert "FP16" not in module.BuilderFlag.__members__
    assert "EXPLICIT_BATCH" not in module.NetworkDefinitionCreationFlag.__members__
    assert "FP16" in make_api("10").module.BuilderFlag.__members__


def test_a_float_graph_is_never_built_under_the_name_of_half(api: TensorRT, graph: Path) -> None:
    """Case V13: no FP16 flag, so the graph decides; a file called fp16 from a float32 graph must not come to be."""
    with pytest.raises(
        ExportError, match=r"built as fp16, but 0% of its layers and 0% of its products are in half.*--precision fp16"
    ):
        build(api, graph, "fp16")
    assert not graph.with_suffix(".plan").exists()
    assert "build_serialized_network" not in [call[0] for call in api.module.calls]


def test_a_half_graph_is_built_as_half_and_as_nothing_else(api: TensorRT, tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "half.onnx", half=True)
    assert build(api, graph, "fp16").layers.half_share == 1
    with pytest.raises(ExportError, match="built as fp32, but 100%"):
        build(api, graph, "fp32")


@pytest.mark.parametrize(
    ("counts", "products", "quantized", "allowed"),
    [
        ({"FLOAT": 4, "INT64": 9}, {"FLOAT": 2}, set(), {"fp32"}),
        ({"FLOAT": 1, "HALF": 9}, {"HALF": 4}, set(), {"fp16", "mixed"}),
        ({"FLOAT": 6, "HALF": 4}, {"FLOAT": 1, "HALF": 3}, set(), {"fp16", "mixed"}),
        ({"FLOAT": 4, "HALF": 6}, {"FLOAT": 3, "HALF": 1}, set(), {"mixed"}),
        ({"FLOAT": 1, "BF16": 3}, {"BF16": 1}, set(), {"bf16", "mixed"}),
        ({"FLOAT": 3}, {"FLOAT": 1}, {"INT8"}, {"int8"}),
        ({"HALF": 3}, {"HALF": 1}, {"FP8"}, {"fp8", "fp16", "mixed"}),
    ],
)
def test_which_names_fit_which_layers(
    counts: dict[str, int], products: dict[str, int], quantized: set[str], allowed: set[str]
) -> None:
    layers = LayerTypes(counts, products, frozenset(quantized))
    for precision in ("fp32", "fp16", "bf16", "mixed", "int8", "fp8"):
        if precision in allowed:
            check_precision(layers, precision, "graph")
        else:
            with pytest.raises(ExportError):
                check_precision(layers, precision, "graph")


def test_the_parser_names_the_node_that_it_cannot_read(api: TensorRT, graph: Path) -> None:
    """Case V18: never a bare False."""
    api.module.refuses_graphs = True
    with pytest.raises(ExportError, match=r"cannot read model\.b1\.onnx: Mystery 'node_7': Plugin not found, are the"):
        build(api, graph)


def test_the_builder_gives_the_reason_of_its_log(api: TensorRT, graph: Path) -> None:
    api.module.cannot_build = "Cannot compile operation 'node_MatMul_11' for Turing (SM75)"
    with pytest.raises(ExportError, match=r"cannot build model\.b1\.onnx for sm_89: Cannot compile .*node_MatMul_11"):
        build(api, graph)


def test_without_a_gpu_the_classic_builder_says_so(graph: Path) -> None:
    api = make_api("10")
    api.module.has_no_device = True
    with pytest.raises(BackendError, match=r"cannot start a builder here: CUDA initialization failure.*TensorRT-RTX"):
        build(api, graph)


def test_a_dynamic_batch_without_a_profile_is_refused(api: TensorRT, tmp_path: Path) -> None:
    """Case V21."""
    with pytest.raises(ExportError, match=r"dynamic shape \(-1, 3, 4, 6\).*--batch 1,8"):
        build(api, save_graph(tmp_path / "dynamic.onnx", batch="n"))


@pytest.mark.parametrize("text", ["sm_89", "sm89", "89", "8.9", " SM_89 "])
def test_a_target_may_be_written_in_several_ways(text: str) -> None:
    assert check_target(text) == "sm_89"


def test_targets_of_three_digits_and_what_is_none() -> None:
    assert check_target("12.0") == check_target("sm_120") == "sm_120"
    for text in ("", "ampere", "sm_9", "8.9.1", "sm_90a", "sm_８９"):
        with pytest.raises(UsageError, match="no GPU target"):
            check_target(text)
    with pytest.raises(UsageError, match="no GPU target") as caught:
        check_target("9" * 5000)
    assert len(str(caught.value)) < 200


def test_versions_compare_as_numbers() -> None:
    assert release_of("10.4.0") < release_of("10.13.3.9") < release_of("11.0")


def test_a_library_that_is_not_there_or_broken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_tensorrt_api, "is_installed", lambda kind: False)
    with pytest.raises(MissingDependencyError, match=r"tensorrt-rtx.*vtk-deploy\[rtx\]"):
        load("tensorrt_rtx")

    def fail(name: str) -> None:
        raise ImportError("libnvonnxparser.so.11: cannot open shared object file")

    monkeypatch.setattr(to_tensorrt_api, "is_installed", lambda kind: True)
    monkeypatch.setattr(to_tensorrt_api, "import_module", fail)
    with pytest.raises(BackendError, match=r"cannot be imported: libnvonnxparser\.so\.11"):
        load("tensorrt")


def test_a_release_from_before_strong_typing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_api("10").module
    module.__version__ = "8.6.1"
    monkeypatch.setattr(to_tensorrt_api, "is_installed", lambda kind: True)
    monkeypatch.setattr(to_tensorrt_api, "import_module", lambda kind: module)
    with pytest.raises(BackendError, match=r"8\.6\.1 is too old"):
        load("tensorrt")


def test_the_version_is_that_of_any_of_the_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"tensorrt-cu13": "11.4.0.106"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(to_tensorrt_api, "version", version)
    assert installed_version("tensorrt_rtx") is None
    assert installed_version("tensorrt") == "11.4.0.106"
