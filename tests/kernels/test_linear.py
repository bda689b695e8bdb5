"""Matrix products: values against float64, bits against every other way to run the same rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.kernels import cpu_library, reference_ops
from vtk.kernels.linear.reference import quantize_activations
from vtk.kernels.ops import LinearMode
from vtk.kernels.quant_formats import BLOCK_FORMATS
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

FORMATS = (*FLOAT_FORMATS, "int8", *BLOCK_FORMATS)
MODES: tuple[LinearMode, ...] = ("exact", "quantized")
UNIT = 2.0**-24
MakeWeight = Callable[[str, int, int, int], StoredWeight]


def expected_and_bound(
    x: torch.Tensor, weight: StoredWeight, bias: torch.Tensor | None, mode: LinearMode
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64, and what float32 sums of that length may differ by in any order."""
    left, right = x.double(), torch.from_numpy(weight.dequantize()).double()
    if mode == "quantized" and weight.format not in FLOAT_FORMATS:
        values, scales = quantize_activations(x)
        left = (values.double() * scales.double()[:, :, None]).flatten(1)[:, : x.shape[1]]
    extra = 0 if bias is None else bias.double()
    # A stored weight with a minimum is itself a rounded sum whose two parts are larger than it.
    size = left.abs() @ (right.abs() + right.abs().amax(1, keepdim=True)).T + (0 if bias is None else bias.abs())
    return left @ right.T + extra, (x.shape[1] + 4) * UNIT * size


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_products_are_those_of_float64(
    isa: str, tensor_ops: Any, stored_weight: MakeWeight, guarded: Callable[..., Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(FORMATS))
    unit = BLOCK_FORMATS[name].block_values if name in BLOCK_FORMATS else 1
    depth = data.draw(st.integers(1, max(2, 900 // unit))) * unit
    rows, outputs, seed = (data.draw(st.integers(*limits)) for limits in ((0, 40), (1, 100), (0, 1 << 30)))
    mode = data.draw(st.sampled_from(MODES))
    weight = stored_weight(name, outputs, depth, seed)
    torch.manual_seed(seed)
    x = torch.randn(rows, depth + 3)[:, :depth]
    bias = torch.randn(outputs) if data.draw(st.booleans()) else None
    out = guarded(rows, outputs)
    result = tensor_ops.linear(x, tensor_ops.pack(weight), bias, mode, out.tensor)
    expected, bound = expected_and_bound(x, weight, bias, mode)
    assert result is out.tensor
    assert ((result - expected).abs() <= bound).all()
    assert out.intact()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_the_others(
    isa: str, tensor_ops: Any, stored_weight: MakeWeight, name: str, mode: LinearMode
) -> None:
    """Bits, for any number of rows and threads; the depth is more than one chunk of the exact mode."""
    weight = tensor_ops.pack(stored_weight(name, 200, 1024, 7))
    x, bias = torch.randn(70, 1024), torch.randn(200)
    together = tensor_ops.linear(x, weight, bias, mode)
    for count in (1, 2, 3, 5, 8, 13, 32):
        alone = tensor_ops.linear(x[20 : 20 + count], weight, bias, mode)
        assert torch.equal(alone, together[20 : 20 + count]), count
    cpu_library.set_num_threads(1)
    assert torch.equal(tensor_ops.linear(x, weight, bias, mode), together)
    cpu_library.set_num_threads(3)
    assert torch.equal(tensor_ops.linear(x, weight, bias, mode), together)
    cpu_library.set_num_threads(2)


@pytest.mark.parametrize("broken", [slice(None), slice(70, 71)], ids=["all", "one"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_broken_row_breaks_no_other(
    isa: str, tensor_ops: Any, stored_weight: MakeWeight, name: str, mode: LinearMode, broken: slice
) -> None:
    """And stays one: numbers made of it would be answers of damaged weights."""
    weight = tensor_ops.pack(stored_weight(name, 40, 256, 3))
    x = torch.randn(9, 256)
    expected = tensor_ops.linear(x, weight, mode=mode)
    x[4, broken] = torch.nan
    result = tensor_ops.linear(x, weight, mode=mode)
    assert result[4].isnan().all()
    assert torch.equal(result[[0, 1, 2, 3, 5, 6, 7, 8]], expected[[0, 1, 2, 3, 5, 6, 7, 8]])


@pytest.mark.parametrize("name", FORMATS)
def test_packing_keeps_every_weight(isa: str, tensor_ops: Any, stored_weight: MakeWeight, name: str) -> None:
    """The identity matrix through the exact product, and the lookup, give the stored values themselves."""
    weight = stored_weight(name, 37, 512, 11)
    packed, values = tensor_ops.pack(weight), torch.from_numpy(weight.dequantize())
    tolerance = values.abs().max() * (0 if name not in ("q4_1", "q4_k") else 2 * UNIT)
    assert ((tensor_ops.linear(torch.eye(512), packed).T - values).abs() <= tolerance).all()
    ids = torch.randint(0, 37, (50,))
    assert ((tensor_ops.embedding(ids, packed) - reference_ops.embedding(ids, weight)).abs() <= tolerance).all()
    assert packed.values.ctypes.data % 64 == 0
    assert packed.num_bytes <= 1.03 * 48 * (weight.data[0].nbytes + 4)


def test_joined_rows_are_one_weight(isa: str, tensor_ops: Any, stored_weight: MakeWeight) -> None:
    """Query, key and value projections of one format run as one product with the same bits."""
    parts = [stored_weight("q4_1", 48, 64, seed) for seed in range(3)]
    joined = StoredWeight("q4_1", np.concatenate([part.data for part in parts]))
    x = torch.randn(4, 64)
    apart = torch.cat([tensor_ops.linear(x, tensor_ops.pack(part), mode="quantized") for part in parts], dim=1)
    assert torch.equal(tensor_ops.linear(x, tensor_ops.pack(joined), mode="quantized"), apart)


def test_extreme_activations(isa: str, tensor_ops: Any, stored_weight: MakeWeight) -> None:
    weight = stored_weight("q8_0", 20, 64, 5)
    x = torch.zeros(4, 64)
    x[1], x[2] = 1e30, 1e-38
    x[3, 5] = -3e38
    result = tensor_ops.linear(x, tensor_ops.pack(weight), mode="quantized")
    assert torch.equal(result[0], torch.zeros(20))
    assert torch.equal(result[2], torch.zeros(20))
    torch.testing.assert_close(result[1], x[1] @ torch.from_numpy(weight.dequantize()).T, rtol=1e-2, atol=1e28)


def test_wrong_arguments_are_refused(isa: str, tensor_ops: Any, stored_weight: MakeWeight) -> None:
    weight = tensor_ops.pack(stored_weight("f32", 8, 16, 1))
    with pytest.raises(ValueError, match=r"x of \(T, 16\) float32"):
        tensor_ops.linear(torch.randn(2, 15), weight)
    with pytest.raises(ValueError, match="x of"):
        tensor_ops.linear(torch.randn(2, 16).double(), weight)
    with pytest.raises(ValueError, match=r"bias of \(8,\)"):
        tensor_ops.linear(torch.randn(2, 16), weight, torch.randn(7))
    with pytest.raises(ValueError, match="output of contiguous"):
        tensor_ops.linear(torch.randn(2, 16), weight, out=torch.empty(3, 8))
    with pytest.raises(IndexError, match=r"0\.\.7"):
        tensor_ops.embedding(torch.tensor([8]), weight)
    with pytest.raises(IndexError, match=r"0\.\.7"):
        tensor_ops.embedding(torch.tensor([-1]), weight)
