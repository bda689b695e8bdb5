"""ONNX Runtime and OpenVINO behind one protocol."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vtk.engines import ort
from vtk.engines.base import Engine, TensorSpec
from vtk.engines.fake import FakeEngine
from vtk.engines.open import BACKENDS, open_engine
from vtk.engines.ort import OrtEngine
from vtk.errors import BackendError, MissingDependencyError, UsageError

SCALE = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest, write_graph: Callable[..., Path]) -> Engine:
    return open_engine(write_graph(2), backend=request.param, threads=1)


def images(seed: int, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, 3, 4, 6)).astype(np.float32)


def test_outputs_equal_the_definition(engine: Engine) -> None:
    x = images(1)
    outputs = engine.infer({"images": x})
    expected = x.mean(axis=(2, 3)) * SCALE
    np.testing.assert_allclose(outputs["cls"], expected, atol=1e-6)
    np.testing.assert_array_equal(outputs["top"][:, 0], expected.argmax(axis=1))


def test_specs_tell_the_graph(engine: Engine) -> None:
    assert engine.inputs == (TensorSpec("images", (2, 3, 4, 6), "float32"),)
    assert engine.outputs == (TensorSpec("cls", (2, 3), "float32"), TensorSpec("top", (2, 1), "int64"))
    assert engine.device == "cpu"


def test_outputs_are_fresh(engine: Engine) -> None:
    first = engine.infer({"images": images(1)})["cls"]
    kept = first.copy()
    engine.infer({"images": images(2)})
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("feeds", "told"),
    [
        ({}, r"\['images'\], got \[\]"),
        ({"pixels": images(0)}, r"\['images'\], got \['pixels'\]"),
        ({"images": images(0), "more": images(0)}, "more"),
        ({"images": images(0, batch=1)}, r"\(2, 3, 4, 6\), got float32 \(1, 3, 4, 6\)"),
        ({"images": images(0).astype(np.float64)}, "got float64"),
    ],
)
def test_wrong_feeds_are_refused(engine: Engine, feeds: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(BackendError, match=told):
        engine.infer(feeds)


def test_a_closed_engine_says_so(engine: Engine) -> None:
    engine.close()
    with pytest.raises(BackendError, match="closed"):
        engine.infer({"images": images(0)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_graph_is_one_error(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no graph at all")
    with pytest.raises(BackendError, match=r"model\.onnx"):
        open_engine(path, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_symbolic_batch_is_refused(backend: str, write_graph: Callable[..., Path]) -> None:
    with pytest.raises(BackendError, match="static"):
        open_engine(write_graph("N"), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cuda_that_is_not_there_is_an_error(backend: str, write_graph: Callable[..., Path]) -> None:
    """Case V60: never the CPU in place of what was asked."""
    with pytest.raises(BackendError, match="cuda") as caught:
        open_engine(write_graph(2), backend=backend, device="cuda")
    assert caught.value.exit_code == 2
    assert "cpu" in str(caught.value.hint)


class FallbackRuntime:
    """Lists CUDA, takes it, and opens a session that runs on the CPU: what a wheel without CUDA libraries does."""

    class SessionOptions:
        log_severity_level = 0
        intra_op_num_threads = 0

        def add_session_config_entry(self, key: str, value: str) -> None: ...

    class InferenceSession:
        def __init__(self, path: str, options: object, *, providers: list[str]) -> None:
            assert providers[0] == "CUDAExecutionProvider"

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

        def get_inputs(self) -> list[object]:
            return []

        get_outputs = get_inputs

    @staticmethod
    def get_available_providers() -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_the_open_session_decides_which_device_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case V60: `get_available_providers` lists CUDA and the session falls back."""
    monkeypatch.setattr(ort, "_import", lambda: FallbackRuntime)
    with pytest.raises(BackendError, match="asked for cuda and uses cpu"):
        OrtEngine(tmp_path / "model.onnx", device="cuda")
    assert OrtEngine(tmp_path / "model.onnx", device="auto").device == "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_package_names_the_install_command(
    backend: str, monkeypatch: pytest.MonkeyPatch, write_graph: Callable[..., Path]
) -> None:
    path = write_graph(2)
    monkeypatch.setitem(sys.modules, {"ort": "onnxruntime", "openvino": "openvino"}[backend], None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        open_engine(path, backend=backend)


@pytest.mark.parametrize(
    ("missing", "chosen"), [((), "ort"), (("onnxruntime",), "openvino"), (("onnxruntime", "openvino"), None)]
)
def test_auto_takes_the_first_that_is_installed(
    missing: tuple[str, ...],
    chosen: str | None,
    monkeypatch: pytest.MonkeyPatch,
    write_graph: Callable[..., Path],
) -> None:
    path = write_graph(2)
    monkeypatch.setattr("vtk.engines.open.find_spec", lambda name: None if name in missing else object())
    if chosen is None:
        with pytest.raises(MissingDependencyError, match=r"vtk-deploy\[cpu\]"):
            open_engine(path)
    else:
        assert open_engine(path).backend == chosen


def test_an_unknown_backend_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="auto, ort, openvino"):
        open_engine(tmp_path, backend="tensorflow")


@pytest.mark.parametrize("backend", BACKENDS)
def test_opening_is_silent_and_needs_no_network(backend: str, write_graph: Callable[..., Path]) -> None:
    script = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from pathlib import Path\n"
        "from vtk.engines.open import open_engine\n"
        "open_engine(Path(sys.argv[1]), backend=sys.argv[2], threads=1).close()\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(write_graph(2)), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_kept_about_the_user(backend: str, tmp_path: Path, write_graph: Callable[..., Path]) -> None:
    """Native code sends the telemetry of ONNX Runtime, unseen by the test above, from a store that it keeps at home."""
    graph, home = write_graph(2), tmp_path / "home"
    home.mkdir()
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from vtk.engines.open import open_engine\n"
        "open_engine(Path(sys.argv[1]), backend=sys.argv[2], threads=1).close()\n"
    )
    own = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own} | {"HOME": str(home)}
    subprocess.run([sys.executable, "-c", script, str(graph), backend], env=environment, check=True, timeout=120)
    assert list(home.rglob("*")) == []


def test_the_fake_engine_keeps_the_protocol() -> None:
    engine = FakeEngine(lambda x: {"sum": x.sum(axis=(1, 2, 3))}, batch=2, size_hw=(4, 6))
    assert engine.outputs == (TensorSpec("sum", (2,), "float32"),)
    with pytest.raises(BackendError, match="must be float32"):
        engine.infer({"images": images(0, batch=3)})
    x = images(3)
    np.testing.assert_array_equal(engine.infer({"images": x})["sum"], x.sum(axis=(1, 2, 3)))
    assert engine.calls == 1
