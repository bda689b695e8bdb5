"""From a model on disk to an engine that serves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vtk.errors import UsageError
from vtk.kernels import cpu_library, cpu_ops, reference_ops
from vtk.kernels.cuda_device import CudaDevice
from vtk.kernels.kv_cache import KV_DTYPES
from vtk.llm_serving import load_cuda
from vtk.llm_serving.affinity import num_usable_cores, pinned
from vtk.llm_serving.args import Backend, EngineArgs
from vtk.llm_serving.engine import LLMEngine
from vtk.llm_serving.heap import keep_heap_flat
from vtk.llm_serving.loading.source import ModelInfo, ModelSource, load_model_source
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.runner.base import ModelRunner
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, RunnerSizes, num_blocks_within
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

GIB = 1 << 30


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
        return make_engine(load_model_source(path), args)


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
    """The one that runs, chosen here and never after. BackendError for one asked for by name that cannot."""
    if args.backend == "cuda":
        load_cuda.check_cuda()
    if args.backend != "auto":
        return args.backend
    if args.linear_mode == "exact" and load_cuda.is_usable():
        return "cuda"
    return "cpu" if cpu_library.available()[0] else "reference"


def _num_blocks(source: ModelSource, args: EngineArgs) -> int:
    if args.backend == "cuda":
        free, total = torch.cuda.mem_get_info(load_cuda.check_cuda())
        return load_cuda.num_kv_blocks(args, source, free=free, total=total)
    budget = int(args.cpu_kvcache_space * GIB)
    return num_blocks_within(budget, source.info.config, args.block_size, args.kv_dtype)


def make_runner(source: ModelSource, args: EngineArgs, *, num_blocks: int, max_positions: int) -> ModelRunner:
    """The model on `args.backend`, which is not auto. BackendError if that is not there."""
    config, mode = source.info.config, args.linear_mode
    if args.backend == "cuda":
        device = CudaDevice(load_cuda.check_cuda())
        return load_cuda.make_cuda_runner(source, args, device, num_blocks=num_blocks, max_positions=max_positions)
    if args.kv_dtype not in KV_DTYPES or args.dtype not in ("auto", "float32"):
        raise UsageError(
            f"The CPU computes in float32 and caches float32, float16 or int8; dtype is {args.dtype}, kv_cache_dtype "
            f"{args.kv_cache_dtype}.",
        )
    sizes = RunnerSizes(num_blocks, args.block_size, args.kv_dtype)
    if args.backend == "cpu":
        cpu_library.set_num_threads(args.num_threads or num_usable_cores())
        packed = Decoder(config, source.weights, cpu_ops, mode=mode, max_positions=max_positions)
        return DecoderRunner(packed, cpu_ops, f"cpu-{cpu_library.isa()}", sizes)
    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    # Exact mode computes on float32 copies: the oracle that every backend is held to.
    weights = source.weights.dequantized() if mode == "exact" else source.weights
    model = Decoder(config, weights, reference_ops, mode=mode, max_positions=max_positions)
    return DecoderRunner(model, reference_ops, "reference", sizes)
