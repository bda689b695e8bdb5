"""From a model on disk to an engine that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vtk.kernels import reference_ops
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import LLMEngine
from vtk.llm_serving.loading.source import ModelSource, load_model_source
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.runner.base import ModelRunner
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, num_blocks_within
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

GIB = 1 << 30


@dataclass(frozen=True, eq=False)
class LoadedEngine:
    """An engine with what its callers need beside it: the tokenizer, the context served, the source of the weights."""

    engine: LLMEngine
    tokenizer: Tokenizer
    runner: ModelRunner
    source: ModelSource
    max_model_len: int


def load_engine(path: Path, args: EngineArgs) -> LoadedEngine:
    """Read the model, choose the backend once, and set up the engine. Raises CheckpointError and UsageError."""
    return make_engine(load_model_source(path), args)


def make_engine(source: ModelSource, args: EngineArgs) -> LoadedEngine:
    """An engine over a model that was read already."""
    config = source.config
    num_blocks = args.num_gpu_blocks_override or num_blocks_within(
        int(args.cpu_kvcache_space * GIB), config, args.block_size, args.kv_dtype
    )
    max_model_len = args.model_len(config.max_positions, num_blocks)
    scheduling = args.scheduler_config(max_model_len)
    runner = make_runner(source, args, num_blocks=num_blocks, max_positions=max_model_len)
    engine = LLMEngine(
        runner, source.tokenizer.vocabulary(), scheduling, enable_prefix_caching=args.enable_prefix_caching
    )
    return LoadedEngine(engine, source.tokenizer, runner, source, max_model_len)


def make_runner(source: ModelSource, args: EngineArgs, *, num_blocks: int, max_positions: int) -> ModelRunner:
    """The reference works on float32 copies of the weights: the oracle that every backend is held to."""
    ops = reference_ops
    weights = source.weights.dequantized()
    model = Decoder(source.config, weights, ops, mode=args.linear_mode, max_positions=max_positions)
    return DecoderRunner(
        model, ops, "reference", num_blocks=num_blocks, block_size=args.block_size, kv_dtype=args.kv_dtype
    )
