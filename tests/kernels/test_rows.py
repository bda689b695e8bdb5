"""Normalization, activation and the choice of a library."""

import _ctypes
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import UsageError
from vtk.kernels import cpu_library, reference_ops

seeds = st.integers(0, 1 << 30)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 20), width=st.integers(1, 700), add=st.booleans(), size=st.floats(1e-3, 1e3), seed=seeds)
def test_rms_norm(
    isa: str, tensor_ops: Any, guarded: Callable[..., Any], rows: int, width: int, add: bool, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight, residual = torch.randn(rows, width) * size, torch.randn(width), torch.randn(rows, width)
    total = x + residual if add else x
    out, stream = guarded(rows, width), guarded(rows, width)
    stream.tensor.copy_(residual)
    result = tensor_ops.rms_norm(x, weight, 1e-5, stream.tensor if add else None, out.tensor)
    exact = total.double()
    expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(stream.tensor, total if add else residual)
    assert out.intact()
    assert stream.intact()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 20), width=st.integers(1, 200), size=st.floats(0.1, 1e4), seed=seeds)
def test_silu_and_mul(
    isa: str, tensor_ops: Any, guarded: Callable[..., Any], rows: int, width: int, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    gate_up = torch.randn(rows, 2 * width) * size
    gate, up = gate_up.double().chunk(2, dim=-1)
    out = guarded(rows, width)
    result = tensor_ops.silu_and_mul(gate_up, out.tensor)
    torch.testing.assert_close(result, (gate * torch.sigmoid(gate) * up).float(), rtol=2e-6, atol=1e-30)
    assert out.intact()


def test_rows_do_not_depend_on_each_other(isa: str, tensor_ops: Any) -> None:
    x, weight = torch.randn(300, 600), torch.randn(600)
    normed, gated = tensor_ops.rms_norm(x, weight, 1e-6), tensor_ops.silu_and_mul(x)
    for row in (0, 7, 299):
        assert torch.equal(tensor_ops.rms_norm(x[row : row + 1], weight, 1e-6)[0], normed[row])
        assert torch.equal(tensor_ops.silu_and_mul(x[row : row + 1])[0], gated[row])


def test_an_output_may_be_the_input(isa: str, tensor_ops: Any) -> None:
    x, weight = torch.randn(3, 50), torch.randn(50)
    expected = reference_ops.rms_norm(x.clone(), weight, 1e-6)
    torch.testing.assert_close(tensor_ops.rms_norm(x, weight, 1e-6, out=x), expected)


def test_the_library_in_use_is_the_one_asked_for(isa: str) -> None:
    assert cpu_library.available() == (True, isa)
    assert cpu_library.library() is cpu_library.open_library(isa)


def test_sleeping_threads_use_no_processor(isa: str, tensor_ops: Any) -> None:
    tensor_ops.silu_and_mul(torch.randn(400, 400))
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu_library.available()[0]:
        pytest.skip("no compiled kernels")
    monkeypatch.setenv(cpu_library.ISA_VARIABLE, "avx1024")
    assert cpu_library.available()[0] is False
    with pytest.raises(UsageError, match=r"'avx1024'.*offer portable"):
        cpu_library.isa()


def test_no_thread_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1; got 0"):
        cpu_library.set_num_threads(0)


@pytest.mark.parametrize("stale", [False, True], ids=["none", "of another version"])
def test_without_libraries_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stale: bool) -> None:
    if stale:  # any shared library without our functions
        shutil.copy(_ctypes.__file__, tmp_path / "_cpu_portable.so")
    monkeypatch.setattr(cpu_library, "__file__", str(tmp_path / "cpu_library.py"))
    for function in (cpu_library.open_library, cpu_library.best_isa):
        function.cache_clear()
    try:
        compiled, reason = cpu_library.available()
    finally:
        for function in (cpu_library.open_library, cpu_library.best_isa):
            function.cache_clear()
    assert not compiled
    assert "Install a C++ compiler" in reason
    assert ("vtk_best_isa" if stale else "No such file") in reason
