"""The tensor digest depends on names, dtypes, shapes and values, and on nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.checkpoint_digest import tensor_digest
from vtk.exporters.checkpoint_hash import file_sha256

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
)


def of_dtype(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 10).to(dtype)


def test_the_definition() -> None:
    tensors = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor(3, dtype=torch.int64)}
    text = (
        b'["a", "int64", []]\n'
        + (3).to_bytes(8, "little")
        + b'["b", "float32", [2]]\n'
        + bytes.fromhex("0000803f000000c0")
    )
    assert tensor_digest(tensors) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_every_dtype_and_shape_has_a_digest_that_its_values_decide(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (1,), (2, 3), (2, 0, 3)):
        tensor = of_dtype(dtype, *shape)
        assert tensor_digest({"w": tensor}) == tensor_digest({"w": tensor.clone()})
    zero, one = torch.zeros(3).to(dtype), torch.ones(3).to(dtype)
    assert tensor_digest({"w": zero}) != tensor_digest({"w": one})


def test_strides_and_lazy_bits_do_not_matter() -> None:
    base = torch.randn(4, 6)
    for view in (base.t(), base[::2, 1:], base.expand(2, 4, 6), base[0, 0]):
        assert tensor_digest({"w": view}) == tensor_digest({"w": view.clone().contiguous()})
    values = torch.randn(3, dtype=torch.complex64)
    assert tensor_digest({"w": values.conj()}) == tensor_digest({"w": values.conj().resolve_conj()})
    assert tensor_digest({"w": values.conj().imag}) == tensor_digest({"w": -values.imag})


def test_name_dtype_and_shape_matter() -> None:
    tensor = torch.zeros(6)
    variants = [
        {"w": tensor},
        {"v": tensor},
        {"w": tensor.reshape(2, 3)},
        {"w": tensor.to(torch.int32)},
        {"w": tensor[:3], "w2": tensor[3:]},
        {"w": tensor[:4], "w2": tensor[4:]},
        {},
    ]
    assert len({tensor_digest(variant) for variant in variants}) == len(variants)


@settings(max_examples=20)
@given(st.permutations(range(5)))
def test_order_does_not_matter(order: list[int]) -> None:
    tensors = {f"w{index}": torch.full((index,), float(index)) for index in range(5)}
    assert tensor_digest({f"w{index}": tensors[f"w{index}"] for index in order}) == tensor_digest(tensors)


def test_the_file_format_does_not_matter(tmp_path: Path) -> None:
    tensors = {f"w.{index}": of_dtype(dtype, 3, 2) for index, dtype in enumerate(DTYPES)}
    tensors["scalar"] = torch.tensor(2.5)
    save_file(tensors, tmp_path / "x.safetensors")
    torch.save({"model": {f"module.{name}": tensor for name, tensor in tensors.items()}}, tmp_path / "x.pth")
    # torch's old file format has no float8.
    old = {name: tensor for name, tensor in tensors.items() if tensor.dtype != torch.float8_e4m3fn}
    torch.save(old, tmp_path / "y.pth", _use_new_zipfile_serialization=False)
    one, two = (read_checkpoint(tmp_path / name) for name in ("x.safetensors", "x.pth"))
    assert one.tensor_digest == two.tensor_digest == tensor_digest(tensors)
    assert one.file_sha256 != two.file_sha256
    assert read_checkpoint(tmp_path / "y.pth").tensor_digest == tensor_digest(old)


def test_a_file_is_hashed_in_blocks(tmp_path: Path) -> None:
    data = bytes(range(256)) * (5 << 14)
    (tmp_path / "x").write_bytes(data)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()
