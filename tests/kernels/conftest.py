"""Every compiled instruction set of this processor, buffers that notice a stray write, random stored weights."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vtk.kernels import cpu_library, cpu_ops
from vtk.kernels.kv_cache import LayerCache
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


def to_host(value: Any) -> Any:
    """Tensors, wherever they stand among arguments, as NumPy arrays over the same memory."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, LayerCache):
        return LayerCache(*map(to_host, (value.key, value.value, value.key_scales, value.value_scales)))
    return [to_host(item) for item in value] if isinstance(value, list) else value


def on_tensors(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation over NumPy arrays as one over tensors, so that the oracle's inputs and outputs are its own."""

    def run(*arguments: Any, **named: Any) -> Any:
        hosts = {name: to_host(value) for name, value in named.items()}
        positional = list(map(to_host, arguments))
        result = operation(*positional, **hosts)
        pairs = zip((*positional, *hosts.values()), (*arguments, *named.values()), strict=True)
        given = next((tensor for host, tensor in pairs if host is result), None)
        return given if given is not None or result is None else torch.from_numpy(np.asarray(result))

    return run


@pytest.fixture(scope="session")
def tensor_ops() -> Any:
    """`cpu_ops` over tensors; `pack` is its own."""
    names = ("copy_blocks", "embedding", "linear", "paged_attention", "rms_norm", "rope_and_cache", "silu_and_mul")
    return SimpleNamespace(pack=cpu_ops.pack, **{name: on_tensors(getattr(cpu_ops, name)) for name in names})


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
        random = np.random.default_rng(seed)
        if name in FLOAT_FORMATS:
            values = random.standard_normal((rows, columns), np.float32)
            return StoredWeight(
                name,
                (values.view(np.uint32) >> 16).astype(np.uint16)
                if name == "bf16"
                else values.astype(FLOAT_FORMATS[name]),
            )
        if name == "int8":
            data = random.integers(-128, 128, (rows, columns), np.int8)
            return StoredWeight(name, data, random.random(rows, np.float32))
        block = BLOCK_FORMATS[name]
        count = rows * columns // block.block_values
        blocks = random.integers(0, 256, (count, block.block_bytes), np.uint8)
        for start in HALF_FIELDS[name]:
            blocks[:, start : start + 2] = random.standard_normal((count, 1)).astype(np.float16).view(np.uint8)
        return StoredWeight(name, blocks.reshape(rows, -1))

    return make
