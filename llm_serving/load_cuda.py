"""The CUDA backend: whether it can run, in which type, with how much KV memory."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from vtk.errors import BackendError, MissingDependencyError, UsageError
from vtk.kernels.cuda_device import CudaDevice
from vtk.kernels.device import Device
from vtk.kernels.kv_cache import KvDtype
from vtk.kernels.torch_cache import kv_name
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.runner.cuda_runner import CudaRunner, GraphSizes
from vtk.llm_serving.runner.decoder_runner import RunnerSizes, num_blocks_within

NEEDED_CAPABILITY = (8, 0)
_COMPUTED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ATTENTION_SPLIT = 256  # positions behind each partial result of a decode step


def check_cuda() -> torch.device:
    """The device to use. BackendError or MissingDependencyError where the kernels cannot run."""
    if find_spec("triton") is None:
        raise MissingDependencyError("triton", needed_for="The backend 'cuda'", extra="gpu")
    if not torch.cuda.is_available():
        raise BackendError(
            f"The backend 'cuda' needs an NVIDIA GPU; PyTorch {torch.__version__} finds none.",
            hint="Run vtk doctor to see why, or use the backend 'cpu'.",
        )
    device = torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.get_device_capability(device) < NEEDED_CAPABILITY:
        raise BackendError(
            f"The backend 'cuda' needs compute capability 8.0 or more; {torch.cuda.get_device_name(device)} has "
            f"{'.'.join(map(str, torch.cuda.get_device_capability(device)))}.",
            hint="Use the backend 'cpu'.",
        )
    return device


def compute_dtype(args: EngineArgs, weights: ModelWeights) -> torch.dtype:
    """Of weights and activations: as asked, or the one float type of all matrices; float16 for blocks and mixtures."""
    asked = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}.get(args.dtype)
    kinds = {_COMPUTED.get(matrix.format, torch.float16) for matrix in weights.matrices.values()}
    return asked or (kinds.pop() if len(kinds) == 1 else torch.float16)


def kv_dtype(args: EngineArgs, dtype: torch.dtype) -> KvDtype:
    """Of the cache: the activations' type, int8 or float8. UsageError for any other, which the kernels do not read."""
    own = kv_name(dtype)
    asked = own if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    if asked not in (own, "int8", "fp8"):
        raise UsageError(
            f"On a GPU the KV cache has the type of the activations or 8 bits; kv_cache_dtype is {args.kv_cache_dtype} "
            f"and dtype {own}.",
            hint="Use kv_cache_dtype auto, int8 or fp8, or set dtype.",
        )
    return asked


def reserved_bytes(config: ModelConfig, args: EngineArgs, dtype: torch.dtype, max_positions: int) -> int:
    """What a step takes beside the cache: weights, the widest activations, logits, and attention's partial results."""
    weights = sum(torch.Size(shape).numel() for shape in config.tensor_shapes().values()) * dtype.itemsize
    widest = 4 * config.hidden_size + 3 * config.intermediate_size + 2 * config.num_heads * config.head_dim
    activations = 2 * args.max_num_batched_tokens * widest * dtype.itemsize
    logits = 3 * args.max_num_seqs * config.vocab_size * dtype.itemsize
    splits = -(-max_positions // ATTENTION_SPLIT)
    partial = args.max_num_seqs * splits * config.num_heads * (config.head_dim + 1) * torch.float32.itemsize
    return weights + activations + logits + partial


def num_kv_blocks(args: EngineArgs, source: ModelSource, *, free: int, total: int) -> int:
    """How many blocks `gpu_memory_utilization` leaves room for, of `free` among `total` bytes. UsageError for none."""
    config, dtype = source.info.config, compute_dtype(args, source.weights)
    reserved = reserved_bytes(config, args, dtype, args.max_model_len or config.max_positions)
    budget = int(total * args.gpu_memory_utilization) - (total - free) - reserved
    hint = "Raise gpu_memory_utilization, or lower max_model_len or max_num_seqs."
    return num_blocks_within(max(0, budget), config, args.block_size, kv_dtype(args, dtype), hint)


def num_free_kv_blocks(args: EngineArgs, source: ModelSource) -> int:
    """`num_kv_blocks` of what is free now on the device to use."""
    free, total = torch.cuda.mem_get_info(check_cuda())
    return num_kv_blocks(args, source, free=free, total=total)


def load_cuda_runner(
    source: ModelSource, args: EngineArgs, *, num_blocks: int, max_positions: int
) -> CudaRunner[torch.Tensor]:
    """`make_cuda_runner` on the device to use."""
    return make_cuda_runner(source, args, CudaDevice(check_cuda()), num_blocks=num_blocks, max_positions=max_positions)


def make_cuda_runner(
    source: ModelSource, args: EngineArgs, device: Device, *, num_blocks: int, max_positions: int
) -> CudaRunner[torch.Tensor]:
    """The model on one device. UsageError for what only the CPU does."""
    from vtk.kernels.cuda_ops import CudaOps  # imports Triton

    if args.linear_mode != "exact":
        raise UsageError("Quantized activations are computed on the CPU only.", hint="Use linear_mode exact.")
    config, dtype = source.info.config, compute_dtype(args, source.weights)
    ops = CudaOps(device.torch_device, dtype)
    model = Decoder(config, source.weights, ops, max_positions=max_positions)
    sizes = RunnerSizes(num_blocks, args.block_size, kv_dtype(args, dtype))
    graphs = GraphSizes(args.max_num_seqs, -(-max_positions // args.block_size), dtype)
    return CudaRunner(model, ops, f"cuda-{str(dtype).removeprefix('torch.')}", device, sizes, graphs)
