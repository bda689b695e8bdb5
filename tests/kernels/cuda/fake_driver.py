"""A CUDA driver without a device: launches are specialized and compiled as on a GPU, and recorded instead of run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

LIMITS = {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32}


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch: kernel, grid, shared memory in bytes, and the arguments, constants included."""

    name: str
    grid: tuple[int, int, int]
    shared: int
    arguments: tuple[Any, ...]


@dataclass
class FakeCuda(DriverBase):
    """Stands for one device of a compute capability times ten."""

    capability: int
    launches: list[Launch] = field(default_factory=list)

    @classmethod
    def is_active(cls) -> bool:
        return True

    @property
    def utils(self) -> "FakeCuda":
        return self

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, *rest: Any) -> None:
            # stream, function, packed metadata, launch metadata, two hooks; then the kernel's own
            self.launches.append(Launch(source.fn.__name__, (x, y, z), metadata.shared, rest[6:]))

        return launch

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("no device to measure")

    def get_current_device(self) -> int:
        # Triton's cache is keyed by device: one per capability, or the second would be given the first one's code.
        return self.capability

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return LIMITS

    def load_binary(self, *arguments: Any) -> tuple[Any, ...]:
        return object(), object(), 0, 0, 1024


@contextmanager
def fake_cuda(capability: int) -> Iterator[FakeCuda]:
    """Triton's driver for the length of a `with`; tensors may lie on the meta device."""
    before, fake = driver._active, FakeCuda(capability)
    driver.set_active(fake)
    try:
        yield fake
    finally:
        driver._active = before
