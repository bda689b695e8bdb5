"""GGUF files written by ggml's own package are read value for value; damaged ones are refused in one line."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_digest import tensor_digest
from vtk.exporters.checkpoint_gguf import is_gguf, read_gguf

QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")


def write(path: Path, fill: Callable[[gguf.GGUFWriter], object]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random blocks: any bytes are a valid block."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return np.random.default_rng(1).integers(0, 256, (rows, columns // values * size), np.uint8)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.block_count", 2)
        writer.add_array("tokens", ["a", "bc", "é"])
        writer.add_array("types", [1, 3, 1])
        writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
        writer.add_tensor("two", blocks("Q4_1", 4, 64), raw_dtype=gguf.GGMLQuantizationType.Q4_1)

    return write(tmp_path / "small.gguf", fill)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        for bits in (8, 16, 32, 64):
            getattr(writer, f"add_uint{bits}")(f"u{bits}", 2**bits - 1)
            getattr(writer, f"add_int{bits}")(f"i{bits}", -(2 ** (bits - 1)))
        writer.add_float32("f32", 0.1)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_string("text", "ñ 🙂")
        writer.add_array("texts", ["", "x", "two words"])
        writer.add_array("numbers", [3, -1])
        writer.add_array("floats", [0.5, -2.0])
        writer.add_array("flags", [True, False])

    metadata = read_gguf(write(tmp_path / "m.gguf", fill)).metadata
    for bits in (8, 16, 32, 64):
        assert (metadata[f"u{bits}"], metadata[f"i{bits}"]) == (2**bits - 1, -(2 ** (bits - 1)))
    assert metadata["f32"] == float(np.float32(0.1))
    assert metadata["f64"] == 0.1
    assert metadata["yes"] is True
    assert metadata["text"] == "ñ 🙂"
    assert metadata["texts"] == ["", "x", "two words"]
    assert metadata["numbers"] == [3, -1]
    assert metadata["floats"] == [0.5, -2.0]
    assert metadata["flags"] == [True, False]
    assert metadata["general.architecture"] == "llama"


def test_tensors_keep_their_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(3, 5)).astype(np.float32)
    stored = {kind: blocks(kind, 6, 512) for kind in QUANTIZED}
    brain = torch.randn(2, 4).bfloat16()

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("f32", plain)
        writer.add_tensor("f16", plain.astype(np.float16))
        raw = brain.view(torch.uint8).numpy()
        writer.add_tensor("bf16", raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        for kind, data in stored.items():
            writer.add_tensor(kind, data, raw_dtype=gguf.GGMLQuantizationType[kind])

    file = read_gguf(write(tmp_path / "t.gguf", fill))
    np.testing.assert_array_equal(file.tensors["f32"].data, plain)
    np.testing.assert_array_equal(file.tensors["f16"].data, plain.astype(np.float16))
    np.testing.assert_array_equal(file.tensors["bf16"].data.view(np.int16), brain.view(torch.int16).numpy())
    for kind, data in stored.items():
        tensor = file.tensors[kind]
        assert (tensor.type, tensor.shape, tensor.is_plain) == (kind, (6, 512), False)
        np.testing.assert_array_equal(tensor.data, data)
    assert file.file_sha256 == hashlib.sha256((tmp_path / "t.gguf").read_bytes()).hexdigest()
    named = {"f32": torch.from_numpy(plain), "f16": torch.from_numpy(plain).half(), "bf16": brain}
    named |= {f"{kind}:{kind}": torch.from_numpy(data) for kind, data in stored.items()}
    assert file.tensor_digest == tensor_digest(named)


def test_the_tensor_digest_follows_the_tensors_and_nothing_else(small: Path, tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("two", blocks("Q4_1", 4, 64), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))

    other = read_gguf(write(tmp_path / "other.gguf", fill))
    assert other.tensor_digest == read_gguf(small).tensor_digest
    assert other.file_sha256 != read_gguf(small).file_sha256
    data = bytearray(small.read_bytes())
    data[-1] ^= 1
    small.write_bytes(data)
    assert other.tensor_digest != read_gguf(small).tensor_digest


def test_every_cut_is_refused(small: Path) -> None:
    data = small.read_bytes()
    whole = read_gguf(small).tensors["two"].data.size
    padding = len(data) - small.read_bytes().rindex(blocks("Q4_1", 4, 64).tobytes()) - whole
    for length in range(len(data) - padding):
        small.write_bytes(data[:length])
        with pytest.raises(CheckpointError) as error:
            read_gguf(small)
        assert "\n" not in str(error.value)


def test_random_damage_is_refused_or_harmless(small: Path) -> None:
    """Nothing but CheckpointError, whatever the bytes, and no memory for counts that the file cannot hold."""
    data = small.read_bytes()
    rng = np.random.default_rng(2)
    num_refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[at] = rng.choice([0, 1, 0x7F, 0xFF, rng.integers(0, 256)])
        small.write_bytes(damaged)
        try:
            read_gguf(small)
        except CheckpointError:
            num_refused += 1
    assert num_refused > 500


@pytest.mark.parametrize("at", [8, 16, 24])
@pytest.mark.parametrize("count", [2**63, 2**40, 2**20])
def test_absurd_counts(small: Path, at: int, count: int) -> None:
    data = bytearray(small.read_bytes())
    data[at : at + 8] = struct.pack("<Q", count)
    small.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        read_gguf(small)


def header(*pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


ALIGNMENT = text("general.alignment") + struct.pack("<I", 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(40), "does not begin with GGUF"),
        (header(version=1), "a version 1 GGUF"),
        (header(version=0x03000000), "a big-endian GGUF"),
        (header(text("a") + struct.pack("<I", 77)), "unknown value type 77"),
        (header(text("a") + struct.pack("<IIQ", 9, 9, 1)), "unknown value type 9"),
        (header(text("a") + struct.pack("<IB", 0, 1), text("a") + struct.pack("<IB", 0, 1)), "'a' occurs twice"),
        (header(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1)), "not UTF-8"),
        (header(ALIGNMENT + struct.pack("<I", 3)), "alignment is 3"),
        (header(ALIGNMENT + struct.pack("<I", 0)), "alignment is 0"),
        (header(tensors=(entry("w", (32,), 13, 0),)), "tensor w has the type Q5_K"),
        (header(tensors=(entry("w", (32,), 99, 0),)), "tensor w has the type number 99"),
        (header(tensors=(entry("w", (33, 2), 8, 0),)), "no whole Q8_0 blocks"),
        (header(tensors=(entry("w", (), 0, 0),)), "0 dimensions"),
        (header(tensors=(entry("w", (0,), 0, 0),)) + bytes(64), "empty, misaligned"),
        (header(tensors=(entry("w", (2,), 0, 4),)) + bytes(64), "misaligned"),
        (header(tensors=(entry("w", (2**39, 2**39), 0, 0),)) + bytes(64), "the file has"),
        (header(tensors=(entry("w", (16,), 0, 0), entry("v", (16,), 0, 32))) + bytes(256), "overlaps"),
        (header(tensors=(entry("w", (4,), 0, 0), entry("w", (4,), 0, 32))) + bytes(256), "w occurs twice"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_gguf(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_gguf(path)


def test_kinds_are_told_apart_by_content(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04")
    assert is_gguf(small)
    assert not is_gguf(other)
