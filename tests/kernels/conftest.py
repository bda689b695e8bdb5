"""Every compiled instruction set of this processor, buffers that notice a stray write, random stored weights."""

from collections.abc import Callable, Iterator

import pytest
import torch

from vtk.kernels import cpu_library
from vtk.kernels.quant_formats import BLOCK_FORMATS
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

GUARD = 64
SENTINEL = 12345.5
HALF_FIELDS = {"q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q4_k": (0, 2), "q6_k": (208,)}


@pytest.fixture(scope="module", params=cpu_library.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels compiled for one instruction set, with two threads."""
    compiled, reason = cpu_library.available()
    if not compiled:
        pytest.skip(reason)
    if cpu_library.ISAS.index(request.param) > cpu_library.ISAS.index(cpu_library.best_isa()):
        pytest.skip(f"this processor has no {request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cpu_library.ISA_VARIABLE, request.param)
        cpu_library.library.cache_clear()
        cpu_library.set_num_threads(2)
        yield request.param
        cpu_library.set_num_threads(1)
    cpu_library.library.cache_clear()


class Guarded:
    """A tensor filled with NaN between two guards."""

    def __init__(self, *shape: int) -> None:
        count = torch.Size(shape).numel()
        self.buffer = torch.full((count + 2 * GUARD,), torch.nan)
        self.buffer[:GUARD] = self.buffer[-GUARD:] = SENTINEL
        self.tensor = self.buffer[GUARD:-GUARD].view(shape)

    def intact(self) -> bool:
        return bool((self.buffer[:GUARD] == SENTINEL).all() and (self.buffer[-GUARD:] == SENTINEL).all())


@pytest.fixture(scope="session")
def guarded() -> Callable[..., Guarded]:
    return Guarded


@pytest.fixture(scope="session")
def stored_weight() -> Callable[[str, int, int, int], StoredWeight]:
    """A random weight of a format: all bit patterns of the values, scales of about one."""

    def make(name: str, rows: int, columns: int, seed: int) -> StoredWeight:
        random = torch.Generator().manual_seed(seed)
        if name in FLOAT_FORMATS:
            return StoredWeight(name, torch.randn(rows, columns, generator=random).to(FLOAT_FORMATS[name]))
        if name == "int8":
            data = torch.randint(-128, 128, (rows, columns), dtype=torch.int8, generator=random)
            return StoredWeight(name, data, torch.rand(rows, generator=random))
        block = BLOCK_FORMATS[name]
        count = rows * columns // block.block_values
        data = torch.randint(0, 256, (count, block.block_bytes), dtype=torch.uint8, generator=random)
        for start in HALF_FIELDS[name]:
            data[:, start : start + 2] = torch.randn(count, 1, generator=random).half().view(torch.uint8)
        return StoredWeight(name, data.view(rows, -1))

    return make
