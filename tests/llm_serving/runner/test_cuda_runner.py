"""The CUDA runner's steps on a recording device: the reference's logits, and an order for every access."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from vtk.errors import UsageError
from vtk.kernels import reference_ops
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.step_inputs import AttentionMetadata, StepInputs
from vtk.llm_serving.load_cuda import make_cuda_runner
from vtk.llm_serving.loading.source import ModelInfo, ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.runner.cuda_runner import NO_TOKENS, CudaRunner, GraphSizes
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, RunnerSizes
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

BLOCK = 4
CONFIG = ModelConfig("qwen3", 32, 48, 2, 4, 2, 8, 40, 64, 1e-5, 1e4, qk_norm=True, tie_embeddings=True)
SIZES = RunnerSizes(num_blocks=20, block_size=BLOCK, kv_dtype="float32")
GRAPHS = GraphSizes(max_sequences=5, max_blocks=8, dtype=torch.float32)


@pytest.fixture(scope="module")
def weights() -> ModelWeights:
    random = np.random.default_rng(5)
    values = {
        name: random.standard_normal(shape, np.float32) * np.float32(0.3)
        for name, shape in CONFIG.tensor_shapes().items()
    }
    return ModelWeights(
        {name: StoredWeight("f32", value) for name, value in values.items() if value.ndim == 2},
        {name: value + 1 for name, value in values.items() if value.ndim == 1},
    )


def step(sequences: list[tuple[list[int], int, int]], wanted: list[int] | None = None, copies: Any = ()) -> StepInputs:
    """Of each sequence its blocks, its computed tokens and how many come now; tokens follow from place and block."""
    counts = [count for _, _, count in sequences]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    positions = np.concatenate([np.arange(start, start + count) for _, start, count in sequences])
    width = max(len(blocks) for blocks, _, _ in sequences)
    tables = np.array([blocks + [-1] * (width - len(blocks)) for blocks, _, _ in sequences], np.int32)
    owner = np.repeat(np.arange(len(sequences)), counts)
    slots = tables[owner, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    rows = bounds[1:] - 1 if wanted is None else np.array(wanted)
    lengths = np.array([start + count for _, start, count in sequences], np.int32)
    attention = AttentionMetadata(bounds.astype(np.int32), lengths, tables, slots)
    return StepInputs((positions * 7 + slots) % CONFIG.vocab_size, positions, attention, rows.astype(np.int64), copies)


PREFILL = step([([3, 7, 1], 0, 9), ([5, 2], 0, 6), ([4], 0, 1)])
SILENT = step([([8, 9], 0, 5)], wanted=[])
DECODE = step([([3, 7, 1], 9, 1), ([5, 2], 6, 1), ([4], 1, 1)])
MIXED = step([([3, 7, 1], 10, 1), ([8, 9], 5, 3)])
FORK = step([([3, 7, 6], 10, 1), ([4], 2, 1)], copies=((1, 6),))
PARTLY = step([([3, 7, 1], 11, 1), ([8, 9], 8 - 1, 1)], wanted=[0])
EVERY_ROW = step([([10, 11], 0, 7)], wanted=list(range(7)))
LARGER = step([([i], 0, 1) for i in range(12, 18)])
TRACE = [PREFILL, SILENT, DECODE, MIXED, FORK, PARTLY, EVERY_ROW, LARGER, DECODE]


# As on a GPU, operands are copies, which loading writes.
COPYING_OPS = SimpleNamespace(**{name: getattr(reference_ops, name) for name in reference_ops.__all__})
COPYING_OPS.array = lambda values: torch.from_numpy(values).clone()


def make(weights: ModelWeights, device: Any) -> CudaRunner[StoredWeight]:
    with device.loading():
        model = Decoder(CONFIG, weights, cast("Any", COPYING_OPS))
    return CudaRunner(model, reference_ops, "test", device, SIZES, GRAPHS)


def test_logits_are_those_of_the_reference(weights: ModelWeights, recording_device: Any) -> None:
    reference = DecoderRunner(Decoder(CONFIG, weights, reference_ops), reference_ops, "reference", SIZES)
    with recording_device() as device:
        runner = make(weights, device)
        for inputs in TRACE:
            torch.testing.assert_close(runner.forward(inputs), reference.forward(inputs), rtol=1e-5, atol=1e-5)
    assert device.races == []


def test_hidden_states_come_too(weights: ModelWeights, recording_device: Any) -> None:
    reference = DecoderRunner(Decoder(CONFIG, weights, reference_ops), reference_ops, "reference", SIZES)
    ours, theirs = (np.full((16, CONFIG.hidden_size), np.nan, np.float32) for _ in range(2))
    with recording_device() as device:
        make(weights, device).forward(PREFILL, ours)
    reference.forward(PREFILL, theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert device.races == []


def test_no_wait_can_be_left_out(weights: ModelWeights, recording_device: Any) -> None:
    """Each one that the runner makes, at start and in every step before the last, orders something."""
    with recording_device() as device:
        runner = make(weights, device)
        for inputs in TRACE:
            runner.forward(inputs)
    assert device.races == []
    assert device.num_waits == 1 + device.captures + len(TRACE)
    for ignored in range(device.num_waits):
        with recording_device(ignored) as careless:
            runner = make(weights, careless)
            for inputs in TRACE:
                runner.forward(inputs)
        assert careless.races, f"wait {ignored} of {device.num_waits} orders nothing"


def test_the_padding_of_a_graph_leaves_the_cache_alone(weights: ModelWeights, recording_device: Any) -> None:
    """Three sequences in a graph of four: but for their own slots, every byte of the cache stays."""
    with recording_device() as device:
        runner = make(weights, device)
        for cache in runner._caches:  # memory that an earlier runner held may have the very values to come
            for tensor in cache.tensors:
                tensor.numpy().fill(12345.0)
        runner.forward(PREFILL)
        before = [tuple(tensor.view(torch.int32).clone() for tensor in cache.tensors) for cache in runner._caches]
        runner.forward(DECODE)
    for cache, (key, value) in zip(runner._caches, before, strict=True):
        changed = (cache.value.view(torch.int32) != value).any(-1).any(1).nonzero().tolist()
        assert changed == [[block, slot] for block, slot in ((1, 1), (2, 2), (4, 1))]
        assert sorted((cache.key.view(torch.int32) != key).any(2).any(1).nonzero().tolist()) == changed


def test_steps_of_one_token_each_replay_graphs(weights: ModelWeights, recording_device: Any, monkeypatch: Any) -> None:
    with recording_device() as device:
        runner = make(weights, device)
        launched: list[int] = []
        launch = runner._launch
        monkeypatch.setattr(
            runner, "_launch", lambda inputs, hidden: launched.append(len(inputs.token_ids)) or launch(inputs, hidden)
        )
        for inputs in TRACE:
            runner.forward(inputs)
    assert launched == [16, 5, 4, 7, 6]


def test_graphs_are_captured_for_sizes_up_to_the_maximum() -> None:
    sizes = [layout.tokens for layout in GraphSizes(20, 3, torch.float32).layouts]
    assert sizes == [1, 2, 4, 8, 16, 20]
    assert [layout.tokens for layout in GraphSizes(1, 3, torch.float32).layouts] == [1]
    assert [layout.width for layout in GraphSizes(1, 17, torch.float32).layouts] == [32]


def test_a_step_of_nothing(weights: ModelWeights, recording_device: Any) -> None:
    with recording_device() as device:
        assert make(weights, device).forward(replace(NO_TOKENS, copies=((0, 2),))).shape == (0, CONFIG.vocab_size)
    assert device.races == []


def test_the_backend_is_put_together(
    weights: ModelWeights, recording_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `make_cuda_runner` wires it, with the reference in the place of the kernels."""
    cuda_ops = pytest.importorskip("vtk.kernels.cuda_ops", reason="needs Triton")
    made: list[Any] = []
    monkeypatch.setattr(cuda_ops, "CudaOps", lambda *arguments: made.append(arguments) or reference_ops)
    info = ModelInfo("tiny", Path("tiny"), "safetensors", CONFIG, "", "")
    source, args = ModelSource(info, weights, cast("Tokenizer", None)), EngineArgs(block_size=BLOCK, max_num_seqs=5)
    reference = DecoderRunner(Decoder(CONFIG, weights, reference_ops), reference_ops, "reference", SIZES)
    with recording_device() as device:
        runner = make_cuda_runner(source, args, device, num_blocks=20, max_positions=32)
        for inputs in (PREFILL, DECODE):
            torch.testing.assert_close(runner.forward(inputs), reference.forward(inputs), rtol=1e-5, atol=1e-5)
    assert made == [(torch.device("cpu"), torch.float32)]
    assert (runner.backend, runner.num_blocks, runner.block_size) == ("cuda-float32", 20, BLOCK)
    with pytest.raises(UsageError, match="on the CPU only"):
        make_cuda_runner(source, replace(args, linear_mode="quantized"), device, num_blocks=20, max_positions=32)
