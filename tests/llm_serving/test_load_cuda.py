"""Choosing the CUDA backend, its types and its memory, on a machine without a GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vtk.errors import BackendError, MissingDependencyError, UsageError
from vtk.kernels.kv_cache import KvDtype
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight
from vtk.llm_serving import load_cuda
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.load import make_engine
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.runner.decoder_runner import block_bytes

GIB = 1 << 30
CONFIG = ModelConfig("llama", 4096, 14336, 32, 32, 8, 128, 128_256, 8192, 1e-5, 5e5)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")


def test_a_gpu_asked_for_by_name_is_not_replaced(smollm2: ModelSource, without_gpu: None) -> None:
    with pytest.raises(BackendError, match=r"'cuda' needs an NVIDIA GPU; PyTorch .* finds none\. Run vtk doctor"):
        make_engine(smollm2, EngineArgs(backend="cuda", num_gpu_blocks_override=4))
    assert make_engine(smollm2, EngineArgs(num_gpu_blocks_override=4)).runner.device == "cpu"


def test_a_gpu_too_old_is_named(old_gpu: None) -> None:
    with pytest.raises(BackendError, match=r"8\.0 or more; Tesla T4 has 7\.5"):
        load_cuda.check_cuda()


def test_without_triton_the_install_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_cuda, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vtk-deploy\[gpu\]'"):
        load_cuda.check_cuda()


def weights(*formats: str) -> ModelWeights:
    stored = [
        StoredWeight(
            name, np.zeros((1, 32), FLOAT_FORMATS[name]) if name in FLOAT_FORMATS else np.zeros((1, 34), np.uint8)
        )
        for name in formats
    ]
    return ModelWeights({str(i): weight for i, weight in enumerate(stored)}, {})


@pytest.mark.parametrize(
    ("asked", "formats", "dtype"),
    [
        ("auto", ["bf16", "bf16"], torch.bfloat16),
        ("auto", ["f32"], torch.float32),
        ("auto", ["q8_0", "q8_0"], torch.float16),
        ("auto", ["q8_0", "f32"], torch.float16),
        ("float32", ["bf16"], torch.float32),
    ],
)
def test_the_type_is_that_of_the_weights(asked: Any, formats: list[str], dtype: torch.dtype) -> None:
    assert load_cuda.compute_dtype(EngineArgs(dtype=asked), weights(*formats)) == dtype


@pytest.mark.parametrize(("asked", "dtype"), [("auto", "bfloat16"), ("int8", "int8"), ("fp8", "fp8")])
def test_the_cache_follows(asked: Any, dtype: KvDtype) -> None:
    assert load_cuda.kv_dtype(EngineArgs(kv_cache_dtype=asked), torch.bfloat16) == dtype


def test_a_cache_that_the_kernels_do_not_read_is_refused() -> None:
    with pytest.raises(UsageError, match="kv_cache_dtype is float16 and dtype bfloat16"):
        load_cuda.kv_dtype(EngineArgs(kv_cache_dtype="float16"), torch.bfloat16)


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "bfloat16"}, {"dtype": "float16"}])
def test_the_cpu_refuses_a_gpus_types(smollm2: ModelSource, options: Any) -> None:
    with pytest.raises(UsageError, match="The CPU computes in float32"):
        make_engine(smollm2, EngineArgs(backend="reference", num_gpu_blocks_override=4, **options))


def source(smollm2: ModelSource) -> ModelSource:
    """An 8 billion parameter model, but for its weights."""
    return replace(smollm2, info=replace(smollm2.info, config=CONFIG), weights=weights("bf16"))


def test_memory_is_shared_out(smollm2: ModelSource) -> None:
    """An 8B model on 80 GB: 16.1 GB of weights, less than 4 GB for a step, and the rest of 90 % is cache."""
    args = EngineArgs()
    reserved = load_cuda.reserved_bytes(CONFIG, args, torch.bfloat16, 8192)
    assert 16.0e9 < reserved < 20.0e9
    blocks = load_cuda.num_kv_blocks(args, source(smollm2), free=78 * GIB, total=80 * GIB)
    taken = reserved + blocks * block_bytes(CONFIG, 16, "bfloat16") + 2 * GIB
    assert 0.9 * 80 * GIB - block_bytes(CONFIG, 16, "bfloat16") < taken <= 0.9 * 80 * GIB


def test_too_little_memory_is_said(smollm2: ModelSource) -> None:
    with pytest.raises(UsageError, match="Raise gpu_memory_utilization"):
        load_cuda.num_kv_blocks(EngineArgs(), source(smollm2), free=15 * GIB, total=16 * GIB)
