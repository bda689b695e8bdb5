"""Safetensors as NumPy arrays: the bytes, names and hashes of the reader that makes tensors of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.checkpoint_stored import read_stored

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {f"model.t{i}": (torch.randn(3, i + 1) * 3).to(dtype) for i, dtype in enumerate(DTYPES)}
    save_file(
        tensors | {"model.none": torch.empty(0, 4), "model.one": torch.tensor(1.5)}, tmp_path / "model.safetensors"
    )
    return tmp_path


def test_what_torch_reads(folder: Path) -> None:
    ours, theirs = read_stored(folder), read_checkpoint(folder)
    assert (ours.file_sha256, ours.tensor_digest) == (theirs.file_sha256, theirs.tensor_digest)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in theirs.tensors.items():
        stored = ours.tensors[name]
        assert (f"torch.{stored.dtype}", stored.data.shape) == (str(tensor.dtype), tensor.shape)
        assert stored.data.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_forgotten_pages_are_read_again(folder: Path) -> None:
    stored = read_stored(folder)
    before = {name: tensor.data.tobytes() for name, tensor in stored.tensors.items()}
    stored.forget_pages()
    assert {name: tensor.data.tobytes() for name, tensor in stored.tensors.items()} == before


def test_rows_that_begin_anywhere(tmp_path: Path) -> None:
    """The format does not align tensors among each other: after one odd byte nothing lies at its type's multiple."""
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "number": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(header).encode()
    data = b"\x07" + np.array([1.5, -2], "<f4").tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    number = read_stored(tmp_path).tensors["number"].data
    assert number.flags.aligned
    assert number.tolist() == [1.5, -2]


def test_damage_is_told_as_by_the_other_reader(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    told = []
    for data in (whole[:-1], whole[:20], whole + b"\0", b"\xff" * 8 + b"{" + whole[9:], whole.replace(b"F32", b"X99")):
        path.write_bytes(data)
        errors = []
        for read in (read_stored, read_checkpoint):
            with pytest.raises(CheckpointError) as error:
                read(folder)
            errors.append(str(error.value))
        assert errors[0] == errors[1]
        told.append(errors[0])
    assert all("is damaged or truncated" in line for line in told)


def test_what_torch_saved_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"looks like a file that torch\.save wrote\. vtk reads \.safetensors"):
        read_stored(tmp_path)


def test_a_file_of_nothing(tmp_path: Path) -> None:
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds 0 tensors"):
        read_stored(tmp_path)
