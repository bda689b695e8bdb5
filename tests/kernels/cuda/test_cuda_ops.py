"""A model over the Triton kernels: interpreted beside the reference, and launched on a device that is not there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vtk.kernels import reference_ops
from vtk.kernels.cuda_ops import CudaOps
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.torch_cache import allocate_cache, kv_name
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.step_tensors import StepTensors
from vtk.llm_serving.models.weights import ModelWeights

BLOCKS, BLOCK = 6, 16
CPU = torch.device("cpu")
SHAPES = (32, 48, 1, 4, 2, 16, 40, 64, 1e-5, 1e4)
CONFIGS = {
    "qwen2": ModelConfig("qwen2", *SHAPES, qkv_bias=True),
    "qwen3": ModelConfig("qwen3", *SHAPES, qk_norm=True, tie_embeddings=True),
}


def weights_of(config: ModelConfig, dtype: torch.dtype = torch.float32) -> ModelWeights:
    generator = torch.Generator().manual_seed(5)
    values = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in config.tensor_shapes().items()}
    matrices = {
        name: StoredWeight("f32", value.to(dtype).float().numpy()) for name, value in values.items() if value.dim() == 2
    }
    return ModelWeights(matrices, {name: (value + 1).numpy() for name, value in values.items() if value.dim() == 1})


def step(device: torch.device, lengths: list[tuple[int, int]]) -> StepTensors:
    """Of each sequence its length after the step and its new tokens; sequence i has the blocks 2 i + 1 and 2 i."""
    counts = [count for _, count in lengths]
    positions = np.concatenate([np.arange(length - count, length) for length, count in lengths])
    owner = np.repeat(np.arange(len(lengths)), counts)
    blocks = np.array([[2 * i + 1, 2 * i] for i in range(len(lengths))], np.int32)
    slots = blocks[owner, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    bounds = np.cumsum([0, *counts]).astype(np.int32)
    arrays = (
        (positions * 5 + owner) % 40, positions, slots, bounds[1:].astype(np.int64) - 1, bounds,
        np.array([length for length, _ in lengths], np.int32), blocks,
    )  # fmt: skip
    return StepTensors(*(torch.from_numpy(array).to(device) for array in arrays))


def cache(config: ModelConfig, dtype: torch.dtype, device: torch.device = CPU) -> LayerCache:
    return allocate_cache(BLOCKS, config.num_kv_heads, BLOCK, config.head_dim, kv_name(dtype), device)


@pytest.mark.parametrize(
    ("name", "dtype", "kv", "tolerance"),
    [
        ("qwen3", torch.float32, torch.float32, 1e-5),
        ("qwen2", torch.float32, torch.int8, 0.05),
        ("qwen2", torch.bfloat16, torch.bfloat16, 0.05),
        ("qwen3", torch.float16, torch.float16, 0.01),
    ],
)
def test_a_prompt_and_a_token_after_it(
    interpreting: Callable[[], Any], name: str, dtype: torch.dtype, kv: torch.dtype, tolerance: float
) -> None:
    """Logits as the float32 reference's on the same weights, within a share of their spread that the type explains."""
    config = CONFIGS[name]
    weights = weights_of(config, dtype)
    ours = Decoder(config, weights, CudaOps(CPU, dtype))
    theirs = Decoder(config, weights, reference_ops)
    caches, exact = [cache(config, kv)], [cache(config, torch.float32)]
    for lengths in ([(18, 18), (3, 3)], [(19, 1), (4, 1)]):
        expected = theirs.forward(step(CPU, lengths), exact)
        with interpreting():
            result = ours.forward(step(CPU, lengths), caches)
        assert result.dtype == dtype
        assert (result.float() - expected).abs().max() < tolerance * expected.std()


def test_steps_read_no_value_on_the_host(fake_cuda: Callable[[int], Any]) -> None:
    """On the meta device a tensor has no values: a synchronization, which no graph could hold, would raise."""
    config, meta = CONFIGS["qwen3"], torch.device("meta")
    model = Decoder(config, weights_of(config), CudaOps(meta, torch.float32))
    with fake_cuda(90) as device:
        for lengths in ([(18, 18), (3, 3)], [(19, 1), (4, 1)]):
            logits = model.forward(step(meta, lengths), [cache(config, torch.float32, meta)])
            assert logits.shape == (2, config.vocab_size)
    names = [launch.name for launch in device.launches]
    once = ["_embedding", "_rms_norm", "_rope_and_cache", "attend", "_rms_norm", "_silu_and_mul", "_rms_norm"]
    assert names == once * 2


def test_products_are_of_the_weights_as_decoded() -> None:
    stored = StoredWeight("int8", np.array([[1, -2], [3, 4]], np.int8), np.array([0.5, 2.0], np.float32))
    ops = CudaOps(CPU, torch.float16)
    packed = ops.pack(stored)
    assert packed.dtype == torch.float16
    assert packed.tolist() == [[0.5, -1.0], [6.0, 8.0]]
    out = torch.empty(1, 2, dtype=torch.float16)
    result = ops.linear(torch.tensor([[1.0, 2.0]], dtype=torch.float16), packed, torch.tensor([1.0, 0.0]), out=out)
    assert result is out
    assert out.tolist() == [[-0.5, 22.0]]
    with pytest.raises(ValueError, match="mode 'exact'"):
        ops.linear(out, packed, mode="quantized")
