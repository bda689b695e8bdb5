"""Greedy output of the CUDA runner: the plain reference's token for token, with graphs and without."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from vtk.kernels import reference_ops
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation, LLMEngine, Vocabulary
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.load_cuda import make_cuda_runner
from vtk.llm_serving.loading.source import ModelInfo, ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.runner.base import HiddenStates, Logits, ModelRunner
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, RunnerSizes
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.gpu

SEED = 15
MARGIN = 1e-3  # between the two largest logits of the reference: float32's errors decide nothing
LENGTH, BLOCKS = 64, 40
ARGS = EngineArgs(max_model_len=LENGTH, max_num_seqs=4, max_num_batched_tokens=24, block_size=16)
SHAPES = (64, 96, 2, 4, 2, 16, 90, LENGTH, 1e-5, 1e4)
CONFIGS = {
    "llama": ModelConfig("llama", *SHAPES),
    "qwen2": ModelConfig("qwen2", *SHAPES, qkv_bias=True),
    "qwen3": ModelConfig("qwen3", *SHAPES, qk_norm=True, tie_embeddings=True),
}
QUESTIONS = ("What is the capital of France?", "Name three colors.", "What is 2 + 2?")
ANY_TOKEN = Vocabulary(lambda token: b"x", frozenset(), frozenset())


class Margins:
    """A runner, and the smallest lead of a largest logit that it has returned."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.smallest = float("inf")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, inputs: Any, hidden: HiddenStates | None = None) -> Logits:
        logits = self._runner.forward(inputs, hidden)
        if len(logits):
            best = np.sort(logits, axis=1)[:, -2:]
            self.smallest = min(self.smallest, float((best[:, 1] - best[:, 0]).min()))
        return logits


def random_source(gpu: Any, name: str) -> ModelSource:
    config = replace(CONFIGS[name], num_layers=gpu.pick(2, 1))
    generator = torch.Generator().manual_seed(SEED)
    values = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in config.tensor_shapes().items()}
    weights = ModelWeights(
        {name: StoredWeight("f32", value.numpy()) for name, value in values.items() if value.dim() == 2},
        {name: (value + 1).numpy() for name, value in values.items() if value.dim() == 1},
    )
    info = ModelInfo("tiny", Path("tiny"), "safetensors", config, "", "")
    return ModelSource(info, weights, cast("Tokenizer", None))


def generate(runner: Any, prompts: list[list[int]], output: int) -> list[list[int]]:
    """All at once, in chunks of the prompts that follow from the budget of a step, with the prefix cache."""
    engine = LLMEngine(runner, ANY_TOKEN, ARGS.scheduler_config(LENGTH))
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add(Generation(str(index), prompt, params))
    tokens: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for delta in engine.step():
            tokens[int(delta.request_id)] += [sampled.token for sampled in delta.tokens]
        engine.scheduler.check_integrity()
    return tokens


def make_prompts(gpu: Any) -> list[list[int]]:
    """Some with a common beginning, more than run at once."""
    rng = np.random.default_rng(3)
    sizes = gpu.pick((1, 5, 17, 33, 40, 16), (1, 3))
    common = rng.integers(0, 90, 16).tolist()
    return [(common + rng.integers(0, 90, size).tolist())[-size:] for size in sizes]


def cuda_runner(gpu: Any, source: ModelSource, args: EngineArgs, *, graphs: bool = True) -> Any:
    args = replace(args, max_num_seqs=gpu.pick(args.max_num_seqs, 2))  # fewer graphs
    return make_cuda_runner(
        source, args, gpu.runner_device(graphs=graphs), num_blocks=BLOCKS, max_positions=LENGTH
    )  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_the_reference(gpu: Any, name: str) -> None:
    source, prompts, output = random_source(gpu, name), make_prompts(gpu), gpu.pick(20, 2)
    sizes = RunnerSizes(BLOCKS, ARGS.block_size, "float32")
    reference = Margins(
        DecoderRunner(Decoder(source.info.config, source.weights, reference_ops), reference_ops, "reference", sizes)
    )
    expected = generate(reference, prompts, output)
    assert reference.smallest > MARGIN
    assert generate(cuda_runner(gpu, source, ARGS), prompts, output) == expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_graphs_change_nothing(gpu: Any, dtype: str) -> None:
    args = replace(ARGS, dtype=dtype)
    source, prompts, output = random_source(gpu, "llama"), make_prompts(gpu), gpu.pick(20, 2)
    with_graphs, without = (
        generate(cuda_runner(gpu, source, args, graphs=graphs), prompts, output) for graphs in (True, False)
    )
    assert with_graphs == without


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_smollm2_answers(gpu: Any, smollm2_path: Path, kv_cache_dtype: str) -> None:
    """The packaged model in float32; with an int8 cache only its first answer is known."""
    if gpu.interpreted:
        pytest.skip("the interpreter is too slow for a real model")
    args = EngineArgs(
        backend="cuda", dtype="float32", kv_cache_dtype=kv_cache_dtype, max_model_len=256, max_num_seqs=4,
        num_gpu_blocks_override=80,
    )  # type: ignore[arg-type]  # fmt: skip
    ours = answers(smollm2_path, args)
    assert ours[0] == "The capital of France is Paris."
    if kv_cache_dtype == "auto":
        assert ours == answers(smollm2_path, replace(args, backend="reference", dtype="auto"))


def answers(path: Path, args: EngineArgs) -> list[str]:
    loaded = load_engine(path, args)
    params = SamplingParams(temperature=0, max_tokens=24)
    for index, question in enumerate(QUESTIONS):
        prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": question}])
        loaded.engine.add(Generation(str(index), prompt, params))
    texts = [""] * len(QUESTIONS)
    while loaded.engine.has_work:
        for delta in loaded.engine.step():
            texts[int(delta.request_id)] += delta.text
    loaded.runner.close()
    return texts
