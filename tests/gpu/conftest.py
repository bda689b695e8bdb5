"""One GPU for every test of this folder; with VTK_GPU_TESTS=interpreted the tests run in Triton's interpreter instead.

The latter proves the tests themselves where there is no GPU: the same code, on tiny sizes.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch

from vtk.kernels.host_device import HostDevice

pytest.importorskip("triton", reason="needs Triton")

ROOT = Path(__file__).parents[2]
V = TypeVar("V")


def load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass(frozen=True)
class Target:
    """Where kernels run. capability: times ten, as 90."""

    device: torch.device
    interpreted: bool
    capability: int

    def pick(self, full: V, tiny: V) -> V:
        """The first on a GPU, the second where kernels are interpreted."""
        return tiny if self.interpreted else full

    def runner_device(self, *, graphs: bool = True) -> Any:
        """What a CUDA runner is built on."""
        devices = load("vtk_tests_gpu_devices", ROOT / "benchmarks/gpu/devices.py")
        if self.interpreted:
            return HostDevice()
        return (devices.CudaDevice if graphs else devices.EagerDevice)(self.device)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Target]:
    if os.environ.get("VTK_GPU_TESTS") == "interpreted":
        interpreter = load("vtk_tests_interpreter", ROOT / "tests/kernels/cuda/interpreter.py")
        with interpreter.interpreted():
            yield Target(torch.device("cpu"), True, 90)
        return
    if not torch.cuda.is_available():
        pytest.skip(f"needs an NVIDIA GPU: PyTorch {torch.__version__} finds no CUDA device")
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        pytest.skip(f"needs compute capability 8.0: {torch.cuda.get_device_name()} has {major}.{minor}")
    yield Target(torch.device("cuda", torch.cuda.current_device()), False, 10 * major + minor)


@pytest.fixture
def close() -> Callable[..., None]:
    """Within one rounding of the result's type, and `error` of float32 arithmetic before it."""

    def check(result: torch.Tensor, exact: torch.Tensor, error: float = 4e-6) -> None:
        tolerance = torch.finfo(result.dtype).eps / 2 + error
        torch.testing.assert_close(result.cpu().double(), exact.double(), rtol=tolerance, atol=error)

    return check
