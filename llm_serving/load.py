"""From a model on disk to an engine that serves it. Torch is imported only where its backend, or CUDA, was chosen."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt

from vtk.errors import BackendError, MissingDependencyError, UsageError
from vtk.kernels import cpu_library, cpu_ops
from vtk.kernels.host_memory import mapped_rows
from vtk.kernels.kv_cache import CPU_KV_DTYPES
from vtk.kernels.ops import Ops
from vtk.kernels.packed_weight import PackedWeight
from vtk.kernels.paged_attention.cpu import MAX_HEAD_DIM
from vtk.llm_serving.affinity import num_usable_cores, pinned
from vtk.llm_serving.args import Backend, EngineArgs
from vtk.llm_serving.engine import LLMEngine
from vtk.llm_serving.gpu_presence import has_nvidia_gpu
from vtk.llm_serving.heap import keep_heap_flat, trim_heap
from vtk.llm_serving.loading.source import ModelInfo, ModelSource, load_model_source
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.runner.base import ModelRunner
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, RunnerSizes, block_bytes, num_blocks_within
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

GIB = 1 << 30
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoadedEngine:
    """An engine with what its callers need beside it: the tokenizer, the context served, what the weights are."""

    engine: LLMEngine
    tokenizer: Tokenizer
    runner: ModelRunner
    info: ModelInfo
    max_model_len: int


def load_engine(path: Path, args: EngineArgs) -> LoadedEngine:
    """Read the model, choose the backend once, and set up the engine. Raises CheckpointError and UsageError."""
    keep_heap_flat()
    with pinned(args.cpus):
        loaded = make_engine(load_model_source(path), args)
        trim_heap()  # reading a file and packing its weights left holes
        return loaded


def make_engine(source: ModelSource, args: EngineArgs) -> LoadedEngine:
    """An engine over a model that was read already."""
    config = source.info.config
    args = replace(args, backend=_backend(args))
    num_blocks = args.num_gpu_blocks_override or _num_blocks(source, args)
    max_model_len = args.model_len(config.max_positions, num_blocks)
    scheduling = args.scheduler_config(max_model_len)
    runner = make_runner(source, args, num_blocks=num_blocks, max_positions=max_model_len)
    engine = LLMEngine(
        runner, source.tokenizer.vocabulary(), scheduling, enable_prefix_caching=args.enable_prefix_caching
    )
    return LoadedEngine(engine, source.tokenizer, runner, source.info, max_model_len)


def _backend(args: EngineArgs) -> Backend:
    """The one that runs, chosen here and never after. BackendError or MissingDependencyError where it cannot."""
    if args.backend == "cuda":
        _check_cuda()
    if args.backend != "auto":
        return args.backend
    if args.linear_mode == "exact" and has_nvidia_gpu() and _gpu_is_usable():
        return "cuda"
    try:
        cpu_library.isa()
    except BackendError as error:
        if find_spec("torch") is not None:
            _log.warning("language models run on plain PyTorch, many times slower: %s", error)
            return "reference"
        raise BackendError(
            f"Language models need compiled kernels or PyTorch, and neither is there. {error.message}",
            hint="Install a C++ compiler (g++ or clang++) and vtk-deploy again; or, many times slower, "
            "pip install 'vtk-deploy[torch]'.",
        ) from error
    return "cpu"


def _gpu_is_usable() -> bool:
    """Whether the GPU that is there can be used; why not is told, since nobody asked for the CPU."""
    try:
        _check_cuda()
    except (BackendError, MissingDependencyError) as error:
        _log.warning("the NVIDIA GPU is not used: %s", error)
        return False
    return True


def _check_cuda() -> None:
    _require_torch("cuda", extra="gpu")
    from vtk.llm_serving.load_cuda import check_cuda

    check_cuda()


def _require_torch(backend: Backend, *, extra: str) -> None:
    if find_spec("torch") is None:
        raise MissingDependencyError("torch", needed_for=f"The backend '{backend}'", extra=extra)


def _num_blocks(source: ModelSource, args: EngineArgs) -> int:
    if args.backend == "cuda":
        from vtk.llm_serving.load_cuda import num_free_kv_blocks

        return num_free_kv_blocks(args, source)
    budget = int(args.cpu_kvcache_space * GIB)
    return num_blocks_within(budget, source.info.config, args.block_size, args.kv_dtype)


def make_runner(source: ModelSource, args: EngineArgs, *, num_blocks: int, max_positions: int) -> ModelRunner:
    """The model on `args.backend`, which is not auto. BackendError or MissingDependencyError if that is not there."""
    if args.backend == "cuda":
        from vtk.llm_serving.load_cuda import load_cuda_runner

        return load_cuda_runner(source, args, num_blocks=num_blocks, max_positions=max_positions)
    if args.kv_dtype not in CPU_KV_DTYPES or args.dtype not in ("auto", "float32"):
        raise UsageError(
            f"The CPU computes in float32 and caches float32, float16 or int8; dtype is {args.dtype}, kv_cache_dtype "
            f"{args.kv_cache_dtype}.",
        )
    sizes = RunnerSizes(num_blocks, args.block_size, args.kv_dtype)
    _check_kv_memory(source.info.config, sizes)
    if args.backend == "reference":
        return _reference_runner(source, args, sizes, max_positions)
    if source.info.config.head_dim > MAX_HEAD_DIM:
        raise BackendError(
            f"The compiled kernels take heads of up to {MAX_HEAD_DIM} dimensions; {source.info.name} has "
            f"{source.info.config.head_dim}.",
            hint="The backend 'reference' takes any, in plain PyTorch and many times slower.",
        )
    cpu_library.set_num_threads(args.num_threads or num_usable_cores())
    ops: Ops[PackedWeight, npt.NDArray[Any]] = cpu_ops
    mode = args.linear_mode
    model = Decoder(
        source.info.config, source.weights, ops, mode=mode, max_positions=max_positions, lasting=mapped_rows
    )
    return DecoderRunner(model, ops, f"cpu-{cpu_library.isa()}", sizes)


def _check_kv_memory(config: ModelConfig, sizes: RunnerSizes) -> None:
    """Its pages are taken as they are used: one that can never be held would end the process while it answers."""
    wanted = sizes.num_blocks * block_bytes(config, sizes.block_size, sizes.kv_dtype)
    if wanted > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise UsageError(
            f"A KV cache of {sizes.num_blocks} blocks of {sizes.block_size} tokens takes {wanted // GIB} GiB, and this "
            f"machine has {memory // GIB}.",
            hint="Lower cpu_kvcache_space, or num_gpu_blocks_override and block_size.",
        )


def _reference_runner(source: ModelSource, args: EngineArgs, sizes: RunnerSizes, max_positions: int) -> ModelRunner:
    _require_torch("reference", extra="torch")
    import torch

    from vtk.kernels import reference_ops

    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    # Exact mode computes on float32 copies: the oracle that every backend is held to.
    weights = source.weights.dequantized() if args.linear_mode == "exact" else source.weights
    model = Decoder(source.info.config, weights, reference_ops, mode=args.linear_mode, max_positions=max_positions)
    return DecoderRunner(model, reference_ops, "reference", sizes)
