"""A GGUF file or a Hugging Face folder as a served model, with as much KV memory as it was promised or is left."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from vtk.llm_serving.affinity import pinned
from vtk.llm_serving.args import EngineArgs, EngineOptions
from vtk.llm_serving.heap import keep_heap_flat
from vtk.llm_serving.load import GIB, LoadedEngine, make_engine
from vtk.llm_serving.loading.source import ModelInfo, load_model_source
from vtk.llm_serving.runner.decoder_runner import block_bytes
from vtk.requirements import require_llm
from vtk.serving.arbiter import Arbiter
from vtk.serving.language_model import LanguageModel
from vtk.serving.memory import Footprint, MemoryBudget, resident_memory
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import ModelStatus, OpenedModel
from vtk.serving.settings import RuntimeSettings
from vtk.serving.traffic import TrafficProfile
from vtk.serving.warm_language import replay, warm_up_language

_FLOAT_BYTES = 4
_SHARE_OF_ROOM = 0.8  # activations are an estimate as yet
_log = logging.getLogger(__name__)


def open_language(
    found: FoundModel, settings: RuntimeSettings, arbiter: Arbiter, budget: MemoryBudget, traffic: TrafficProfile
) -> OpenedModel:
    """See `ModelOpener`."""
    require_llm()
    keep_heap_flat()
    options: EngineOptions = {"gpu_memory_utilization": settings.gpu_memory_utilization, **settings.engine}
    args = EngineArgs(**options)
    before = resident_memory()
    with ExitStack() as undo:
        with pinned(args.cpus):
            source = load_model_source(found.path)
            # The file stays mapped, and backends keep the weights in an order of their own.
            weights = 2 * file_bytes(found.path)
            expected = Footprint(weights, activations=activation_bytes(source.info, args))
            if "cpu_kvcache_space" not in settings.engine:
                args = fit_kv_cache(args, budget.free - expected.total)
            expected = replace(expected, kv=kv_bytes(source.info, args))
            reservation = budget.reserve(f"{found.name} {found.version}", expected)
            undo.callback(reservation.release)
            loaded = make_engine(source, args)
        model = LanguageModel(
            loaded, args, arbiter, name=found.name, version=found.version, max_queued=settings.max_queued_requests
        )
        undo.callback(model.close)
        warm_up_language(model.loop, max_model_len=loaded.max_model_len)
        reservation.measure(resident_memory() - before)
        prefixes = traffic.prefixes(loaded.info.tensor_digest)
        num_warm = replay(model.loop, prefixes, vocab_size=loaded.runner.vocab_size, max_model_len=loaded.max_model_len)
        _log.info("%s: %d of %d frequent prefixes are in the cache", found.name, num_warm, len(prefixes))
        return OpenedModel(model, _facts(found, loaded, args, reservation.footprint.total), undo.pop_all().close)


def file_bytes(path: Path) -> int:
    """Size of the weight files."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def activation_bytes(info: ModelInfo, args: EngineArgs) -> int:
    """What a full step takes beside weights and cache, as estimated before it can be measured: rows and logits."""
    config = info.config
    row = 4 * config.hidden_size + 3 * config.intermediate_size + 2 * config.query_size
    return _FLOAT_BYTES * (args.max_num_batched_tokens * row + args.max_num_seqs * config.vocab_size)


def fit_kv_cache(args: EngineArgs, room: int) -> EngineArgs:
    """The default size of the KV cache, or less where `room` bytes are too few; a number of blocks is never changed."""
    space = _SHARE_OF_ROOM * room / GIB
    if args.num_gpu_blocks_override is not None or args.cpu_kvcache_space <= space or room <= 0:
        return args
    _log.warning(
        "the KV cache gets %.3f GiB of the %.3f that are left, not %.3f", space, room / GIB, args.cpu_kvcache_space
    )
    return replace(args, cpu_kvcache_space=space)


def kv_bytes(info: ModelInfo, args: EngineArgs) -> int:
    """Size of the KV cache that `make_engine` makes."""
    if args.num_gpu_blocks_override is None:
        return int(args.cpu_kvcache_space * GIB)
    return args.num_gpu_blocks_override * block_bytes(info.config, args.block_size, args.kv_dtype)


def _facts(found: FoundModel, loaded: LoadedEngine, args: EngineArgs, num_bytes: int) -> ModelStatus:
    return ModelStatus(
        found.name,
        found.version,
        found.kind,
        task="generate",
        state="ready",
        bytes=num_bytes,
        backend=loaded.runner.backend,
        device=loaded.runner.device,
        precision=f"{loaded.info.format}, {args.linear_mode}",
        source_sha256=loaded.info.file_sha256,
        tensor_digest=loaded.info.tensor_digest,
        created=time.time(),
    )
