"""`vtk doctor`: what works is shown to work, what is missing says how to get it, what is broken fails."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from vtk import doctor
from vtk.cli.main import main
from vtk.doctor import Finding, examine, extras
from vtk.errors import BackendError


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine()}


def test_the_engines_really_run_a_graph(findings: dict[str, Finding]) -> None:
    assert findings["ort on cpu"].found == "runs a graph on cpu"
    assert findings["openvino on cpu"].state == "ok"


def test_a_device_that_is_not_there_is_missing_and_says_what_to_do(findings: dict[str, Finding]) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    assert findings["ort on cuda"].state == "missing"
    assert "vtk-deploy[gpu]" in findings["ort on cuda"].fix


def test_every_extra_is_told_with_its_packages() -> None:
    declared = set(metadata.metadata(doctor.DISTRIBUTION).get_all("Provides-Extra") or [])
    assert declared - set(doctor.EXTRAS) == {"demo", "dev", "test"}
    assert set(extras()["llm"]) == {"jinja2", "tokenizers"}
    assert extras()["torch"] == ["torch"]
    assert {"torch", "triton"} <= set(extras()["gpu"]), "Triton kernels work on torch's tensors"


def test_a_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "extras", lambda: {"parquet": ["pyarrow-that-is-not-there", "numpy"]})
    (found,) = [finding for finding in examine() if "[parquet]" in finding.subject]
    assert found.state == "missing"
    assert found.found == "not installed: pyarrow-that-is-not-there"
    assert found.fix == "pip install 'vtk-deploy[parquet]'"


def test_kernels_that_were_not_compiled_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtk.kernels.cpu_library.available", lambda: (False, "no compiler"))
    (found,) = [finding for finding in examine() if finding.subject == "CPU kernels"]
    assert (found.state, found.found) == ("broken", "no compiler")
    assert "plain torch until then (pip install 'vtk-deploy[torch]')" in found.fix


def test_the_other_vtk_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = metadata.version
    monkeypatch.setattr(doctor, "version", lambda name: "9.4.1" if name == "vtk" else real(name))
    assert main(["doctor"]) == 1
    assert "Visualization Toolkit 9.4.1" in capsys.readouterr().out


def test_an_engine_that_does_not_open_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, **options: Any) -> None:
        raise BackendError("libonnxruntime is damaged.\nmore", hint="Install it again.")

    monkeypatch.setattr(doctor, "open_engine", fail)
    (found,) = [finding for finding in examine() if finding.subject == "ort on cpu"]
    assert (found.state, found.found, found.fix) == ("broken", "libonnxruntime is damaged.", "Install it again.")


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str], findings: dict[str, Finding]) -> None:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [entry["subject"] for entry in told] == list(findings)
    assert code == int(any(entry["state"] == "broken" for entry in told))


@pytest.mark.parametrize(
    ("kind", "title", "extra"), [("tensorrt", "TensorRT", "gpu"), ("tensorrt_rtx", "TensorRT-RTX", "rtx")]
)
def test_an_engine_library_that_is_missing_says_what_it_would_enable(
    kind: str, title: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.doctor_engines.installed_version", lambda name: None)
    (found,) = [finding for finding in examine() if finding.subject == title]
    assert (found.state, found.found) == ("missing", "not installed")
    assert f"vtk-deploy[{extra}]" in found.fix
    assert "vtk export --trt" in found.fix


def test_tensorrt_rtx_builds_a_real_engine_here(findings: dict[str, Finding]) -> None:
    pytest.importorskip("tensorrt_rtx")
    assert findings["TensorRT-RTX"].state == "ok"
    assert "builds" in findings["TensorRT-RTX"].found


def test_an_engine_library_that_cannot_be_loaded_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: str) -> None:
        raise BackendError("TensorRT is installed and cannot be imported: libnvinfer.so.11", hint="Install it again.")

    monkeypatch.setattr("vtk.doctor_engines.installed_version", lambda name: "11.4.0")
    monkeypatch.setattr("vtk.doctor_engines.load", fail)
    found = [finding for finding in examine() if finding.subject.startswith("TensorRT")]
    assert [(finding.state, finding.fix) for finding in found] == [("broken", "Install it again.")] * 2


def test_two_distributions_of_one_runtime_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(doctor, "version", lambda name: "1.32.0" if name.startswith("onnxruntime") else real(name))
    (found,) = [finding for finding in examine() if finding.subject == "the name onnxruntime"]
    assert found.state == "broken"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in found.fix
