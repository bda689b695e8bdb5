"""The dequantizers against ones written value by value from the format's description."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.kernels.quant_formats import BLOCK_FORMATS
from vtk.kernels.weights import StoredWeight


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def q8_0(block: bytes, i: int) -> float:
    return half(block, 0) * struct.unpack_from("<b", block, 2 + i)[0]


def q4_0(block: bytes, i: int) -> float:
    return half(block, 0) * (((block[2 + i % 16] >> (4 * (i // 16))) & 15) - 8)


def q4_1(block: bytes, i: int) -> float:
    return half(block, 0) * ((block[4 + i % 16] >> (4 * (i // 16))) & 15) + half(block, 2)


def q4_k(block: bytes, i: int) -> float:
    sub, packed = i // 32, block[4:16]
    if sub < 4:
        scale, minimum = packed[sub] & 63, packed[sub + 4] & 63
    else:
        scale = (packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4)
        minimum = (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4)
    value = (block[16 + sub // 2 * 32 + i % 32] >> (4 * (sub % 2))) & 15
    return half(block, 0) * scale * value - half(block, 2) * minimum


def q6_k(block: bytes, i: int) -> float:
    side, quarter, place = i // 128, i % 128 // 32, i % 32
    low = (block[side * 64 + quarter % 2 * 32 + place] >> (4 * (quarter // 2))) & 15
    high = (block[128 + side * 32 + place] >> (2 * quarter)) & 3
    scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
    return half(block, 208) * scale * ((low | high << 4) - 32)


BY_VALUE: dict[str, Callable[[bytes, int], float]] = {
    "q8_0": q8_0,
    "q4_0": q4_0,
    "q4_1": q4_1,
    "q4_k": q4_k,
    "q6_k": q6_k,
}


def decode(name: str, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    block = BLOCK_FORMATS[name]
    rows = [row.tobytes() for row in data.reshape(-1, block.block_bytes)]
    return np.array([[BY_VALUE[name](row, i) for i in range(block.block_values)] for row in rows])


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_values_are_those_of_the_format(name: str, stored_weight: Callable[..., StoredWeight]) -> None:
    weight = stored_weight(name, 3, 512, int(np.random.default_rng().integers(1 << 30)))
    expected = decode(name, weight.data).reshape(3, 512)
    # Only q4_1 and q4_k add a rounded sum; the products of the others are exact in float32.
    largest = np.abs(expected).max()
    np.testing.assert_allclose(weight.dequantize(), expected, rtol=0, atol=largest * 2.0**-23)
    if name in ("q8_0", "q4_0", "q6_k"):
        np.testing.assert_array_equal(weight.dequantize().astype(np.float64), expected)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_values_are_those_of_the_gguf_package(name: str, stored_weight: Callable[..., StoredWeight]) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is the second opinion")
    weight = stored_weight(name, 5, 768, int(np.random.default_rng().integers(1 << 30)))
    kind = getattr(gguf.GGMLQuantizationType, name.upper())
    expected = gguf.quants.dequantize(weight.data, kind)
    np.testing.assert_allclose(weight.dequantize(), expected, rtol=1e-6, atol=1e-6)


def test_some_rows_are_those_rows_of_all(stored_weight: Callable[..., StoredWeight]) -> None:
    rows = np.array([4, 0, 4])
    for name in (*BLOCK_FORMATS, "int8", "bf16"):
        weight = stored_weight(name, 5, 256, 1)
        np.testing.assert_array_equal(weight.dequantize(rows), weight.dequantize()[rows])


@pytest.mark.parametrize(
    ("name", "data", "scales", "said"),
    [
        ("q5_0", np.zeros((1, 22), np.uint8), None, "unknown weight format 'q5_0'"),
        ("q4_0", np.zeros((1, 20), np.uint8), None, "no whole q4_0 blocks"),
        ("f16", np.zeros((1, 4), np.float32), None, "float16"),
        ("int8", np.zeros((1, 4), np.int8), None, "one scale a row"),
        ("int8", np.zeros((2, 4), np.int8), np.ones(3, np.float32), "2 float32 scales"),
        ("f32", np.zeros(4, np.float32), None, "matrix"),
    ],
)
def test_a_wrong_weight_is_refused(
    name: str, data: npt.NDArray[Any], scales: npt.NDArray[Any] | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        StoredWeight(name, data, scales)
