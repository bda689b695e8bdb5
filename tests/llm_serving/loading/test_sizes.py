"""What the memory or the kernels of this machine cannot hold is refused before anything is computed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vtk.errors import BackendError, UsageError
from vtk.kernels import cpu_library
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.load import load_engine, make_engine
from vtk.llm_serving.loading.source import load_model_source

NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")


@pytest.mark.parametrize(
    "arguments",
    [
        {"cpu_kvcache_space": 1e6},
        {"num_gpu_blocks_override": 10**12},
        {"num_gpu_blocks_override": 8, "block_size": 10**400},
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_cache_beyond_the_memory_of_the_machine(folder: Path, arguments: dict[str, Any], backend: Any) -> None:
    with pytest.raises(UsageError, match=r"takes \d+ GiB, and this machine has \d+\. Lower cpu_kvcache_space"):
        make_engine(load_model_source(folder), EngineArgs(backend=backend, **arguments))


@NO_KERNELS
def test_heads_too_wide_for_the_kernels(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Each step would fail, and with it every request."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "head_dim": 258}))
    for name in ("q", "k", "v", "o"):
        rows = 258 * (4 if name in "qo" else 2)
        tensors[f"model.layers.0.self_attn.{name}_proj.weight"] = torch.ones((rows, 64)[:: -1 if name == "o" else 1])
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BackendError, match=r"up to 256 dimensions; .* has 258\. The backend 'reference' takes any"):
        load_engine(folder, EngineArgs(backend="cpu", num_gpu_blocks_override=8))
    assert load_engine(folder, EngineArgs(backend="reference", num_gpu_blocks_override=8)).runner.backend == "reference"
