"""Samples as `grid_sample` takes them, from maps that lie one after the other."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from triton.runtime.errors import InterpreterError

from vtk.exporters.modules.deformable import deform_attn
from vtk.kernels.ms_deform_attn import cuda, reference

pytestmark = pytest.mark.usefixtures("interpreted")

LEVELS, POINTS = ((5, 7), (3, 4), (1, 2)), (3, 1, 2)
BATCH, HEADS, QUERIES = 2, 3, 19


def random_inputs(dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values with a gap between heads; locations inside, at the border and far outside of the maps."""
    positions = sum(height * width for height, width in LEVELS)
    value = torch.full((BATCH, positions, HEADS, dim + 4), torch.nan, dtype=dtype)[..., :dim]
    value.copy_(torch.randn(value.shape))
    locations = torch.rand(BATCH, HEADS, QUERIES, sum(POINTS), 2) * 1.6 - 0.3
    locations[:, :, 0] = torch.tensor([0.0, 1.0])
    locations[:, :, 1] = torch.tensor([3e4, -3e4])
    weights = torch.randn(BATCH, HEADS, QUERIES, sum(POINTS)).softmax(-1)
    return value, locations.to(dtype), weights.to(dtype)


def expected(value: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What the exported module computes, in float64."""
    maps, start = [], 0
    for height, width in LEVELS:
        part = value[:, start : start + height * width].double().flatten(2).transpose(1, 2)
        maps.append(part.unflatten(2, (height, width)))
        start += height * width
    return deform_attn(maps, locations.double(), weights.double(), POINTS)


def check(module: ModuleType, dim: int, dtype: torch.dtype = torch.float32) -> None:
    value, locations, weights = random_inputs(dim, dtype)
    out = module.ms_deform_attn(value, LEVELS, POINTS, locations, weights)
    assert out.dtype == dtype
    close = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(out.double(), expected(value, locations, weights), rtol=close, atol=close)


@pytest.mark.parametrize("dim", [16, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type(dim: int, dtype: torch.dtype) -> None:
    check(cuda, dim, dtype)


def test_the_reference() -> None:
    check(reference, 16)


def test_a_location_that_is_not_a_number_samples_zeros() -> None:
    value, locations, weights = random_inputs(16, torch.float32)
    locations[0, 1, 5, 2, 0] = torch.nan
    out = cuda.ms_deform_attn(value, LEVELS, POINTS, locations, weights)
    locations[0, 1, 5, 2, 0] = -9.0
    torch.testing.assert_close(out.double(), expected(value, locations, weights), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("module", [cuda, reference])
def test_no_queries(module: ModuleType) -> None:
    value, locations, weights = random_inputs(16, torch.float32)
    out = module.ms_deform_attn(value, LEVELS, POINTS, locations[:, :, :0], weights[:, :, :0])
    assert out.shape == (BATCH, 0, HEADS * 16)


def test_shapes_that_do_not_fit_are_refused() -> None:
    value, locations, weights = random_inputs(16, torch.float32)
    with pytest.raises(ValueError, match="values of the maps"):
        cuda.ms_deform_attn(value[:, 1:], LEVELS, POINTS, locations, weights)
    with pytest.raises(ValueError, match="weights and locations"):
        cuda.ms_deform_attn(value, LEVELS, POINTS, locations[:, :, :, 1:], weights)


MUTATIONS = {
    "mask of the map dropped": ("(x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)", "x < 1000"),
    "right border off by one": ("(x >= 0) & (x < WIDTH)", "(x >= 0) & (x <= WIDTH)"),
    "corners aligned": ("* WIDTH - 0.5", "* WIDTH"),
    "wrong scale": ("tl.float32) * HEIGHT", "tl.float32) * WIDTH"),
    "x and y mixed up": ("location + 2 * point + 1", "location + 2 * point"),
    "corner off by one": ("x0 + 1, y0 + 1, lower", "x0, y0 + 1, lower"),
    "shares mixed up": ("x0 + 1, y0, upper * rightness", "x0 + 1, y0, upper * (1 - rightness)"),
    "level not skipped": ("start += HEIGHTS[level] * WIDTHS[level]", "start += WIDTHS[level]"),
    "points of a level not skipped": ("share += POINTS[level]", "share += 1"),
    "head forgotten": (" + head * weights_head", ""),
    "mask of the channels dropped": ("inside[:, None] & (dim < D)[None, :]", "inside[:, None]"),
    "mask of the queries dropped": ("mask=(query < queries)[:, None] & (dim < D)[None, :],\n", ""),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[..., ModuleType], name: str) -> None:
    module = mutated("vtk.kernels.ms_deform_attn.cuda", *MUTATIONS[name])
    with pytest.raises((AssertionError, InterpreterError)):
        check(module, 5)
