"""Triton's interpreter: switched on within a process, made exact or refusing, and watching every access.

`TRITON_INTERPRET=1` would have to be set before anything imports Triton and would then hold for all tests. Here the
compiled functions of Triton's library and of vtk's kernels are replaced by interpreted twins for the length of a
`with`, so that interpretation, ahead-of-time compilation and everything else live beside each other.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

# Triton imports it at the first launch, and must find the compiled functions then.
importlib.import_module("triton.experimental.gluon.language")

LIBRARY = ("triton.language", "triton.language.core", "triton.language.standard", "triton.language.random")
NARROW = {
    tl.bfloat16: (torch.bfloat16, None),
    tl.float8e4nv: (torch.float8_e4m3fn, 448.0),
    tl.float8e5: (torch.float8_e5m2, 57344.0),
}


class Memory:
    """The memory that one launch may touch: the spans of its tensors, each with what was read and written where."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        spans = sorted(_span(tensor) for tensor in tensors if tensor.numel())
        self.starts = np.array([start for start, _ in spans], np.uint64)
        # A view may hold another one: the farthest end so far.
        self.stops = np.maximum.accumulate(np.array([stop for _, stop in spans], np.uint64))
        self.loads: list[tuple[int, np.ndarray]] = []
        self.stores: list[tuple[int, np.ndarray]] = []

    def touch(self, kind: str, pointers: TensorHandle, mask: np.ndarray | None, program: int) -> None:
        addresses = pointers.data if mask is None else pointers.data[np.broadcast_to(mask != 0, pointers.data.shape)]
        addresses = np.unique(addresses)
        if not len(addresses):
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        before = np.searchsorted(self.starts, addresses, side="right")
        inside = before > 0
        inside[inside] = addresses[inside] + np.uint64(size) <= self.stops[before[inside] - 1]
        if not inside.all():
            raise IndexError(f"{kind} outside of every argument: {(~inside).sum()} of {len(addresses)} addresses")
        if kind != "atomic":
            (self.loads if kind == "load" else self.stores).append((program, addresses))

    def check_races(self) -> None:
        """Programs run in any order on a GPU: none may store what another one stores or loads."""
        if not self.stores:
            return
        stored, writers = _joined(self.stores)
        order = np.lexsort((writers, stored))
        stored, writers = stored[order], writers[order]
        twice = (stored[1:] == stored[:-1]) & (writers[1:] != writers[:-1])
        if twice.any():
            raise AssertionError(f"race: programs store {twice.sum()} addresses that others store")
        if self.loads:
            loaded, readers = _joined(self.loads)
            at = np.minimum(np.searchsorted(stored, loaded), len(stored) - 1)
            foreign = (stored[at] == loaded) & (writers[at] != readers)
            if foreign.any():
                raise AssertionError(f"race: programs load {foreign.sum()} addresses that others store")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _joined(accesses: list[tuple[int, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    addresses = np.concatenate([part for _, part in accesses])
    programs = np.concatenate([np.full(len(part), program) for program, part in accesses])
    return addresses, programs


@contextmanager
def interpreted() -> Iterator[Callable[[JITFunction], InterpretedFunction]]:
    """Every kernel of vtk that is imported by now runs in the interpreter, on CPU tensors.

    Yields what makes the same of any other one.
    """
    with pytest.MonkeyPatch.context() as patch:
        _swap_functions(patch)
        _repair_numbers(patch)
        _watch_memory(patch)
        yield lambda kernel: InterpretedFunction(kernel.fn)


def _swap_functions(patch: pytest.MonkeyPatch) -> None:
    twins: dict[int, InterpretedFunction] = {}
    kernels = [name for name in sys.modules if name.startswith("vtk.kernels.")]
    for name in (*LIBRARY, *kernels):
        swap_module(patch, sys.modules[name], twins)
    for name, value in list(vars(tl.tensor).items()):
        if isinstance(value, JITFunction):
            twin = twins.setdefault(id(value), InterpretedFunction(value.fn))
            patch.setattr(tl.tensor, name, lambda *args, _twin=twin, **options: _twin(*args, **options))


def swap_module(patch: pytest.MonkeyPatch, module: ModuleType, twins: dict[int, InterpretedFunction]) -> None:
    """Replaces the compiled functions among a module's names; one function keeps one twin under all its names."""
    for name, value in list(vars(module).items()):
        if isinstance(value, JITFunction):
            patch.setattr(module, name, twins.setdefault(id(value), InterpretedFunction(value.fn)))


def _repair_numbers(patch: pytest.MonkeyPatch) -> None:
    """The stock interpreter computes on the bits of bfloat16 and float8, and truncates in casts.

    Casts and `tl.dot` become exact. Any other arithmetic is refused, since kernels widen to float32 before it.
    """
    stock = {name: getattr(InterpreterBuilder, name) for name in ("cast_impl", "create_dot")}

    def cast(self: Any, source: TensorHandle, target: Any, rounding: Any = None) -> TensorHandle:
        wanted = target.scalar
        if source.dtype.scalar not in NARROW and wanted not in NARROW:
            return stock["cast_impl"](self, source, target)
        return _narrow(_widen(source).data, wanted)

    def dot(self: Any, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return stock["create_dot"](self, _widen(a), _widen(b), *rest)

    def refusing(name: str) -> Any:
        inner = getattr(InterpreterBuilder, name)

        def checked(self: Any, *arguments: Any, **options: Any) -> Any:
            if any(isinstance(value, TensorHandle) and value.dtype.scalar in NARROW for value in arguments):
                raise TypeError("arithmetic on bfloat16 or float8: widen to float32 first")
            return inner(self, *arguments, **options)

        return checked

    patch.setattr(InterpreterBuilder, "cast_impl", cast)
    patch.setattr(InterpreterBuilder, "create_fp_to_fp", cast)
    patch.setattr(InterpreterBuilder, "create_dot", dot)
    for name in ("binary_op", "unary_op", "create_fma", "create_fabs", "create_clampf", "create_rsqrt", "create_erf"):
        patch.setattr(InterpreterBuilder, name, refusing(name))
    check = interpreter.ReduceScanOpInterface.check_tensor

    def check_tensor(self: Any, inputs: Any) -> None:
        if any(value.dtype.scalar in NARROW for value in inputs):
            raise TypeError("reduction of bfloat16 or float8: widen to float32 first")
        check(self, inputs)

    patch.setattr(interpreter.ReduceScanOpInterface, "check_tensor", check_tensor)


def _widen(handle: TensorHandle) -> TensorHandle:
    """bfloat16 and float8 as float32, anything else as it is."""
    narrow = NARROW.get(handle.dtype.scalar)
    if narrow is None:
        return handle
    raw = torch.from_numpy(np.ascontiguousarray(handle.data).view(f"i{handle.data.itemsize}"))
    return TensorHandle(raw.view(narrow[0]).float().numpy(), tl.float32)


def _narrow(data: np.ndarray, wanted: Any) -> TensorHandle:
    """Rounds to nearest even; float8 saturates, as the hardware's conversion does."""
    if wanted not in NARROW:
        return TensorHandle(data.astype(interpreter._get_np_dtype(wanted)), wanted)
    dtype, largest = NARROW[wanted]
    values = torch.from_numpy(np.ascontiguousarray(data)).float()
    values = values if largest is None else values.clamp(-largest, largest)
    raw = values.to(dtype).view(torch.int16 if dtype == torch.bfloat16 else torch.int8)
    return TensorHandle(raw.numpy().view(interpreter._get_np_dtype(wanted)), wanted)


# Of each access: its method, and which of its arguments are the pointers and the mask.
ACCESSES = {
    "create_masked_load": ("load", 0, 1),
    "create_masked_store": ("store", 0, 2),
    "create_atomic_cas": ("atomic", 0, None),
    "create_atomic_rmw": ("atomic", 1, 3),
}


def _watch_memory(patch: pytest.MonkeyPatch) -> None:
    """Checks every access, and patches Triton's language once per launch, since nested patches are never undone."""
    state: dict[str, Any] = {}
    patch_language, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    language = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def patch_once(function: Any) -> Any:
        if "patched" in state:
            return interpreter._LangPatchScope()
        state["patched"] = True
        return patch_language(language)

    def watched_launch(self: Any, *arguments: Any, **options: Any) -> None:
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, torch.Tensor)]
        state["memory"] = Memory(tensors)
        try:
            with np.errstate(all="ignore"):
                launch(self, *arguments, **options)
            state["memory"].check_races()
        finally:
            state.clear()

    def watched(name: str, kind: str, pointer_at: int, mask_at: int | None) -> Any:
        inner = getattr(InterpreterBuilder, name)

        def access(self: Any, *arguments: Any) -> Any:
            x, y, z = self.grid_idx
            program = (x * self.grid_dim[1] + y) * self.grid_dim[2] + z
            mask = None if mask_at is None else arguments[mask_at].data
            state["memory"].touch(kind, arguments[pointer_at], mask, program)
            return inner(self, *arguments)

        return access

    patch.setattr(interpreter, "_patch_lang", patch_once)
    patch.setattr(interpreter.GridExecutor, "__call__", watched_launch)
    for name, places in ACCESSES.items():
        patch.setattr(InterpreterBuilder, name, watched(name, *places))
