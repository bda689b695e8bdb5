"""The decoder over weights of several formats, and what it does with nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import WeightsMismatchError
from vtk.kernels import cpu_library, cpu_ops, reference_ops
from vtk.kernels.host_memory import mapped_rows
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight
from vtk.llm_serving.core.step_inputs import AttentionMetadata, StepInputs
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.runner.base import Logits
from vtk.llm_serving.runner.decoder_runner import DecoderRunner, RunnerSizes

CONFIG = ModelConfig("qwen2", 64, 96, 2, 4, 2, 16, 50, 64, 1e-5, 1e4, qkv_bias=True)
SIZES = RunnerSizes(num_blocks=4, block_size=16, kv_dtype="float32")
NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")


def random_weights(formats: dict[str, str]) -> ModelWeights:
    """float32 matrices, but for names that end in a key of `formats`."""
    random = np.random.default_rng(5)
    matrices, vectors = {}, {}
    for name, shape in CONFIG.tensor_shapes().items():
        values = random.standard_normal(shape, np.float32) * np.float32(0.2)
        if len(shape) == 1:
            vectors[name] = values + np.float32("norm" in name)
            continue
        kind = next((kind for ending, kind in formats.items() if name.endswith(ending)), "f32")
        if kind == "q8_0":
            scales = np.full((shape[0], shape[1] // 32, 1), 0.01, np.float16).view(np.uint8)
            codes = random.integers(0, 256, (shape[0], shape[1] // 32, 32), np.uint8)
            matrices[name] = StoredWeight(kind, np.concatenate([scales, codes], axis=2).reshape(shape[0], -1))
        else:
            data = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else values
            matrices[name] = StoredWeight(kind, data.astype(FLOAT_FORMATS[kind]))
    return ModelWeights(matrices, vectors)


def inputs(tokens: list[int], wanted: list[int]) -> StepInputs:
    """One sequence."""
    positions = np.arange(len(tokens))
    attention = AttentionMetadata(
        np.array([0, len(tokens)], np.int32), np.array([len(tokens)], np.int32), np.array([[2, 0]], np.int32),
        np.where(positions < 16, 32, 0) + positions % 16,
    )  # fmt: skip
    return StepInputs(np.array(tokens), positions, attention, np.array(wanted, np.int64), ())


def run(weights: ModelWeights, ops: Any, step: StepInputs) -> Logits:
    return DecoderRunner(Decoder(CONFIG, weights, ops), ops, "test", SIZES).forward(step)


@pytest.mark.parametrize("ops", [reference_ops, pytest.param(cpu_ops, marks=NO_KERNELS)])
def test_projections_of_different_formats(ops: Any) -> None:
    """As in K-quant files, where values are stored finer than queries and keys."""
    mixed = random_weights({"v_proj.weight": "q8_0", "up_proj.weight": "bf16", "embed_tokens.weight": "f16"})
    step = inputs(list(range(20)), [3, 19])
    expected = run(mixed.dequantized(), reference_ops, step)
    assert expected.shape == (2, 50)
    assert expected.std() > 0.1
    np.testing.assert_allclose(run(mixed, ops, step), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("ops", [reference_ops, pytest.param(cpu_ops, marks=NO_KERNELS)])
def test_steps_that_want_nothing(ops: Any) -> None:
    """A chunk in the middle of a prompt, and a step of no tokens."""
    weights = random_weights({})
    assert run(weights, ops, inputs([1, 2], [])).shape == (0, 50)
    empty = AttentionMetadata(
        np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32), np.zeros(0, int)
    )
    nothing = StepInputs(np.zeros(0, int), np.zeros(0, int), empty, np.zeros(0, int), ())
    assert run(weights, ops, nothing).shape == (0, 50)


def batch(lengths: list[int], seed: int, wanted: npt.NDArray[np.int64]) -> StepInputs:
    """Several prompts, each in a block of its own."""
    positions = np.concatenate([np.arange(length) for length in lengths])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    attention = AttentionMetadata(
        np.cumsum([0, *lengths]).astype(np.int32), np.array(lengths, np.int32),
        np.arange(len(lengths), dtype=np.int32)[:, None], owners * 16 + positions,
    )  # fmt: skip
    tokens = np.random.default_rng(seed).integers(0, 50, len(positions))
    return StepInputs(tokens, positions, attention, wanted, ())


@pytest.mark.parametrize("ops", [reference_ops, pytest.param(cpu_ops, marks=NO_KERNELS)])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_that_nobody_asks_for_leave_the_others_alone(ops: Any, data: st.DataObject) -> None:
    """Whichever rows are wanted, in whatever order of steps, kept memory or new: the logits of a step of all rows."""
    weights = random_weights({})
    poisoned: list[Any] = []

    def lasting(rows: int, columns: int) -> Any:
        poisoned.append(mapped_rows(rows, columns) if ops is cpu_ops else torch.empty(rows, columns))
        return poisoned[-1]

    kept = Decoder(CONFIG, weights, ops, lasting=lasting)
    runners = [DecoderRunner(model, ops, "test", SIZES) for model in (kept, Decoder(CONFIG, weights, ops))]
    for seed in range(data.draw(st.integers(1, 4))):
        lengths = data.draw(st.lists(st.integers(1, 16), min_size=1, max_size=4))
        total = sum(lengths)
        every = run(weights, ops, batch(lengths, seed, np.arange(total))).copy()
        last = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
        ends = np.cumsum(lengths) - 1
        some = data.draw(st.sets(st.integers(0, total - 1)))
        wanted = data.draw(st.sampled_from([ends[last], np.array(sorted(some), np.int64)]))
        for runner in runners:
            for memory in poisoned:  # what a step left is nothing to the next one
                memory[...] = np.nan
            logits = runner.forward(batch(lengths, seed, wanted))
            if ops is cpu_ops:
                np.testing.assert_array_equal(logits, every[wanted])
            else:
                np.testing.assert_allclose(logits, every[wanted], rtol=0, atol=1e-5)


def test_the_last_layer_attends_for_wanted_rows_only() -> None:
    asked: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(reference_ops, name)

        def paged_attention(self, query: torch.Tensor, *arguments: Any) -> torch.Tensor:
            asked.append(len(query))
            return reference_ops.paged_attention(query, *arguments)

    weights, lengths = random_weights({}), [7, 1, 12]
    for wanted, rows in (([6, 7], [20, 2]), ([], [20, 0]), ([6, 7, 19], [20, 3]), ([5, 6], [20, 2]), ([5], [20, 20])):
        asked.clear()
        run(weights, Counting(), batch(lengths, 0, np.array(wanted, np.int64)))
        assert asked == rows, wanted


def test_dequantized_weights_leave_the_file() -> None:
    """Whoever cuts a mapped file short must not end the process that answers from it."""
    stored = random_weights({"v_proj.weight": "q8_0"})
    ours = stored.dequantized()
    for name, weight in stored.matrices.items():
        np.testing.assert_array_equal(ours.matrices[name].data, weight.dequantize())
        assert not np.shares_memory(ours.matrices[name].data, weight.data), name


def test_weights_are_checked_by_name_and_shape() -> None:
    weights = random_weights({})
    weights.check(CONFIG, "it")
    with pytest.raises(WeightsMismatchError, match=r"it does not fill a qwen2 model: .*\(50, 64\), not \(51, 64\)"):
        weights.check(replace(CONFIG, vocab_size=51), "it")
    with pytest.raises(WeightsMismatchError, match=r"4 are missing \(such as layers\.0\.self_attn\.k_norm"):
        weights.check(replace(CONFIG, qk_norm=True), "it")
