"""Running engines: on a fake GPU with a fake library, chosen from a bundle only where they were built for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tiny_bundles import make_bundle

from vtk.bundle import Artifact, Bundle
from vtk.cuda_slot import StreamEngine
from vtk.engine_adding import with_engines
from vtk.engine_builds import build_engines
from vtk.engine_choice import EngineRequest
from vtk.engines.cuda_driver import CudaDevice, gpu_target
from vtk.engines.hosts import Host, check_artifact, fits
from vtk.engines.open import open_engine
from vtk.engines.select import select_artifacts
from vtk.engines.tensorrt import open_tensorrt
from vtk.errors import BackendError, UsageError
from vtk.predictor import open_predictor

Install = Callable[..., dict[str, Any]]
RELEASES = {"10": "tensorrt", "11": "tensorrt", "rtx": "tensorrt_rtx"}


def built_bundle(root: Path, batches: tuple[int, ...] = (1,)) -> Bundle:
    bundle = make_bundle(root, batches=batches)
    built = build_engines(bundle, EngineRequest(), lambda text: None)
    return replace(bundle, manifest=with_engines(bundle.manifest, built))


def engine_of(bundle: Bundle) -> Artifact:
    return next(item for item in bundle.manifest.artifacts if item.backend != "onnx")


@pytest.mark.parametrize("release", list(RELEASES))
def test_an_engine_computes_what_its_graph_does(release: str, installed: Install, cuda: Any, tmp_path: Path) -> None:
    module = installed(release, gpu="sm_89")[RELEASES[release]]
    bundle = built_bundle(tmp_path / "b", (2,))
    engine = open_engine(bundle.path(engine_of(bundle).file), backend=RELEASES[release])
    assert (engine.backend, engine.device) == (RELEASES[release], "cuda")
    images = np.random.default_rng(0).random((2, 3, 4, 6), np.float32)
    expected = onnxruntime.InferenceSession(str(bundle.path("model.b2.onnx"))).run(None, {"images": images})[0]
    first = engine.infer({"images": images})["logits"]
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(engine.infer({"images": np.asfortranarray(images[::-1])})["logits"], expected[::-1])
    np.testing.assert_array_equal(first, expected)  # outputs are fresh arrays
    assert ("execute", 22) in module.calls
    other = engine.share()
    engine.close()
    engine.close()
    np.testing.assert_array_equal(other.infer({"images": images})["logits"], expected)
    assert module.calls.count(("deserialize",)) == 1
    other.close()
    assert cuda.live == {"memory": 0, "streams": 0, "contexts": 0}
    with pytest.raises(BackendError, match="closed"):
        engine.infer({"images": images})


def test_a_run_is_queued_on_the_stream_of_torch_over_its_tensors(
    installed: Install, cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = installed("11", gpu="sm_89")[RELEASES["11"]]
    bundle = built_bundle(tmp_path / "b", (2,))
    engine = open_engine(bundle.path(engine_of(bundle).file), backend=RELEASES["11"])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    images = np.random.default_rng(0).random((2, 3, 4, 6), np.float32)
    expected = engine.infer({"images": images})["logits"]
    assert isinstance(engine, StreamEngine)
    tensors = {"images": torch.from_numpy(images), "logits": torch.full(expected.shape, torch.nan)}
    engine.enqueue(tensors)
    np.testing.assert_array_equal(tensors["logits"].numpy(), expected)
    assert module.calls[-1] == ("execute", 77)
    engine.close()
    with pytest.raises(BackendError, match="closed"):
        engine.enqueue(tensors)


def test_wrong_feeds_are_refused_before_any_copy(installed: Install, cuda: Any, tmp_path: Path) -> None:
    installed("11", gpu="sm_89")
    bundle = built_bundle(tmp_path / "b")
    engine = open_tensorrt(bundle.path(engine_of(bundle).file), kind="tensorrt")
    for feeds in ({}, {"images": np.zeros((2, 3, 4, 6), np.float32)}, {"images": np.zeros((1, 3, 4, 6))}):
        with pytest.raises(BackendError):
            engine.infer(feeds)
    assert cuda.uploads == 0
    engine.close()


def test_a_file_that_the_library_refuses_gives_its_reason(installed: Install, cuda: Any, tmp_path: Path) -> None:
    installed("rtx", gpu="sm_89")
    path = tmp_path / "other.plan"
    path.write_bytes(b"made by another version")
    with pytest.raises(BackendError, match=r"1\.7\.1\.116 cannot open .*other\.plan: The engine plan file is not comp"):
        open_tensorrt(path, kind="tensorrt_rtx")
    assert cuda.live == {"memory": 0, "streams": 0, "contexts": 0}


def test_what_fails_on_the_gpu_frees_what_was_taken(installed: Install, cuda: Any, tmp_path: Path) -> None:
    module = installed("10", gpu="sm_89")["tensorrt"]
    bundle = built_bundle(tmp_path / "b")
    path = bundle.path(engine_of(bundle).file)
    cuda.fails.add("cuMemAlloc_v2")
    with pytest.raises(BackendError, match=r"cuMemAlloc_v2 failed with error 2: out of memory"):
        open_tensorrt(path, kind="tensorrt")
    assert cuda.live == {"memory": 0, "streams": 0, "contexts": 0}
    cuda.fails.clear()
    engine = open_tensorrt(path, kind="tensorrt")
    module.cannot_start = True
    with pytest.raises(BackendError, match="cannot be started"):
        engine.infer({"images": np.zeros((1, 3, 4, 6), np.float32)})
    engine.close()


def test_a_type_that_numpy_lacks_and_a_device_that_is_none_are_refused(
    installed: Install, cuda: Any, tmp_path: Path
) -> None:
    module = installed("11", gpu="sm_89")["tensorrt"]
    bundle = built_bundle(tmp_path / "b")
    path = bundle.path(engine_of(bundle).file)
    module.io_dtype = "BF16"
    with pytest.raises(BackendError, match="is BF16, which NumPy has not"):
        open_tensorrt(path, kind="tensorrt")
    with pytest.raises(BackendError, match=r"no device 'cpu'.*auto, cuda"):
        open_tensorrt(path, kind="tensorrt", device="cpu")


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendError("No NVIDIA driver on this machine")

    monkeypatch.setattr("vtk.engines.cuda_driver._load", fail)
    assert gpu_target() is None


def test_the_gpu_names_its_compute_capability(cuda: Any) -> None:
    assert CudaDevice().target == gpu_target() == "sm_89"


def test_auto_takes_engines_for_this_gpu_and_graphs_elsewhere(installed: Install, cuda: Any, tmp_path: Path) -> None:
    installed("11", gpu="sm_89")
    bundle = built_bundle(tmp_path / "b", (1, 4))
    with open_predictor(bundle) as predictor:
        assert (predictor.backend, predictor.device, predictor.batch_sizes) == ("tensorrt", "cuda", (1, 4))
    with open_predictor(bundle, device="cpu") as predictor:
        assert predictor.backend == "ort"
    for releases, gpu in ((("11",), "sm_86"), (("10",), "sm_89"), ((), "sm_89"), (("11",), None)):
        installed(*releases, gpu=gpu)
        assert [backend for backend, _ in select_artifacts(bundle)] == ["auto", "auto"]
    installed("11", gpu="sm_89")
    partly = replace(bundle, manifest=replace(bundle.manifest, artifacts=bundle.manifest.artifacts[:-1]))
    assert {backend for backend, _ in select_artifacts(partly)} == {"auto"}
    assert [backend for backend, _ in select_artifacts(partly, batches=[1])] == ["tensorrt"]


def test_an_engine_for_another_machine_is_refused_without_being_opened(
    installed: Install, cuda: Any, tmp_path: Path
) -> None:
    """Case V26: one line with both sides and the command; no call to deserialize."""
    installed("10", gpu="sm_86")
    bundle = built_bundle(tmp_path / "b")
    module = installed("11", gpu="sm_90")["tensorrt"]
    with pytest.raises(BackendError) as caught:
        open_predictor(bundle, backend="tensorrt")
    text = str(caught.value)
    assert "was built for sm_86, TensorRT 10.16.1.11, linux-" in text
    assert "this machine is sm_90, TensorRT 11.4.0.106, linux-" in text
    assert "vtk build BUNDLE --target sm_90" in text
    assert "\n" not in text
    assert ("deserialize",) not in module.calls


def test_all_gpus_of_a_bundle_are_named_and_a_machine_without_one_is_sent_to_the_graphs(
    installed: Install, tmp_path: Path
) -> None:
    installed("rtx")
    bundle = built_bundle(tmp_path / "b")
    with pytest.raises(BackendError, match=r"for sm_120, sm_80, sm_86, sm_89, .*without an NVIDIA GPU.*--backend auto"):
        open_predictor(bundle, backend="tensorrt_rtx")


def test_a_bundle_without_engines_says_how_to_build_them(installed: Install, tmp_path: Path) -> None:
    installed("11", gpu="sm_90")
    with pytest.raises(UsageError, match=r"holds no TensorRT-RTX engine.*vtk build BUNDLE --target sm_90"):
        open_predictor(make_bundle(tmp_path / "b"), backend="tensorrt_rtx")


@pytest.mark.parametrize(
    "change", [{"gpu": "sm_86"}, {"versions": {"tensorrt": "11.4.1"}}, {"system": "windows-amd64"}]
)
def test_gpu_version_and_system_must_all_be_the_same(change: dict[str, Any]) -> None:
    builder = {"tensorrt": "11.4.0", "system": "linux-x86_64"}
    artifact = Artifact("tensorrt", "fp32", 1, "engines/x.plan", "0" * 64, builder, "sm_89")
    host = Host("linux-x86_64", "sm_89", {"tensorrt": "11.4.0"})
    assert fits(artifact, host)
    check_artifact(artifact, host)
    assert not fits(artifact, replace(host, **change))
    with pytest.raises(BackendError, match=r"engines/x\.plan was built for"):
        check_artifact(artifact, replace(host, **change))
